"""Choose each cell's learning rate, and weight decay if asked: best mean loss on the tuning split, on seeds of its own.

Every cell is tuned with equal effort: where one cell's best value lies at an edge and its grid is extended, every
other cell gets a run more as well, between its best value and the better of the two beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from depthscale.errors import ConfigError, ResultError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.results import read_result, write_result
from depthscale.runs.study_config import CellRate, StudyFile, TuningConfig
from depthscale.studies.engine import Job, run_jobs
from depthscale.studies.study import training_job


@dataclass(frozen=True)
class Point:
    """One setting that is tried: a rate, and a weight decay where it is not the configuration's own."""

    lr: float
    weight_decay: float | None = None


@dataclass
class _Search:
    """One cell's search along one axis: the values tried so far, ascending, and what each gave."""

    cell: CellKey
    values: list[float]
    point: Callable[[float], Point]
    means: dict[float, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return best_rate(self.values, [self.means[value] for value in self.values])

    @property
    def at_edge(self) -> bool:
        """Whether a better value may lie beyond those tried; nothing lies below 0."""
        return self.best in (self.values[0], self.values[-1]) and self.best > 0


def tune(
    directory: Path,
    file: StudyFile,
    workers: int,
    console: Console,
    later: Sequence[Collection[tuple[str, int]]] = (),
) -> list[CellRate]:
    """Run the tuning grid of every cell, extend grids whose best value is at an edge, and write ``tuning.json``.

    Args:
        later: (arm, rounds) of the cells of each later addition. They are tuned with equal effort among themselves, so
            that a grid which they extend gives no other rate to cells whose runs are made.

    Returns:
        The chosen rate of every cell.

    Raises:
        ResultError: a tuning run failed.
        ConfigError: the study file has no ``[study.tuning]``, or one weight decay to choose from.
    """
    tuning = file.study.tuning
    if tuning is None:
        raise ConfigError("this study has no [study.tuning] with seeds and grid; add it, or leave out --tune")
    if len(tuning.weight_decays) == 1:
        raise ConfigError(
            f"tuning.weight_decays {list(tuning.weight_decays)} leaves nothing to choose; give two or more, or set"
            " train.weight_decay"
        )
    # Rates that an earlier call chose have no part in choosing them again.
    file = file.with_study(rates=())
    budget = tuning.budget or max(file.study.budgets, default=None)
    cells = [CellKey(*key, budget) for key in dict.fromkeys((cell.arm, cell.rounds) for cell in file.study.cells())]

    def job(cell: CellKey, point: Point, seed: int) -> Job:
        config = file.cell_config(cell, seed, point.lr, point.weight_decay)
        return training_job(tuning_directory(directory, cell.arm, cell.rounds, point, seed), config)

    def run(searches: Sequence[_Search]) -> None:
        jobs = [job(s.cell, s.point(value), seed) for s in searches for value in s.values for seed in tuning.seeds]
        failed = run_jobs(jobs, workers, console, f"{file.study.name}: tuning")
        if failed:
            first = failed[0]
            raise ResultError(
                f"{len(failed)} tuning runs failed, {first.job.directory.name} with: {first.reason};"
                " mend it and give the same command again, finished runs are kept"
            )
        for search in searches:
            search.means = {
                value: _mean([p["loss_nats"] for p in _points(directory, tuning, search.cell, search.point(value))
                              if p["outcome"] != "diverged"], len(tuning.seeds))
                for value in search.values
            }  # fmt: skip

    found: dict[CellKey, dict[str, Any]] = {}
    for group in _groups(cells, later):
        rates = [_Search(cell, sorted(tuning.grid), Point) for cell in group]
        _search(rates, tuning.max_extensions, run)
        decays: list[_Search | None] = [None] * len(rates)
        if tuning.weight_decays:
            searches = [_Search(s.cell, sorted(tuning.weight_decays), partial(Point, s.best)) for s in rates]
            _search(searches, tuning.max_extensions, run)
            decays = [*searches]
        for rate, decay in zip(rates, decays, strict=True):
            found[rate.cell] = _cell_result(directory, tuning, rate, decay)
    results = [found[cell] for cell in cells]
    about = {"name": file.study.name, "seeds": list(tuning.seeds), "budget": budget}
    write_result(directory, "tuning", {**about, "cells": results})
    return [
        CellRate(
            arm=r["arm"],
            rounds=r["rounds"],
            lr=r["best_lr"],
            weight_decay=r["best_weight_decay"],
            source=f"tuning on seeds {list(tuning.seeds)}",
            at_edge=r["at_edge"],
            weight_decay_at_edge=r["weight_decay_at_edge"],
        )
        for r in results
    ]


def _groups(cells: Sequence[CellKey], later: Sequence[Collection[tuple[str, int]]]) -> list[list[CellKey]]:
    """The cells that are tuned together: those of the study as it began, then those of each addition."""
    first = [cell for cell in cells if not any(cell[:2] in addition for addition in later)]
    return [first, *([cell for cell in cells if cell[:2] in addition] for addition in later)]


def _search(searches: Sequence[_Search], max_extensions: int, run: Callable[[Sequence[_Search]], None]) -> None:
    """Run all values; as long as a best one is at an edge, extend there and look closer everywhere else."""
    if not searches:
        return
    run(searches)
    for _ in range(max_extensions):
        if not any(search.at_edge for search in searches):
            return
        for search in searches:
            search.values = (
                extended(search.values, search.best)
                if search.at_edge
                else refined(search.values, search.best, [search.means[value] for value in search.values])
            )
        run(searches)


def extended(grid: Sequence[float], best: float) -> list[float]:
    """The grid with one more rate beyond the edge that ``best`` stands on, at the ratio of the two rates there.

    Example:
        >>> extended([1.0, 2.0, 4.0], best=4.0), extended([1.0, 2.0, 4.0], best=1.0)
        ([1.0, 2.0, 4.0, 8.0], [0.5, 1.0, 2.0, 4.0])
    """
    if best == grid[-1]:
        return [*grid, grid[-1] ** 2 / grid[-2] if grid[-2] else 2 * grid[-1]]
    return [grid[0] ** 2 / grid[1], *grid]


def refined(grid: Sequence[float], best: float, mean_losses: Sequence[float]) -> list[float]:
    """The grid with one more value between ``best`` and the better value beside it: their geometric mean.

    Example:
        >>> refined([1.0, 4.0, 16.0], best=4.0, mean_losses=[3.0, 2.0, 2.5])
        [1.0, 4.0, 8.0, 16.0]
    """
    at = list(grid).index(best)
    beside = [index for index in (at - 1, at + 1) if 0 <= index < len(grid)]
    nearest = min(beside, key=lambda index: mean_losses[index])
    low, high = sorted((grid[at], grid[nearest]))
    return sorted([*grid, math.sqrt(low * high) if low else high / 2])


def best_rate(grid: Sequence[float], mean_losses: Sequence[float]) -> float:
    """The rate of the smallest mean loss; of equal ones the smallest rate, which is the safer."""
    return min(zip(mean_losses, grid, strict=True))[1]


def tuning_directory(directory: Path, arm: str, rounds: int, point: Point, seed: int) -> Path:
    """Where one tuning run lies."""
    decay = "" if point.weight_decay is None else f"-wd{point.weight_decay:.3g}"
    return directory / "tuning" / f"{arm}-r{rounds}-lr{point.lr:.3g}{decay}-s{seed}"


def _points(directory: Path, tuning: TuningConfig, cell: CellKey, point: Point) -> list[dict[str, Any]]:
    points = []
    for seed in tuning.seeds:
        result = read_result(tuning_directory(directory, cell.arm, cell.rounds, point, seed), "training")
        loss = result["final"]["tuning"]["loss_nats"]
        points.append({**dataclasses.asdict(point), "seed": seed, "loss_nats": loss, "outcome": result["outcome"]})
    return points


def _mean(losses: Sequence[float | None], num_runs: int) -> float:
    """Infinite where a run lost its loss or diverged: it has no place among the best, whatever its last loss was."""
    known = [loss for loss in losses if loss is not None]
    return math.inf if len(known) < num_runs else sum(known) / len(known)


def _cell_result(directory: Path, tuning: TuningConfig, rates: _Search, decays: _Search | None) -> dict[str, Any]:
    tried = [point for value in rates.values for point in _points(directory, tuning, rates.cell, Point(value))]
    tried_decays = (
        [point for value in decays.values for point in _points(directory, tuning, rates.cell, decays.point(value))]
        if decays
        else []
    )
    return {
        "arm": rates.cell.arm,
        "rounds": rates.cell.rounds,
        "best_lr": rates.best,
        "best_weight_decay": decays.best if decays else None,
        "best_loss_nats": decays.means[decays.best] if decays else rates.means[rates.best],
        "at_edge": rates.at_edge,
        "weight_decay_at_edge": decays is not None and decays.at_edge,
        "num_runs": len(tried) + len(tried_decays),
        "points": tried,
        "weight_decay_points": tried_decays,
    }

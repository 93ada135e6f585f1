"""Choose each cell's learning rate: best mean loss on the tuning split, on seeds the study does not use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from depthscale.errors import ConfigError, ResultError
from depthscale.runs.results import read_result, write_result
from depthscale.runs.study_config import CellRate, StudyFile, TuningConfig
from depthscale.studies.engine import run_jobs
from depthscale.studies.study import training_job


def tune(directory: Path, file: StudyFile, workers: int, console: Console) -> list[CellRate]:
    """Run the tuning grid of every cell, extend grids whose best rate is at an edge, and write ``tuning.json``.

    Each cell gets the same grid; an extension adds the next rate at the grid's own ratio, to that cell alone.

    Returns:
        The chosen rate of every cell.

    Raises:
        ResultError: a tuning run failed.
        ConfigError: the study file has no ``[study.tuning]``.
    """
    tuning = file.study.tuning
    if tuning is None:
        raise ConfigError("this study has no [study.tuning] with seeds and grid; add it, or leave out --tune")
    cells = [(arm.name, rounds) for arm in file.study.arms for rounds in file.study.rounds]
    grids = {cell: sorted(tuning.grid) for cell in cells}
    for extension in range(tuning.max_extensions + 1):
        jobs = [
            training_job(tuning_directory(directory, *cell, lr, seed), file.run_config(*cell, seed, lr))
            for cell, grid in grids.items()
            for lr in grid
            for seed in tuning.seeds
        ]
        failed = run_jobs(jobs, workers, console, f"{file.study.name}: tuning")
        if failed:
            first = failed[0]
            raise ResultError(
                f"{len(failed)} tuning runs failed, {first.job.directory.name} with: {first.reason};"
                " mend it and give the same command again, finished runs are kept"
            )
        results = [_cell_result(directory, tuning, *cell, grid) for cell, grid in grids.items()]
        write_result(directory, "tuning", {"name": file.study.name, "seeds": list(tuning.seeds), "cells": results})
        at_edge = [(cell, r) for cell, r in zip(cells, results, strict=True) if r["at_edge"]]
        if not at_edge or extension == tuning.max_extensions:
            break
        for cell, result in at_edge:
            grids[cell] = extended(grids[cell], result["best_lr"])
    return [
        CellRate(
            arm=r["arm"],
            rounds=r["rounds"],
            lr=r["best_lr"],
            source=f"tuning on seeds {list(tuning.seeds)}",
            at_edge=r["at_edge"],
        )
        for r in results
    ]


def extended(grid: Sequence[float], best: float) -> list[float]:
    """The grid with one more rate beyond the edge that ``best`` stands on, at the ratio of the two rates there.

    Example:
        >>> extended([1.0, 2.0, 4.0], best=4.0), extended([1.0, 2.0, 4.0], best=1.0)
        ([1.0, 2.0, 4.0, 8.0], [0.5, 1.0, 2.0, 4.0])
    """
    if best == grid[-1]:
        return [*grid, grid[-1] ** 2 / grid[-2]]
    return [grid[0] ** 2 / grid[1], *grid]


def best_rate(grid: Sequence[float], mean_losses: Sequence[float]) -> float:
    """The rate of the smallest mean loss; of equal ones the smallest rate, which is the safer."""
    return min(zip(mean_losses, grid, strict=True))[1]


def tuning_directory(directory: Path, arm: str, rounds: int, lr: float, seed: int) -> Path:
    """Where one tuning run lies."""
    return directory / "tuning" / f"{arm}-r{rounds}-lr{lr:.3g}-s{seed}"


def _cell_result(directory: Path, tuning: TuningConfig, arm: str, rounds: int, grid: Sequence[float]) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    means: list[float] = []
    for lr in grid:
        losses: list[float] = []
        for seed in tuning.seeds:
            result = read_result(tuning_directory(directory, arm, rounds, lr, seed), "training")
            loss = result["final"]["tuning"]["loss_nats"]
            # A diverged run has no place among the best, whatever its last loss was.
            losses.append(math.inf if loss is None or result["outcome"] == "diverged" else loss)
            points.append({"lr": lr, "seed": seed, "loss_nats": loss, "outcome": result["outcome"]})
        means.append(sum(losses) / len(losses))
    best = best_rate(grid, means)
    return {
        "arm": arm,
        "rounds": rounds,
        "best_lr": best,
        "at_edge": best in (grid[0], grid[-1]),
        "points": points,
    }

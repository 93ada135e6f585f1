"""The cells of the table: what is run, in which order, and what of it is done already."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from depthscale.errors import ConfigError, ResultError
from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import finite
from depthscale.studies.tuning import extended

from .model import Shape
from .puzzles import Puzzles
from .training import Training, train_cell

CELL_KIND = "hierarchical_reasoner_cell"


@dataclass(frozen=True)
class Settings:
    """Everything that the cells of one table share.

    Attributes:
        rules: arms; the first is the baseline.
        rates: grid of learning rates; each arm's is the one of the lowest mean loss on the tuning boards.
        tuning_seed: of the tuning cells; none of ``seeds``.
        tuning_share: steps of a tuning cell as a share of a whole one.
        max_extensions: how often an arm's grid is extended where its best rate is at an edge.
    """

    shape: Shape
    steps: int
    batch: int
    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    tuning_seed: int
    tuning_share: float
    max_extensions: int
    train_per_level: int
    tuning_per_level: int
    report_per_level: int
    puzzle_seed: int

    def __post_init__(self) -> None:
        if self.tuning_seed in self.seeds:
            raise ConfigError(f"tuning seed {self.tuning_seed} is one of the seeds {self.seeds}; choose another")
        for name in ("rules", "seeds", "rates"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} came as {values}; expected at least one, each once")
        if not all(math.isfinite(rate) and rate > 0 for rate in self.rates):
            raise ConfigError(f"rates came as {self.rates}; expected positive numbers")
        if not all(seed >= 0 for seed in self.seeds):
            raise ConfigError(f"seeds came as {self.seeds}; expected whole numbers of 0 or more")

    def training(self, lr: float, seed: int, share: float = 1.0) -> Training:
        """How one cell is trained."""
        steps = max(1, round(share * self.steps))
        return Training(steps, self.batch, lr, seed, warmup_steps=max(1, steps // 20))


def write_settings(directory: Path, settings: Settings) -> None:
    """Write ``settings.json`` before the first cell, or check that the directory's own says the same.

    Raises:
        ResultError: the directory holds a table of other settings.
    """
    path = directory / "settings.json"
    asked = json.loads(json.dumps(asdict(settings)))
    if not path.exists():
        atomic_write_text(path, json.dumps(asked, indent=1) + "\n")
    elif json.loads(path.read_text(encoding="utf-8")) != asked:
        raise ResultError(f"{directory} holds a table of other settings; choose another --out")


def run_cells(
    directory: Path, settings: Settings, puzzles: Puzzles, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every cell, made or read: those of the tuning grid, and those of the table. Finished cells are kept."""
    tuning: list[dict[str, Any]] = []
    chosen: dict[str, float] = {}
    for rule in settings.rules:
        grid = sorted(settings.rates)
        for extension in range(settings.max_extensions + 1):
            trainings = [settings.training(lr, settings.tuning_seed, settings.tuning_share) for lr in grid]
            found = [_cell(directory, settings, puzzles, say, rule, training, "tuning") for training in trainings]
            chosen[rule] = best_rate(found)
            if len(grid) < 2 or chosen[rule] not in (grid[0], grid[-1]) or extension == settings.max_extensions:
                break
            grid = extended(grid, chosen[rule])
        tuning += found
    # Seed by seed, so that an early look already holds whole pairs.
    table = [
        _cell(directory, settings, puzzles, say, rule, settings.training(chosen[rule], seed), "report")
        for seed in settings.seeds
        for rule in settings.rules
    ]
    return tuning, table


def best_rate(cells: Sequence[dict[str, Any]]) -> float:
    """The rate of the smallest loss over levels; no diverged cell, or one without a loss, while another is there."""
    losses = [
        (
            cell["outcome"] == "diverged",
            # A loss that was not finite is stored as null.
            sum(math.inf if level["loss_nats"] is None else level["loss_nats"] for level in cell["levels"].values()),
            cell["training"]["lr"],
        )
        for cell in cells
    ]
    return float(min(losses)[2])


def _cell(
    directory: Path,
    settings: Settings,
    puzzles: Puzzles,
    say: Callable[[str], None],
    rule: str,
    training: Training,
    split: str,
) -> dict[str, Any]:
    name = f"{split}-{rule}-lr{training.lr:g}-s{training.seed}"
    path = directory / "cells" / f"{name}.json"
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    say(f"{name}: {training.steps} steps")
    cell = {"kind": CELL_KIND, "schema_version": 1, **train_cell(settings.shape, rule, training, puzzles, split)}
    atomic_write_text(path, json.dumps(finite(cell), indent=1, allow_nan=False) + "\n")
    levels = ", ".join(f"{k} {100 * v['board_accuracy']:.1f} % of boards" for k, v in cell["levels"].items())
    say(f"{name}: {cell['outcome']}, {levels}, {cell['processor_seconds']:.0f} s of processor")
    return dict(json.loads(path.read_text(encoding="utf-8")))

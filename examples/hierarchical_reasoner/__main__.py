"""Train the table: every rule and seed, one cell after another; given again, finished cells are kept.

PYTHONPATH=examples python -m hierarchical_reasoner --out runs/reasoner
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import torch
import typer

from depthscale.errors import ConfigError, DepthscaleError

from .cells import Settings, run_cells, write_settings
from .model import Shape, build
from .page import write_table_page
from .puzzles import describe, load_or_make
from .table import write_table

Number = TypeVar("Number", int, float)


def main(
    out: Annotated[Path, typer.Option(help="Directory of the table.")] = Path("runs/reasoner"),
    box: Annotated[int, typer.Option(min=2, max=3, help="Box size: 3 is 9 x 9, 2 is 4 x 4.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a cell.")] = 2000,
    batch: Annotated[int, typer.Option(min=1, help="Boards of a step.")] = 16,
    width: Annotated[int, typer.Option(min=8, help="Width of the stream.")] = 64,
    fast_visits: Annotated[int, typer.Option(min=1, help="Visits of the fast module in a cycle, C_L.")] = 4,
    cycles: Annotated[int, typer.Option(min=1, help="Cycles; the last one carries gradient.")] = 2,
    rules: Annotated[str, typer.Option(help="Arms, the baseline first.")] = "unscaled,deeploop",
    seeds: Annotated[str, typer.Option(help="Seeds of the table.")] = "1,2,3",
    rates: Annotated[str, typer.Option(help="Learning rates to choose from, on tuning boards.")] = "1e-3,3e-3,1e-2",
    boards: Annotated[int, typer.Option(min=1, help="Training boards of each level.")] = 750,
    held_out: Annotated[int, typer.Option(min=1, help="Report boards of each level; tuning has half of it.")] = 200,
) -> None:
    """Train and compare the hierarchical reasoner under residual rules."""
    settings = Settings(
        shape=Shape(box, width=width, fast_visits=fast_visits, num_cycles=cycles),
        steps=steps,
        batch=batch,
        rules=tuple(rules.split(",")),
        seeds=_numbers("--seeds", seeds, int),
        rates=_numbers("--rates", rates, float),
        tuning_seed=101,
        tuning_share=0.3,
        max_extensions=2,
        train_per_level=boards,
        tuning_per_level=max(1, held_out // 2),
        report_per_level=held_out,
        puzzle_seed=0,
    )
    torch.set_num_threads(1)
    for rule in settings.rules:
        build(settings.shape, rule, seed=0)
    write_settings(out, settings)
    per_level = {"train": boards, "tuning": settings.tuning_per_level, "report": held_out}
    puzzles, sha256 = load_or_make(out / "puzzles.json", box, per_level, settings.puzzle_seed)
    tuning, cells = run_cells(out, settings, puzzles, lambda line: typer.echo(line, err=True))
    table = write_table(out, settings, tuning, cells, describe(puzzles), sha256)
    for sentence in table["verdict"]:
        typer.echo(sentence)
    typer.echo(f"page: {write_table_page(out, table)}")


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{option} came as '{text}'; expected numbers with commas between them") from error


if __name__ == "__main__":
    try:
        typer.run(main)
    except DepthscaleError as error:
        sys.exit(f"hierarchical_reasoner: {error}")

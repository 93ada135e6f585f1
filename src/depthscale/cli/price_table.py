"""The price of a study in print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def print_price(price: Mapping[str, Any], workers: int) -> None:
    """One line a cell, then what the study costs altogether and the smallest difference that it could show."""
    budgets = any(cell["budget"] for cell in price["cells"])
    # Without rules between its columns, so that the names of arms stay whole on 80 columns.
    table = Table(title=f"{price['name']}: what it would cost", box=None, padding=(0, 1, 0, 0))
    table.add_column("arm", overflow="fold")
    for column in ("R", *(["budget"] if budgets else []), "steps", "tokens", "per\npar.", "runs", "tuning",
                   "min\na run", f"{price['unit']}-h"):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    for cell in price["cells"]:
        table.add_row(
            cell["arm"],
            str(cell["rounds"]),
            *([f"{cell['budget']:,}"] if budgets else []),
            f"{cell['steps']:,}",
            f"{cell['tokens'] / 1e6:,.2f} M",
            f"{cell['tokens_per_parameter']:.1f}",
            str(cell["runs"]),
            _range(cell["tuning_runs"], cell["tuning_runs_at_most"]),
            f"{cell['seconds_per_run'] / 60:.1f}",
            f"{cell['hours_at_most']:.2f}",
        )
    Console().print(table)
    runs = _range(price["runs"] + price["tuning_runs"], price["runs"] + price["tuning_runs_at_most"])
    hours, most = price["hours"], price["hours_at_most"]
    at_a_time = workers / price["processes_per_unit"]
    clock = _range(hours / at_a_time, most / at_a_time, 1)
    typer.echo(
        f"{runs} runs, {_range(hours, most, 1)} {price['unit']}-hours, {clock} hours with {workers} at a time; seconds"
        f" from {price['seconds_from']}. The larger numbers extend every grid as far as allowed."
    )
    seeds, sd = price["num_seeds"], price["sd_nats"]
    if price["smallest_detectable_nats"] is None:
        typer.echo("One seed: no interval, and so no smallest difference that the study could show.")
        return
    typer.echo(
        f"{seeds} pairs find a true difference of {price['smallest_detectable_nats']:.3f} nats with 80 % power, if"
        f" paired differences spread by {sd:.4f} nats: {price['sd_from']}."
    )
    if not price["enough_pairs"]:
        typer.echo('A verdict needs five pairs: this study would say "not decided" whatever it measures.')


def _range(low: float, high: float, decimals: int = 0) -> str:
    ends = [f"{value:,.{decimals}f}" for value in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"

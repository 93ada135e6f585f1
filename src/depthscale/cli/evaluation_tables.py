"""Tables of what ``depthscale evaluate`` measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_evaluation(result: Mapping[str, Any]) -> None:
    """Losses over rounds, what their laws say, and the exits."""
    console = Console()
    if result["rounds"]:
        _print_rounds(console, result)
    if result["exits"]:
        _print_exits(console, result["exits"])


def print_tasks(result: Mapping[str, Any]) -> None:
    """Scores with their standard errors."""
    console = Console()
    table = Table(caption="standard errors are over the items of a task")
    table.add_column("task")
    for heading in ("shots", "metric", "score", "standard error", "items"):
        table.add_column(heading, justify="right")
    for score in result["scores"]:
        error = score["standard_error"]
        table.add_row(
            score["task"],
            str(score["num_fewshot"]),
            score["metric"],
            f"{score['value']:.4f}",
            "-" if error is None else f"{error:.4f}",
            str(score["num_items"]),
        )
    console.print(table)


def _print_rounds(console: Console, result: Mapping[str, Any]) -> None:
    rounds = result["rounds"]
    kept, recomputed = rounds["kept"], rounds["recomputed"]
    low, high = result["trained_rounds"]
    trained = f"R = {low}" if low == high else f"R = {low} to {high}"
    table = Table(caption=f"{result['split']} split, {kept[0]['num_tokens']:,} tokens; * outside training ({trained})")
    for heading in ("R", "N", "nats per token", "bits per byte"):
        table.add_column(heading, justify="right")
    if recomputed is not None:
        table.add_column("nats, recomputed scales", justify="right")
    for index, point in enumerate(kept):
        row = [
            f"{point['rounds']}{'' if point['in_training'] else '*'}",
            str(point["unrolled_depth"]),
            f"{point['loss_nats']:.4f}",
            f"{point['bits_per_byte']:.4f}",
        ]
        if recomputed is not None:
            row.append(f"{recomputed[index]['loss_nats']:.4f}")
        table.add_row(*row)
    console.print(table)
    if recomputed is None:
        console.print(f"Recomputed scales: {rounds['why_not_recomputed']}.", soft_wrap=True)
    for source, laws in rounds["laws"].items():
        if laws["rises_again"]:
            console.print(f"L(R), {source} scales: {laws['rises_again']}.", soft_wrap=True)
        for law in laws["fits"]:
            fitted = f"R = {law['rounds'][0]} to {law['rounds'][-1]}" if law["rounds"] else "no R"
            console.print(f"L(R), {source} scales, {law['law']}, {fitted}: {_law_words(law)}", soft_wrap=True)


def _law_words(law: Mapping[str, Any]) -> str:
    if not law["identifiable"]:
        return f"not identifiable ({law['reason']})"
    numbers = ", ".join(
        f"{name} = {value:.4g} ({_interval_words(law['intervals'][name])})" for name, value in law["parameters"].items()
    )
    warnings = f"; {'; '.join(law['warnings'])}" if law["warnings"] else ""
    return f"{numbers}; off by {100 * law['root_mean_square']:.2g} % (root mean square){warnings}"


def _interval_words(interval: Sequence[float | None]) -> str:
    """Ends of a 95 % interval; where the points leave one open, that is said."""
    ends = [f"{end:.4g}" if end is not None and math.isfinite(end) else "open" for end in interval]
    return f"95 % {ends[0]} to {ends[1]}"


def _print_exits(console: Console, exits: Mapping[str, Any]) -> None:
    table = Table(title="Loss if every token leaves at the end of round r")
    for heading in ("r", "nats per token", "bits per byte"):
        table.add_column(heading, justify="right")
    pairs = zip(exits["loss_per_round"], exits["bits_per_byte_per_round"], strict=True)
    for round_, (loss, bits) in enumerate(pairs, start=1):
        table.add_row(str(round_), f"{loss:.4f}", f"{bits:.4f}")
    console.print(table)
    caption = f"{exits['assumption']}; {exits['thresholds']}; {exits['flops']}"
    table = Table(title="Exit rules", caption=caption)
    for heading in ("rule", "threshold", "mean rounds", "FLOPs per token", "nats per token"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for rule, curve in exits["rules"].items():
        for point in curve["points"]:
            table.add_row(
                rule,
                f"{point['threshold']:.4g}",
                f"{point['mean_rounds']:.2f}",
                f"{point['flops_per_token']:.3g}",
                f"{point['loss_nats']:.4f}",
            )
    console.print(table)

"""What ``depthscale compare-laws`` prints, from its result file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from depthscale.cli.fit_tables import plain_console
from depthscale.reports.fit_words import ends, value


def print_comparison(result: Mapping[str, Any]) -> None:
    """Parameters side by side, nested tests, savings and crossings."""
    console = plain_console()
    for note in result["notes"]:
        console.print(f"Rows: {note}.", soft_wrap=True, highlight=False)
    _print_parameters(console, result)
    _print_tests(console, result)
    for line in saving_lines(result):
        console.print(line, soft_wrap=True, highlight=False)


def saving_lines(result: Mapping[str, Any]) -> list[str]:
    """One sentence for each budget, then one on crossings."""
    reference, new = result["arms"]
    low, high = result["shared_budgets"]
    lines = []
    for saving in result["savings"]:
        compute = saving["compute"]
        where = "" if low <= compute <= high else ", beyond what both arms spent"
        lead = f"At {compute:.3g} FLOPs{where}: "
        if saving["reason"]:
            lines.append(f"{lead}{saving['reason']}.")
        elif saving["interval"] is None:
            lines.append(f"{lead}{new} never reaches the loss of {reference}.")
        elif saving["is_identified"]:
            share = f"{100 * saving['estimate']:.1f} %"
            ends_ = " to ".join(f"{100 * end:.1f}" for end in saving["bootstrap_interval"])
            lines.append(
                f"{lead}{new} saves {share} [{ends_}] of the compute of {reference} ({saving['bootstrap_kind']})."
            )
        else:
            lines.append(f"{lead}the compute saved is not identified: its profile is open, or too few replicates hold.")
    if result["no_frontier"]:
        return [*lines, f"{result['no_frontier'].capitalize()}."]
    meetings = ", ".join(f"{compute:.3g}" for compute in result["crossings"])
    lines.append(f"The frontiers cross at {meetings} FLOPs." if meetings else "The frontiers do not cross nearby.")
    return lines


def _print_parameters(console: Console, result: Mapping[str, Any]) -> None:
    reference, new = result["arms"]
    level = f"{100 * result['level']:g} %"
    table = Table(caption=f"{new} - {reference}: interval by {result['bootstrap']['kind']}, profile beside it")
    table.add_column("parameter")
    for heading in (reference, new, "difference", f"{level} interval", f"{level} profile"):
        table.add_column(heading, justify="right")
    differences = {row["name"]: row for row in result["differences"]}
    for row in result["parameters"]:
        found = differences.get(row["name"])
        cells = (
            ["", "", ""]
            if found is None
            else [value(found["estimate"]), ends(found["interval"]), ends(found["profile"])]
        )
        table.add_row(row["name"], value(row["reference"]), value(row["new"]), *cells)
    console.print(table)


def _print_tests(console: Console, result: Mapping[str, Any]) -> None:
    table = Table(caption="may the arms share these parameters? p by groups where rows have them")
    table.add_column("shared", overflow="fold")
    for heading in ("deviance", "constraints", "p, rows", "p, groups"):
        table.add_column(heading, justify="right")
    table.add_column("", no_wrap=True)
    for test in result["tests"]:
        groups = "-" if test["group_p_value"] is None else f"{test['group_p_value']:.2g}"
        table.add_row(
            ", ".join(test["shared"]),
            "-" if test["deviance"] is None else value(test["deviance"]),
            str(test["degrees"]),
            "-" if test["p_value"] is None else f"{test['p_value']:.2g}",
            groups,
            test["verdict"],
        )
    console.print(table)
    for refused in [test["refused"] for test in result["tests"] if test["refused"]]:
        console.print(refused, soft_wrap=True, highlight=False)

"""Tables of what ``depthscale intervene`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_interventions(result: Mapping[str, Any]) -> None:
    """The verdict, evidence beside its nulls, then what each single layer costs, in the report's own words."""
    from depthscale.reports.probe_intervention_report import evidence_table, intervention_sentences

    console = Console()
    console.print(result["verdict"]["sentence"], markup=False, soft_wrap=True)
    evidence = evidence_table(result)
    table = Table(title=evidence.caption)
    for index, heading in enumerate(evidence.columns):
        table.add_column(heading, justify="right" if index else "left")
    for row in evidence.rows:
        table.add_row(*row)
    console.print(table)
    console.print(_layers(result))
    for sentence in intervention_sentences(result):
        console.print(sentence, markup=False, soft_wrap=True)


def _layers(result: Mapping[str, Any]) -> Table:
    from depthscale.reports.page import significant, with_ends

    table = Table(title="Excess loss by layer, nats per token")
    for heading in ("layer", "removed", "repeated", "swapped with the next", "block influence"):
        table.add_column(heading, justify="right")
    cells: dict[int, dict[str, Any]] = {}
    for one in result["interventions"]:
        if one["single"] and one["kind"] != "loop":
            cells.setdefault(one["visits"][0], {})[one["kind"]] = one
    for layer, own in sorted(cells.items()):
        excess = [with_ends(own[kind]["excess"]) if kind in own else "" for kind in ("remove", "repeat", "swap")]
        table.add_row(str(layer + 1), *excess, significant(own["remove"]["prediction"]))
    return table

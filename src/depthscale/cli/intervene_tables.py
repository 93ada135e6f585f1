"""Tables of what ``depthscale intervene`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_FIGURES = {
    "cosine of neighboring updates": lambda e: e["geometry"]["update_cosine"],
    "straightness": lambda e: e["geometry"]["straightness"],
    "spread of stop depths": lambda e: e["geometry"]["stop_spread"],
    "drop exponent": lambda e: e["drops"]["exponent"],
    "rescaled / plain divergence": lambda e: e["drops"]["ratio"],
    "change of later updates": lambda e: e["later_change"],
    "excess, most layers dropped, nats": lambda e: e["contribution"],
    "excess, one bulk layer removed, nats": lambda e: e["bulk_removal"],
    "excess, first layer removed, nats": lambda e: e["end_removal"][0],
    "excess, last layer removed, nats": lambda e: e["end_removal"][1],
}


def print_interventions(result: Mapping[str, Any]) -> None:
    """The verdict, evidence beside its nulls, then what each single layer costs."""
    console = Console()
    console.print(result["verdict"]["sentence"], markup=False, soft_wrap=True)
    console.print(_evidence(result))
    console.print(_layers(result))
    for kind, found in result["prediction_ranks"].items():
        console.print(
            f"{kind}: rank correlation of excess loss and block influence {found['rank_correlation']:.2f}"
            f" (p = {found['p_value']:.2g}, {found['num']} of them)"
        )
    if result["similarity"] is not None:
        groups = result["similarity"]["groups"]
        words = "one group" if result["similarity"]["silhouette"] is None else f"{len(set(groups))} groups: {groups}"
        console.print(f"layers by what they do to each other's states: {words}", markup=False, soft_wrap=True)


def _evidence(result: Mapping[str, Any]) -> Table:
    evidence = result["evidence"]
    columns = {name: evidence[name] for name in ("model", "untrained", "shuffled") if evidence[name] is not None}
    table = Table(
        title="Evidence of the bulk layers beside its nulls",
        caption="95 % over documents; change of later updates: over removed layers",
    )
    table.add_column("")
    for name in (*columns, "random directions"):
        table.add_column(name, justify="right")
    for words, read in _FIGURES.items():
        at_random = ""
        if words in ("cosine of neighboring updates", "straightness", "spread of stop depths"):
            at_random = shown(read({"geometry": evidence["random directions"]}))
        table.add_row(words, *(shown(read(found)) for found in columns.values()), at_random)
    return table


def _layers(result: Mapping[str, Any]) -> Table:
    table = Table(title="Excess loss by layer, nats per token")
    for heading in ("layer", "removed", "repeated", "swapped with the next", "block influence"):
        table.add_column(heading, justify="right")
    cells: dict[int, dict[str, Any]] = {}
    for one in result["interventions"]:
        if one["single"] and one["kind"] != "loop":
            cells.setdefault(one["visits"][0], {})[one["kind"]] = one
    for layer, own in sorted(cells.items()):
        excess = [shown(own[kind]["excess"]) if kind in own else "" for kind in ("remove", "repeat", "swap")]
        table.add_row(str(layer + 1), *excess, _cell(own["remove"]["prediction"]))
    return table


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def shown(measured: Mapping[str, Any]) -> str:
    """Value and interval in print.

    Example:
        >>> shown({"value": 0.5, "low": 0.4, "high": 0.61}), shown({"value": 0.5, "low": None, "high": None})
        ('0.5 [0.4, 0.61]', '0.5')
    """
    if measured["value"] is None:
        return "-"
    if measured["low"] is None:
        return f"{measured['value']:.3g}"
    return f"{measured['value']:.3g} [{measured['low']:.3g}, {measured['high']:.3g}]"

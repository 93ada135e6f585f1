"""Tables of what ``depthscale align`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_alignment(result: Mapping[str, Any]) -> None:
    """kappa and the maxima of every point, then growth exponents and threshold of every arm."""
    console = Console()
    table = Table(caption="maxima in units of beta * epsilon / alpha; kappa lies between 0 and R")
    table.add_column("arm")
    for heading in ("R", "seed", "step", "kappa", "kappa common", "max U", "max G", "largest share of the bound"):
        table.add_column(heading, justify="right")
    for arm in result["arms"]:
        for index, point in enumerate(arm["points"]):
            matrices = [s for s in point["sublayers"] if s["kind"] != "norm"]
            heaviest = max(point["sublayers"], key=lambda s: s["share"])
            table.add_row(
                arm["arm"] if index == 0 else "",
                str(point["rounds"]),
                str(point["seed"]),
                str(point["step"]),
                f"{point['kappa']:.3f}",
                f"{point['kappa_common']:.3f}",
                _largest(matrices, "relative_map_max"),
                _largest(matrices, "relative_gradient_max"),
                f"{heaviest['name']} {heaviest['share']:.0%}",
            )
    console.print(table)
    for arm in result["arms"]:
        for line in _growth_lines(arm["growth"]):
            console.print(f"{arm['arm']}: {line}", markup=False, soft_wrap=True)
    for note in result["notes"]:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True)


def _largest(sublayers: list[dict[str, Any]], key: str) -> str:
    values = [s[key] for s in sublayers if s[key] is not None]
    return f"{max(values):.3g}" if values else "-"


def _growth_lines(growth: Mapping[str, Any]) -> list[str]:
    kappa, threshold, maps = growth["kappa"], growth["threshold"], growth["map_part"]
    if "reason" in kappa:
        return [f"no growth exponent: {kappa['reason']}"]
    lines = [f"kappa grows as R^{_interval(kappa)}"]
    if "reason" in threshold:
        lines.append(f"no stability threshold: {threshold['reason']}")
    elif threshold["value"] is None:
        lines.append(f"no stability threshold: {'; '.join(threshold['failed'])}")
    else:
        lines.append(
            f"stability threshold (1 + gamma) / 4 = {threshold['value']:.3f}"
            f" [{threshold['lower']:.3f}, {threshold['upper']:.3f}] of kappa common"
        )
    if "reason" not in maps:
        lines.append(f"U grows as R^{_interval(maps)}; an Adam step asks for p = {growth['adam_threshold']:.3f}")
    return lines


def _interval(growth: Mapping[str, Any]) -> str:
    return f"{growth['exponent']:.3f} [{growth['lower']:.3f}, {growth['upper']:.3f}]"

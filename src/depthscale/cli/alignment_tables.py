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
        table.add_column(heading, justify="right", overflow="fold")
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


def print_cell(result: Mapping[str, Any]) -> None:
    """kappa along the training of one configuration."""
    table = Table(caption=f"R = {result['rounds']}; maxima in units of beta * epsilon / alpha")
    for heading in ("step", "rows", "G of", "loss", "kappa", "kappa common", "max U", "max G"):
        table.add_column(heading, justify="right")
    for point in result["points"]:
        matrices = [s for s in point["sublayers"] if s["kind"] != "norm"]
        table.add_row(
            str(point["step"]),
            str(point["batch_rows"]),
            point["gradient_of"],
            f"{point['loss_nats']:.3f}",
            f"{point['kappa']:.3f}",
            f"{point['kappa_common']:.3f}",
            _largest(matrices, "relative_map_max"),
            _largest(matrices, "relative_gradient_max"),
        )
    console = Console()
    console.print(table)
    console.print(f"training: {result['outcome']}", markup=False)


def print_study(result: Mapping[str, Any]) -> None:
    """gamma of every arm at initialization and along training, then p* and what no table should leave out."""
    console = Console()
    table = Table(caption="growth of kappa over R with its interval; a threshold only where its assumptions hold")
    table.add_column("arm")
    for heading in ("step", "rows", "kappa at most R", "gamma of kappa", "gamma of kappa common", "threshold"):
        table.add_column(heading, justify="right")
    for condition in result["conditions"]:
        if condition["gradient_of"] != "loss":
            continue
        last = condition["by_rounds"][-1]
        threshold = condition["threshold"]
        table.add_row(
            condition["arm"],
            str(condition["step"]),
            str(condition["batch_rows"]),
            f"{last['kappa']['mean']:.2f} at {last['rounds']}",
            _exponent(condition["growth"]["kappa"]),
            _exponent(condition["growth"]["kappa_common"]),
            "none" if threshold.get("value") is None else f"{threshold['value']:.3f}",
        )
    console.print(table)
    for name in ("kappa_common", "kappa"):
        solution = result["self_consistent"][name]["solution"] if result["self_consistent"] else {"reason": "no base"}
        if "reason" in solution:
            console.print(f"p* by {name}: none, {solution['reason']}", markup=False, soft_wrap=True)
        else:
            estimate, lower, upper = (_solved(solution, end) for end in ("estimate", "lower", "upper"))
            console.print(f"p* by {name}: {estimate}, {lower} to {upper}", markup=False, soft_wrap=True)
    for note in result["notes"]:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True)


def _exponent(fit: Mapping[str, Any]) -> str:
    return "-" if "reason" in fit else f"{fit['exponent']:.2f} [{_end(fit['lower'])}, {_end(fit['upper'])}]"


def _solved(solution: Mapping[str, Any], name: str) -> str:
    value = solution[name]
    return f"{solution[f'{name}_outside']} the measured exponents" if value is None else f"{value:.3f}"


def _end(value: float | None) -> str:
    """An open end is stored as null."""
    return "open" if value is None else f"{value:.2f}"

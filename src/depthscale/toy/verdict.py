"""What a study says in words; where the intervals leave it open, it says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]

#: Exponents that theory and the paper name: an ensemble, a smooth flow of first order, one of second order.
ENSEMBLE = 1.0
SMOOTH = {1: 3.0, 2: 5.0}

_LOSSES = {
    "mse": "mean squared difference",
    "kl_own_head": "KL with the student's own head",
    "kl_teacher_head": "KL with the teacher's head",
}


def verdict(lines: Sequence[Line]) -> list[str]:
    """One sentence for each line, then what the lines say of order, temperature and steps."""
    said = [sentence(line) for line in lines]
    for line in lines:
        if line["order"] == 2:
            first = _partner(line, lines)
            if first is not None:
                said.append(_second_order(first, line))
    for group in _by_temperature(lines):
        said.append(_temperatures(group))
    return said + [found for line in lines if (found := _steps(line)) is not None]


def title(line: Line) -> str:
    """A line in a few words.

    Example:
        >>> title({"teacher": "tied", "loss_kind": "mse", "family": "plain", "temperature": None})
        'tied teacher, mean squared difference, plain students'
    """
    heat = "" if line["temperature"] is None else f" at T = {line['temperature']:g}"
    return f"{line['teacher']} teacher, {_LOSSES[line['loss_kind']]}{heat}, {line['family'].replace('_', ' ')} students"


def number(value: float | None) -> str:
    """An exponent in print; an open end by its word.

    Example:
        >>> number(2.946), number(None)
        ('2.95', 'open')
    """
    return "open" if value is None or not math.isfinite(value) else f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def interval(exponent: dict[str, Any]) -> str:
    """Value and ends."""
    return f"{number(exponent['value'])} ({number(exponent['lower'])} to {number(exponent['upper'])})"


def contains(exponent: dict[str, Any], value: float) -> bool:
    """Whether the interval allows ``value``; an open end allows everything beyond."""
    lower, upper = exponent["lower"], exponent["upper"]
    return (lower is None or lower <= value) and (upper is None or value <= upper)


def reading(line: Line) -> str:
    """Which mechanism the last exponent of a line is that of.

    ``ensemble``, ``smooth``, ``neither``, ``deeper is worse``, ``no exponent``; ``not decided`` where the interval
    allows both or the students have not converged: theory speaks of what is left once they have.
    """
    exponent = line["exponents"][-1]
    if exponent["value"] is None:
        return "no exponent"
    if not line["converged"]:
        return "not decided"
    if exponent["upper"] is not None and exponent["upper"] < 0:
        return "deeper is worse"
    ensemble, smooth = contains(exponent, ENSEMBLE), contains(exponent, SMOOTH[line["order"]])
    if ensemble and smooth:
        return "not decided"
    return "ensemble" if ensemble else "smooth" if smooth else "neither"


def sentence(line: Line) -> str:
    """What one line says."""
    exponent, smooth = line["exponents"][-1], SMOOTH[line["order"]]
    named = title(line)
    head = f"{named[0].upper()}{named[1:]}: "
    if exponent["value"] is None:
        return f"{head}no exponent, {exponent['reason']}."
    words = {
        "not decided": "not decided",
        "ensemble": "as ensemble averaging",
        "smooth": "as a smooth flow",
        "neither": "neither mechanism",
        "deeper is worse": "deeper students do worse",
    }[reading(line)]
    allowed = [value for value in (ENSEMBLE, smooth) if contains(exponent, value)]
    shown = {0: f"allows neither {ENSEMBLE:g} nor {smooth:g}", 1: "", 2: f"allows both {ENSEMBLE:g} and {smooth:g}"}
    if len(allowed) == 1:
        excluded = smooth if allowed[0] == ENSEMBLE else ENSEMBLE
        shown[1] = f"allows {allowed[0]:g} and not {excluded:g}"
    return f"{head}{words}. Exponent {interval(exponent)}, which {shown[len(allowed)]}. {_convergence(line)}"


def _convergence(line: Line) -> str:
    if line["converged"] is None:
        return "Whether it has converged is not known: no result at half the steps."
    depth = max(line["fall"], key=lambda d: float(line["fall"][d]))
    worst = 100 * line["fall"][depth]
    head = f"{'Converged' if line['converged'] else 'Not converged'}: over the last doubling of the steps "
    if worst <= 0:
        return f"{head}no depth's loss fell."
    return f"{head}the loss fell most at depth {depth}, by {worst:.1f} %."


def _unconverged(named: dict[str, Line]) -> str:
    """Which of two lines that are compared have not converged, or may not have."""
    names = [name for name, line in named.items() if not line["converged"]]
    return f" (not known to have converged: {', '.join(names)})" if names else ""


def _partner(line: Line, lines: Sequence[Line]) -> Line | None:
    """The plain first-order line of the same case beside a second-order one."""
    return next(
        (
            other
            for other in lines
            if other["order"] == 1
            and other["blocks"] is None
            and all(other[key] == line[key] for key in ("case", "temperature"))
        ),
        None,
    )


def _second_order(first: Line, second: Line) -> str:
    a, b = first["exponents"][-1], second["exponents"][-1]
    head = f"Second order beside first ({title(second)}): "
    if a["value"] is None or b["value"] is None:
        return f"{head}not decided, one of them has no exponent."
    both = f"{interval(b)} against {interval(a)}{_unconverged({'first order': first, 'second order': second})}"
    if _apart(a, b):
        return f"{head}steeper, {both}."
    if _apart(b, a):
        return f"{head}flatter, {both}."
    return f"{head}not decided, {both}."


def _by_temperature(lines: Sequence[Line]) -> list[list[Line]]:
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line["temperature"] is not None:
            groups.setdefault((line["case"], line["family"]), []).append(line)
    return [sorted(group, key=lambda line: float(line["temperature"])) for group in groups.values() if len(group) > 1]


def _temperatures(group: Sequence[Line]) -> str:
    low, high = group[0], group[-1]
    a, b = low["exponents"][-1], high["exponents"][-1]
    head = (
        f"Temperature ({low['teacher']} teacher, {_LOSSES[low['loss_kind']]}, {low['family'].replace('_', ' ')}"
        f" students): from T = {low['temperature']:g} to {high['temperature']:g} the exponent "
    )
    if a["value"] is None or b["value"] is None:
        return f"{head}is not known at both ends."
    ends = {f"T = {line['temperature']:g}": line for line in (low, high)}
    change = f"{interval(a)} to {interval(b)}{_unconverged(ends)}"
    if _apart(a, b):
        return f"{head}rises, {change}."
    if _apart(b, a):
        return f"{head}falls, {change}."
    return f"{head}does not change beyond its interval, {change}: not decided."


def _steps(line: Line) -> str | None:
    fitted = [(end, e) for end, e in zip(line["ends"], line["exponents"], strict=True) if e["value"] is not None]
    if len(fitted) < 2:
        return None
    (start, a), (end, b) = fitted[0], fitted[-1]
    direction = "rises" if _apart(a, b) else "falls" if _apart(b, a) else "does not change beyond its interval"
    return f"Steps ({title(line)}): from {start:,} to {end:,} the exponent {direction}, {interval(a)} to {interval(b)}."


def _apart(low: dict[str, Any], high: dict[str, Any]) -> bool:
    """Whether the whole of ``high`` lies above ``low``."""
    return low["upper"] is not None and high["lower"] is not None and low["upper"] < high["lower"]

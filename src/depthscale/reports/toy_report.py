"""The report of a toy study: the verdict first, exponents beside signatures below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depthscale.reports import toy_charts
from depthscale.reports.page import number, write_report
from depthscale.runs.results import read_result


def build_toy_report(directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of a toy study and return the path of the page.

    Raises:
        ResultError: the result is missing or damaged.
    """
    result = read_result(directory, "toy")
    lines = result["lines"]
    figures = {
        "depth": toy_charts.depth_charts(lines),
        "exponents": toy_charts.exponent_charts(lines),
        "maps": toy_charts.map_charts(lines),
        "signatures": toy_charts.signature_charts(result["teachers"], lines),
    }
    return write_report(
        directory,
        "toy.html.j2",
        f"{directory.resolve().name}: which mechanism gives which exponent",
        (chart for group in figures.values() for chart in group),
        {
            "result": result,
            "verdict": [_parted(sentence) for sentence in result["verdict"]],
            "figures": figures,
            "label": toy_charts.label,
            "ends": _ends,
        },
    )


def _parted(sentence: str) -> tuple[str, str]:
    """What it is about, and what is said of it."""
    head, separator, rest = sentence.partition(": ")
    return (head + separator.strip(), rest) if separator else ("", sentence)


def _ends(exponent: dict[str, Any]) -> str:
    """The interval of an exponent.

    Example:
        >>> _ends({"lower": 0.912, "upper": None})
        '0.91 to open'
    """
    return " to ".join("open" if end is None else number(end, 2) for end in (exponent["lower"], exponent["upper"]))

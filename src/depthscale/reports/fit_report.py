"""The report of a fitted law: what the rows say in sentences first, what it rests on below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depthscale.laws.observations import Observations
from depthscale.laws.preparation import shown_rows
from depthscale.laws.rows_file import ROWS_FILE, read_rows
from depthscale.reports import charts, fit_charts, fit_words, spending_charts
from depthscale.reports.page import write_report
from depthscale.runs.results import read_result, result_path


def build_fit_report(directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of a fit's directory and return the path of the page.

    Figures that show single rows are left out where the rows are not at hand, as in a published result. An allocation
    that was made from the fit has a section of its own.

    Raises:
        ResultError: the fit is missing or damaged.
    """
    result = read_result(directory, "fit")
    rows = read_rows(directory / ROWS_FILE) if (directory / ROWS_FILE).exists() else None
    allocation = _allocation(directory, result)
    figures = _figures(result, rows, allocation)
    law = result["fit"]["law"]
    return write_report(
        directory,
        "fit.html.j2",
        f"{directory.resolve().name}: {law['name']}",
        (chart for group in figures.values() for chart in group),
        {
            "result": result,
            "formula": formula(law),
            "verdict": fit_words.sentences(result),
            "card": fit_words.card_lines(result["card"]),
            "exponents": [factor["exponent"] for term in law["terms"] for factor in term["factors"]],
            "error_words": fit_words.error_words(result["fit"], result["rows"]),
            "certificate": fit_words.certificate_words(result["fit"]),
            "allocation": allocation,
            "allocation_lines": fit_words.allocation_sentences(allocation) if allocation else [],
            "figures": figures,
            "value": fit_words.value,
            "ends": fit_words.ends,
            "shown_rows": shown_rows,
        },
    )


def formula(law: dict[str, Any]) -> str:
    """The law as one line of text.

    Example:
        >>> term = {"coefficient": "A", "factors": [{"column": "N", "exponent": "a", "kind": "inverse_power"}]}
        >>> formula({"floor": "E", "terms": [term]})
        'L = E + A · N^−a'
    """
    shapes = {
        "inverse_power": "{column}^−{exponent}",
        "power": "{column}^{exponent}",
        "decay": "exp(−{exponent} {column})",
    }
    terms = [
        " · ".join([term["coefficient"], *(shapes[f["kind"]].format_map(f) for f in term["factors"])])
        for term in law["terms"]
    ]
    return "L = " + " + ".join([law["floor"], *terms] if law["floor"] else terms)


def _allocation(directory: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    """The allocation that was made from this very fit; one from an older fit in the same place says nothing."""
    if not result_path(directory, "allocation").exists():
        return None
    allocation = read_result(directory, "allocation")
    return allocation if allocation["fitted"] == result["created"] else None


def _figures(
    result: dict[str, Any], rows: Observations | None, allocation: dict[str, Any] | None
) -> dict[str, list[charts.Chart]]:
    isoflop = spending_charts.isoflop_chart(result, rows)
    built = rows
    # Maps count every layer, rows those that the law reads.
    if rows is not None and "depth" in rows.columns:
        built = rows.with_column("depth", rows.column("depth") + result["cut"]["depth_offset"])
    drawn_map = []
    if result["map"] is not None:
        best = result["map"]["best"]
        where = (best["width"], best.get("depth", best.get("blocks")))
        title = f"Shapes for {result['map']['flops']:.2g} FLOPs, the rows' largest budget"
        drawn_map.append(spending_charts.map_chart("allocation-map", title, result["map"], where, built))
    chosen = []
    if allocation is not None and allocation["map"] is not None:
        best = allocation["best"]
        where = (best["width"], best["depth"])
        title = "Buildable shapes for the budget"
        chosen.append(spending_charts.map_chart("allocation-chosen", title, allocation["map"], where, built))
    return {
        "terms": fit_charts.term_charts(result, rows) if rows is not None else [],
        "profiles": fit_charts.profile_charts(result),
        "isoflop": [isoflop] if isoflop else [],
        "frontier": spending_charts.frontier_charts(result),
        "map": drawn_map,
        "allocation": chosen,
    }

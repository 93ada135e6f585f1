"""The report of an alignment study: initialization and training always in one figure or one table."""

from __future__ import annotations

from pathlib import Path

from depthscale.reports import alignment_charts, alignment_growth_charts, alignment_words, charts
from depthscale.reports.alignment_data import AlignmentData, read_alignment_data
from depthscale.reports.page import write_report


def build_alignment_report(directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of an alignment study and return the path of the page.

    Raises:
        ResultError: the study's result is missing or damaged.
    """
    data = read_alignment_data(directory)
    figures = _figures(data)
    return write_report(
        directory,
        "alignment.html.j2",
        f"{directory.resolve().name}: alignment of visits",
        (chart for group in figures.values() for chart in group),
        {
            "result": data.result,
            "data": data,
            "verdict": alignment_words.sentences(data),
            "figures": figures,
            "interval": alignment_words.interval,
            "bend": alignment_words.bend,
            "statistic": alignment_words.statistic,
            "threshold": alignment_words.threshold,
            "solved": alignment_words.solved,
            "gamma_words": alignment_words.gamma_words,
            "quantities": alignment_words.QUANTITY_WORDS,
        },
    )


def _figures(data: AlignmentData) -> dict[str, list[charts.Chart]]:
    return {
        "kappa": alignment_charts.kappa_charts(data),
        "gamma": alignment_growth_charts.gamma_charts(data),
        "maxima": alignment_charts.maxima_charts(data),
        "shares": alignment_charts.share_charts(data),
        "steps": alignment_growth_charts.step_charts(data),
        "exponent": alignment_growth_charts.exponent_charts(data),
    }

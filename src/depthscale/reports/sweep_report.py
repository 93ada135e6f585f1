"""The report of an exponent sweep: where runs begin to train, in words first, every cell below."""

from __future__ import annotations

from pathlib import Path

from depthscale.reports.page import write_report
from depthscale.reports.sweep_charts import sweep_charts
from depthscale.runs.layout import RUNS
from depthscale.runs.results import read_result
from depthscale.studies.sweep_analysis import write_sweep_result
from depthscale.studies.sweep_words import interval_words


def build_sweep_report(directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of a sweep's directory and return the path of the page.

    The result is made anew from the runs where they are at hand; a sweep that was published without them is drawn
    from ``results/sweep.json`` alone.

    Raises:
        ResultError: the sweep or a run is missing or damaged.
    """
    if (directory / RUNS).is_dir():
        write_sweep_result(directory)
    result = read_result(directory, "sweep")
    figures = sweep_charts(result)
    paper = result["paper"]
    return write_report(
        directory,
        "sweep.html.j2",
        f"{result['name']}: exponent sweep",
        figures,
        {
            "result": result,
            "verdict": [sentence.partition(": ")[::2] for sentence in result["verdict"]],
            "paper_rows": list(
                zip(paper["exponents"], paper["trained"], paper["runs"], paper["loss_nats"], strict=True)
            ),
            "figures": figures,
            "interval_words": interval_words,
        },
    )

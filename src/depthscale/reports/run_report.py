"""The report of a single run: its curves and its numbers."""

from __future__ import annotations

from pathlib import Path

from depthscale.reports import charts
from depthscale.reports.alignment_curve_charts import run_alignment_chart
from depthscale.reports.curve_charts import run_loss_chart
from depthscale.reports.detail_charts import run_visit_charts
from depthscale.reports.page import drawn, write_page
from depthscale.reports.study_data import read_run_data
from depthscale.runs.config_file import read_toml
from depthscale.runs.layout import CONFIG_FILE


def build_run_report(run_directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of a run directory and return the path of the page.

    Raises:
        ResultError: the run has no training result, or a file is damaged.
        ConfigError: its ``config.toml`` is missing or damaged.
    """
    run = read_run_data(run_directory)
    figures = [run_loss_chart(run), *run_alignment_chart(run), *run_visit_charts(run)]
    charts.write_charts(run_directory / "figures", figures)
    return write_page(
        run_directory / "report.html",
        "run.html.j2",
        {
            "title": f"{run_directory.resolve().name}: run",
            "directory": run_directory.resolve().name,
            "training": run.training,
            "config": read_toml(run_directory / CONFIG_FILE),
            "figures": figures,
            "draw": drawn,
        },
    )

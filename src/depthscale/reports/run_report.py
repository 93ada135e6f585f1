"""The report of a single run: its curves and its numbers."""

from __future__ import annotations

from pathlib import Path

from depthscale.reports.alignment_curve_charts import run_alignment_chart
from depthscale.reports.curve_charts import run_loss_chart
from depthscale.reports.detail_charts import run_visit_charts
from depthscale.reports.page import write_report
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
    return write_report(
        run_directory,
        "run.html.j2",
        f"{run_directory.resolve().name}: run",
        figures,
        {
            "training": run.training,
            "config": read_toml(run_directory / CONFIG_FILE),
            "figures": figures,
        },
    )

"""``depthscale report``: rebuild a report from result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(help="A directory of a study, a run or a fit.")],
) -> None:
    """Write the figures and the self-contained HTML report of a study, a run or a fit."""
    from depthscale.reports.comparison_report import build_report
    from depthscale.reports.fit_report import build_fit_report
    from depthscale.reports.run_report import build_run_report
    from depthscale.runs.layout import STUDY_FILE
    from depthscale.runs.results import result_path

    if result_path(directory, "fit").exists():
        page = build_fit_report(directory)
    elif (directory / STUDY_FILE).exists():
        page = build_report(directory)
    else:
        page = build_run_report(directory)
    typer.echo(str(page))

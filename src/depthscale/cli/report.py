"""``depthscale report``: rebuild a report from result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(help="A study or run directory.")],
) -> None:
    """Write the figures and the self-contained HTML report of a study or a run."""
    from depthscale.reports.comparison_report import build_report
    from depthscale.reports.run_report import build_run_report
    from depthscale.runs.layout import STUDY_FILE

    build = build_report if (directory / STUDY_FILE).exists() else build_run_report
    typer.echo(str(build(directory)))

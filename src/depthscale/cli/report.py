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
    from depthscale.studies.comparison import write_comparison

    if (directory / "study.json").exists():
        write_comparison(directory)
        path = build_report(directory)
    else:
        path = build_run_report(directory)
    typer.echo(str(path))

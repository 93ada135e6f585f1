"""``depthscale report``: rebuild a report from result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[
        Path,
        typer.Argument(help="What a verb wrote: a study, a run, a fit, a sweep, an alignment study, a probe or a toy."),
    ],
) -> None:
    """Write the figures and the self-contained HTML report of a directory from its result files alone."""
    from depthscale.errors import ResultError
    from depthscale.reports.alignment_report import build_alignment_report
    from depthscale.reports.comparison_report import build_report
    from depthscale.reports.fit_report import build_fit_report
    from depthscale.reports.probe_report import build_probe_report, holds_probe
    from depthscale.reports.run_report import build_run_report
    from depthscale.reports.sweep_report import build_sweep_report
    from depthscale.reports.toy_report import build_toy_report
    from depthscale.runs.layout import STUDY_FILE
    from depthscale.runs.results import result_path
    from depthscale.studies.sweep_runs import is_sweep

    if not directory.is_dir():
        raise ResultError(f"no folder at {directory}; give one that a verb wrote, such as runs/demo")
    if result_path(directory, "fit").exists():
        page = build_fit_report(directory)
    elif result_path(directory, "alignment_study").exists():
        page = build_alignment_report(directory)
    elif result_path(directory, "toy").exists():
        page = build_toy_report(directory)
    elif holds_probe(directory):
        page = build_probe_report(directory)
    elif is_sweep(directory):
        page = build_sweep_report(directory)
    elif (directory / STUDY_FILE).exists():
        page = build_report(directory)
    else:
        page = build_run_report(directory)
    typer.echo(str(page))

"""``depthscale sweep``: the exponent p over a grid of rates and seeds, and where runs begin to train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depthscale.cli.extras import require_lm


def sweep(
    file: Annotated[Path | None, typer.Argument(metavar="SWEEP", help="Sweep file (TOML).")] = None,
    preset: Annotated[str | None, typer.Option(help="A sweep that comes with the package, such as sweep.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the sweep; default runs/NAME.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.steps=200.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="A threshold that was measured elsewhere: power(p) at it becomes an arm."),
    ] = None,
    threshold_source: Annotated[str | None, typer.Option(help="What measured it, in a few words.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; default one per GPU, else per core.")
    ] = None,
) -> None:
    """Train power(p) over exponents, rates and seeds, find where runs leave the unigram floor, and write the report."""
    require_lm("sweep")
    from rich.console import Console

    from depthscale.errors import ConfigError, ResultError
    from depthscale.studies.gpus import default_workers
    from depthscale.studies.sweep import read_sweep_file, run_sweep

    if (file is None) == (preset is None):
        raise ConfigError("give either a sweep file or --preset NAME, such as --preset sweep")
    if (threshold is None) != (threshold_source is None):
        raise ConfigError("--threshold and --threshold-source go together; give both or neither")
    sweep_file = read_sweep_file(str(file) if file else str(preset), set_ or [])
    directory = out or Path("runs") / sweep_file.sweep.name
    # Before any worker starts: a bad corpus is one line here, and a good one is in the cache for all of them.
    from depthscale.training.prepare import prepare_data

    prepare_data(sweep_file.data_config())
    measured = None if threshold is None or threshold_source is None else (threshold, threshold_source)
    failed = run_sweep(directory, sweep_file, workers or default_workers(), Console(stderr=True), measured)
    from depthscale.reports.sweep_report import build_sweep_report
    from depthscale.runs.results import read_result

    page = build_sweep_report(directory)
    result = read_result(directory, "sweep")
    for sentence in (*result["verdict"], *result["warnings"]):
        typer.echo(sentence)
    typer.echo(f"report: {page}")
    if failed:
        raise ResultError(f"{len(failed)} runs failed and are counted as missing; see log.txt in their directories")

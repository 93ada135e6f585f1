"""``depthscale compare``: the main job. Arms, rounds and seeds from one study file, and what the pairs say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from depthscale.cli.extras import require_extra, require_lm


def compare(
    study: Annotated[Path | None, typer.Argument(help="Study file (TOML).")] = None,
    preset: Annotated[str | None, typer.Option(help="A study that comes with the package, such as demo.")] = None,
    out: Annotated[Path | None, typer.Option(help="Study directory; default runs/NAME.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.steps=200.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose every cell's learning rate first, on other seeds.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at a time; default one per core.")] = None,
) -> None:
    """Train every arm at every number of rounds and seed, compare in pairs, and write the report."""
    require_lm("compare")
    from rich.console import Console

    from depthscale.errors import ConfigError, ResultError
    from depthscale.studies.study import read_study_file, run_study
    from depthscale.studies.tuning import tune as tune_rates

    if (study is None) == (preset is None):
        raise ConfigError("give either a study file or --preset NAME, such as --preset demo")
    file = read_study_file(str(study) if study else str(preset), set_ or [])
    if file.study.tasks:
        require_extra("compare with study.tasks", "eval")
    directory = out or Path("runs") / file.study.name
    console = Console(stderr=True)
    num_workers = workers or os.cpu_count() or 1
    # Before any worker starts: a bad corpus is one line here, and a good one is in the cache for all of them.
    from depthscale.training.prepare import prepare_data

    prepare_data(**file.data_config().model_dump())
    if tune:
        rates = tune_rates(directory, file, num_workers, console)
        for rate in rates:
            console.print(f"chosen: {rate.arm}, R={rate.rounds}: lr {rate.lr:.3g}")
        file = file.model_copy(update={"study": file.study.model_copy(update={"rates": tuple(rates)})})
    failed = run_study(directory, file, num_workers, console)
    # Statistics and figures are seconds of imports that the workers above did not have to wait for.
    from depthscale.reports.comparison_report import build_report
    from depthscale.runs.results import read_result

    path = build_report(directory)
    comparison = read_result(directory, "comparison")
    for sentence in (*comparison["verdict"], *comparison["warnings"]):
        typer.echo(sentence)
    typer.echo(f"report: {path}")
    if failed:
        raise ResultError(f"{len(failed)} runs failed and are counted as missing; see log.txt in their directories")

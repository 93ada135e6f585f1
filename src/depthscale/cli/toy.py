"""``depthscale toy``: which mechanism gives which exponent of loss over depth, on teachers whose mechanism is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depthscale.cli.extras import require_lm

if TYPE_CHECKING:
    from depthscale.studies.engine import Job
    from depthscale.toy.config import ToyJob


def toy(
    study: Annotated[Path | None, typer.Argument(help="Study file (TOML).")] = None,
    preset: Annotated[
        str | None, typer.Option(help="A study that comes with the package: quick, standard or paper.")
    ] = None,
    job: Annotated[Path | None, typer.Option(help="One job (TOML) instead of a study.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "--output", help="Where results lie; default runs/toy-NAME.")] = (
        None
    ),
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as depths_per_job=1.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at a time; default one per core.")] = None,
) -> None:
    """Train students of several depths on teachers, fit the exponent of loss over depth, and write the report."""
    require_lm("toy")
    from rich.console import Console

    from depthscale.errors import ConfigError

    if sum(source is not None for source in (study, preset, job)) != 1:
        raise ConfigError("give one of a study file, --preset NAME (such as --preset quick) or --job FILE")
    console = Console(stderr=True)
    if job is not None:
        _run_job(job, out, set_ or [], console)
        return
    from depthscale.errors import ResultError
    from depthscale.reports.toy_report import build_toy_report
    from depthscale.runs.config_file import keep_settings
    from depthscale.runs.results import write_result
    from depthscale.studies.engine import run_jobs
    from depthscale.toy.config import read_study
    from depthscale.toy.summary import JOBS, summarize

    file = read_study(str(study) if study else str(preset), set_ or [])
    directory = out or Path("runs") / f"toy-{file.name}"
    keep_settings(directory / "study.toml", file)
    jobs = [_job(directory / JOBS / name, each) for name, each in file.jobs().items()]
    failed = run_jobs(jobs, workers or os.cpu_count() or 1, console, f"toy {file.name}")
    lost = f"{len(failed)} jobs failed, {failed[0].job.directory.name} with: {failed[0].reason}" if failed else ""
    if failed and len(failed) == len(jobs):
        raise ResultError(lost)
    summary = summarize(directory, file)
    write_result(directory, "toy", summary)
    page = build_toy_report(directory)
    for line in summary["verdict"]:
        typer.echo(line)
    typer.echo(f"report: {page}")
    if failed:
        raise ResultError(lost)


def _job(directory: Path, settings: ToyJob) -> Job:
    from depthscale.runs.config_file import keep_settings
    from depthscale.runs.layout import CONFIG_FILE
    from depthscale.studies.engine import Job

    path = directory / CONFIG_FILE
    keep_settings(path, settings)
    arguments = ("toy", "--job", str(path), "--out", str(directory))
    return Job(arguments, directory, "toy_job", settings.train.steps, settings.block_updates)


def _run_job(path: Path, out: Path | None, overrides: list[str], console: object) -> None:
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from depthscale.errors import ResultError
    from depthscale.runs.config_file import read_toml, validate, with_overrides
    from depthscale.runs.interruption import graceful_interruption
    from depthscale.runs.results import read_result, result_path
    from depthscale.toy.config import ToyJob
    from depthscale.toy.job import JobRunner

    # Matrices this small gain nothing from a second thread, and one keeps results repeatable.
    torch.set_num_threads(1)
    settings = validate(ToyJob, with_overrides(read_toml(path), overrides), str(path))
    directory = out or Path("runs") / f"toy-{settings.name}"
    if result_path(directory, "toy_job").exists():
        if read_result(directory, "toy_job")["job"] != settings.model_dump(mode="json"):
            raise ResultError(f"{directory} holds the result of other settings; choose another --out")
        typer.echo(str(result_path(directory, "toy_job")))
        return
    runner = JobRunner(settings, directory)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        graceful_interruption() as interruption,
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,  # type: ignore[arg-type,attr-defined]
    ):
        task = bar.add_task(settings.name, total=settings.train.steps)
        result = runner.run(interruption, lambda step, text: bar.update(task, completed=step, description=text))
    typer.echo(str(result))

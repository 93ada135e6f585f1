"""A study from its file to its runs: the jobs, then nothing but what they wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from depthscale.errors import ResultError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import keep_settings
from depthscale.runs.layout import CONFIG_FILE, RUNS, run_name
from depthscale.runs.presets import packaged_presets, read_preset_or_file
from depthscale.runs.results import read_result
from depthscale.runs.study_config import StudyFile
from depthscale.runs.task_names import distinct_tasks, usual_shots
from depthscale.studies.budgets import longest_first, planned_run
from depthscale.studies.engine import Failure, Job, run_jobs


def presets() -> dict[str, Path]:
    """The study files that come with the package, by name."""
    return packaged_presets("depthscale.studies")


def read_study_file(source: str, overrides: list[str]) -> StudyFile:
    """A study file by preset name or path, with ``--set`` overrides laid over it.

    Raises:
        ConfigError: unknown preset (the nearest is suggested), missing file, or a fault in it.
    """
    return read_preset_or_file(StudyFile, source, presets(), overrides)


def run_study(directory: Path, file: StudyFile, workers: int, console: Console) -> list[Failure]:
    """Make every run of the study that is not made yet; return the jobs that failed.

    ``study.json`` stands before the first of them, see :func:`depthscale.studies.study_document.write_study`.
    """
    jobs, failed = [], []
    for cells in longest_first(file, file.study.cells()):
        group = [
            training_job(
                directory / RUNS / run_name(cell.arm, cell.rounds, seed, cell.budget), planned_run(file, cell, seed)
            )
            # Seed by seed, so that an early look at a half-made study already holds whole pairs.
            for seed in file.study.seeds
            for cell in cells
        ]
        failed += run_jobs(group, workers, console, file.study.name)
        jobs += group
    if file.study.tasks:
        trained = [job.directory for job in jobs if job.done]
        asked = [task_job(run_directory, file.study.tasks) for run_directory in trained]
        failed += run_jobs(asked, workers, console, f"{file.study.name}: tasks")
    return failed


def is_trained(directory: Path, file: StudyFile) -> bool:
    """Whether every run of the study is there and ended, so that neither corpus nor workers are needed.

    So it is where another trainer made the runs, on text that this machine need not have.
    """
    runs = [
        (directory / RUNS / run_name(cell.arm, cell.rounds, seed, cell.budget), cell, seed)
        for cell in file.study.cells()
        for seed in file.study.seeds
    ]
    return all(
        (path / CONFIG_FILE).exists() and training_job(path, planned_run(file, cell, seed)).done
        for path, cell, seed in runs
    )


def training_job(directory: Path, config: RunConfig) -> Job:
    """The job ``train`` of one run, with its configuration written into its directory.

    Raises:
        ResultError: the directory holds a run of another configuration.
    """
    keep_settings(directory / CONFIG_FILE, config)
    arguments = ("train", "--resume", "--run-dir", str(directory))
    cost = config.plan.build().unrolled_depth
    return Job(arguments, directory, result="training", steps=config.train.steps, cost_per_step=cost)


def task_job(run_directory: Path, tasks: Sequence[str]) -> Job:
    """The job that asks a finished run its downstream tasks: all of their items, at each task's usual shots."""
    asked = distinct_tasks(tasks)
    arguments = ("evaluate", str(run_directory), "--tasks", ",".join(asked))
    return Job(arguments, run_directory, result="tasks", steps=1, accept=lambda job: _asked_just_so(job, asked))


def _asked_just_so(job: Job, tasks: Sequence[str]) -> bool:
    """Whether the tasks result is of these tasks, whole; one by hand may hold others, a few items, or other shots."""
    try:
        found = read_result(job.directory, "tasks")
        usual = {shots for task in tasks for shots in usual_shots(task)}
        shown = {score["num_fewshot"] for score in found["scores"]}
        return found["tasks"] == list(tasks) and found["limit"] is None and shown == usual
    except (ResultError, LookupError, TypeError):
        # Damaged: it is written anew.
        return False

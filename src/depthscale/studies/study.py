"""A study from its file to its runs: ``study.json`` first, then the jobs, then nothing but what they wrote."""

from __future__ import annotations

import datetime
import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from depthscale.errors import ConfigError, ResultError, unknown_name
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides, write_toml
from depthscale.runs.files import atomic_write_text
from depthscale.runs.layout import CONFIG_FILE, STUDY_FILE
from depthscale.runs.results import read_result
from depthscale.runs.study_config import CellRate, StudyFile
from depthscale.runs.task_names import distinct_tasks, usual_shots
from depthscale.studies.engine import Failure, Job, run_jobs
from depthscale.studies.study_runs import STUDY_SCHEMA_VERSION, read_study_document, run_name

STOPPING_RULE = (
    "Every run of the listed cells and seeds is made once, to its last step or to its divergence. No run is added,"
    " repeated or left out after results are seen."
)


def presets() -> dict[str, Path]:
    """The study files that come with the package, by name."""
    folder = Path(str(importlib.resources.files("depthscale.studies") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_study_file(source: str, overrides: list[str]) -> StudyFile:
    """A study file by preset name or path, with ``--set`` overrides laid over it.

    Raises:
        ConfigError: unknown preset (the nearest is suggested), missing file, or a fault in it.
    """
    known = presets()
    path = known.get(source, Path(source))
    if source not in known and not path.suffix:
        raise ConfigError(unknown_name("preset", source, known))
    return validate(StudyFile, with_overrides(read_toml(path), overrides), str(path))


def write_study(directory: Path, file: StudyFile) -> dict[str, Any]:
    """Write ``study.json``, or check that the directory's own says the same.

    Raises:
        ResultError: the directory belongs to another study.
    """
    config = file.model_dump(mode="json", exclude_none=True)
    if (directory / STUDY_FILE).exists():
        document = read_study_document(directory)
        if document["config"] != config:
            raise ResultError(f"{directory} holds another study; choose another --out, or give that study's settings")
        return document
    document = {
        "kind": "study",
        "schema_version": STUDY_SCHEMA_VERSION,
        "name": file.study.name,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "stopping_rule": STOPPING_RULE,
        "config": config,
        "cells": [_cell(file, arm.name, rounds) for arm in file.study.arms for rounds in file.study.rounds],
        "later_additions": [],
    }
    atomic_write_text(directory / STUDY_FILE, json.dumps(document, indent=1) + "\n")
    return document


def run_study(directory: Path, file: StudyFile, workers: int, console: Console) -> list[Failure]:
    """Make every run of the study that is not made yet; return the jobs that failed."""
    write_study(directory, file)
    jobs = [
        training_job(directory / "runs" / run_name(arm.name, rounds, seed), file.run_config(arm.name, rounds, seed))
        # Seed by seed, so that an early look at a half-made study already holds whole pairs.
        for seed in file.study.seeds
        for rounds in file.study.rounds
        for arm in file.study.arms
    ]
    failed = run_jobs(jobs, workers, console, file.study.name)
    if file.study.tasks:
        trained = [job.directory for job in jobs if job.done]
        asked = [task_job(run_directory, file.study.tasks) for run_directory in trained]
        failed += run_jobs(asked, workers, console, f"{file.study.name}: tasks")
    return failed


def training_job(directory: Path, config: RunConfig) -> Job:
    """The job ``train`` of one run, with its configuration written into its directory.

    Raises:
        ResultError: the directory holds a run of another configuration.
    """
    path = directory / CONFIG_FILE
    if not path.exists():
        write_toml(path, config)
    elif validate(RunConfig, read_toml(path), str(path)) != config:
        raise ResultError(f"{directory} holds a run of other settings; choose another --out, or delete that folder")
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


def _cell(file: StudyFile, arm: str, rounds: int) -> dict[str, Any]:
    chosen: CellRate | None = file.cell_rate(arm, rounds)
    lr = file.run_config(arm, rounds, seed=file.study.seeds[0]).train.lr
    return {"arm": arm, "rounds": rounds, "lr": lr, "lr_source": chosen.source if chosen else "base configuration"}

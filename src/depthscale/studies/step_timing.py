"""Seconds of one training step of each cell, measured before a study begins by a short run of each."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from depthscale.errors import ResultError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.layout import METRICS_FILE
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result
from depthscale.runs.study_config import StudyFile
from depthscale.studies.engine import run_jobs
from depthscale.studies.gpus import visible_gpus
from depthscale.studies.study import training_job

#: Steps of a probe; the first ones warm caches up and are left out.
PROBE_STEPS = 24
_WARM = 8
PROBE_RATE = 1e-8


@dataclass(frozen=True)
class StepTimes:
    """What short runs measured.

    Attributes:
        seconds_per_step: the shortest of each cell's steps, the one least disturbed by whatever else the machine
            does, by cell without its budget.
        overhead_seconds: of one run beside its steps: starting, reading the data, the last evaluations, saving.
        workers: how many ran at a time.
        device: what each ran on, ``cpu`` or a GPU's name.
        share: of one core or GPU that each had, below 1 where they were fewer than the jobs at a time.
    """

    seconds_per_step: dict[CellKey, float]
    overhead_seconds: float
    workers: int
    device: str = "cpu"
    share: float = 1.0


def time_steps(file: StudyFile, cells: Sequence[CellKey], workers: int, console: Console) -> StepTimes:
    """Train every given cell for a few steps, ``workers`` at a time, and read off the seconds of a step.

    Raises:
        ResultError: a probe failed or diverged.
    """
    with tempfile.TemporaryDirectory(prefix="depthscale-probe-") as folder:
        jobs = []
        for index, cell in enumerate(cells):
            config = file.cell_config(cell, file.study.seeds[0])
            short = {"steps": PROBE_STEPS, "warmup_steps": 0, "log_every": 1, "eval_every": None, "branch_at": ()}
            # A step takes as long at any rate, and at this one no run diverges for want of its warm-up.
            train = config.train.model_copy(update={**short, "lr": PROBE_RATE})
            jobs.append(training_job(Path(folder) / str(index), config.model_copy(update={"train": train})))
        start = time.monotonic()
        failed = run_jobs(jobs, workers, console, f"{file.study.name}: probe")
        wall = time.monotonic() - start
        if failed:
            raise ResultError(f"a probe of {len(jobs)} cells failed with: {failed[0].reason}")
        devices = [read_result(job.directory, "training")["device"] for job in jobs if job.done]
        trained = [
            [r["seconds"] for r in read_metrics(job.directory / METRICS_FILE) if r["kind"] == "train"] for job in jobs
        ]
    for cell, times in zip(cells, trained, strict=True):
        if len(times) < PROBE_STEPS:
            raise ResultError(
                f"the probe of {cell.arm} at R = {cell.rounds} diverged after {len(times)} of {PROBE_STEPS} steps, from"
                " its initial weights alone; look at that arm's model and precision"
            )
    seconds = {
        cell: min(after - before for before, after in zip(times[_WARM:], times[_WARM + 1 :], strict=False))
        for cell, times in zip(cells, trained, strict=True)
    }
    busy = min(workers, len(jobs))
    overhead = max(0.0, busy * wall - sum(times[-1] for times in trained)) / len(jobs)
    units = len(visible_gpus()) or os.cpu_count() or 1
    return StepTimes(seconds, overhead, workers, devices[0], min(1.0, units / busy))

"""Jobs on this machine: each a verb of the command line in its own process, a few at a time.

Workers are forked from a server that has imported the slow libraries once, so that a job starts in a fraction of a
second and still is a process of its own. A job is done when its run directory holds its result; what is done is never
run again. Where the machine has GPUs, each running job sees one of them.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from depthscale.errors import RunInterruptedError
from depthscale.runs.interruption import graceful_interruption
from depthscale.runs.layout import LOG_FILE, METRICS_FILE
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import result_path
from depthscale.studies.gpus import visible_gpus

#: Imported once by the server that workers are forked from; a name that is not installed is passed over.
PRELOADED = ["torch", "transformers.trainer", "depthscale.training.run"]
#: How every error of the command line begins.
ERROR_PREFIX = "depthscale: "
#: Seconds a worker has to write its checkpoint after it was asked to end.
GRACE_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """One run of one verb.

    Attributes:
        arguments: words of the command line, after ``depthscale``.
        directory: run directory, where the result will lie.
        result: kind of the result that says the job is done.
        steps: how many steps it makes.
        cost_per_step: how much work a step is beside those of other jobs, for order and progress.
        accept: whether a result that is there is what this job would make; None takes any.
    """

    arguments: tuple[str, ...]
    directory: Path
    result: str
    steps: int
    cost_per_step: int = 1
    accept: Callable[[Job], bool] | None = None

    @property
    def done(self) -> bool:
        """Whether the result is there, and is the one that was asked for."""
        return result_path(self.directory, self.result).exists() and (self.accept is None or self.accept(self))

    @property
    def log(self) -> Path:
        """What its worker prints; each kind of result has its own, so that asking tasks keeps the training's."""
        return self.directory / (LOG_FILE if self.result == "training" else f"log-{self.result}.txt")

    @property
    def cost(self) -> int:
        """All of its work."""
        return self.steps * self.cost_per_step


@dataclass(frozen=True)
class Failure:
    """A job that ended without its result, and why in one line."""

    job: Job
    reason: str


def run_jobs(jobs: Sequence[Job], workers: int, console: Console, title: str) -> list[Failure]:
    """Run every job that is not done, ``workers`` at a time, longest first; return those that failed.

    A job that fails leaves its log in its directory and the others go on.

    Raises:
        RunInterruptedError: SIGINT or SIGTERM came; workers were asked to write a checkpoint and end.
    """
    waiting = sorted((job for job in jobs if not job.done), key=lambda job: -job.cost)
    failures: list[Failure] = []
    running: list[tuple[Job, ForkServerProcess, str | None]] = []
    gpus = visible_gpus()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # One thread each: two OpenMP teams on the same cores run several times slower. The server hands this down.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with graceful_interruption() as interruption, _Display(jobs, console, title) as display:
        try:
            while waiting or running:
                if interruption.signal_number is not None:
                    raise _interrupted(title, interruption.signal_number)
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    job.directory.mkdir(parents=True, exist_ok=True)
                    gpu = _idlest(gpus, [used for _, _, used in running])
                    process = context.Process(target=_run_verb, args=(job.arguments, job.log, gpu))
                    try:
                        process.start()
                    except (EOFError, OSError) as error:
                        # Ctrl-C at the terminal also ends a server that is still importing.
                        if interruption.signal_number is None:
                            raise
                        raise _interrupted(title, interruption.signal_number) from error
                    running.append((job, process, gpu))
                time.sleep(0.2)
                for entry in [entry for entry in running if not entry[1].is_alive()]:
                    job, process, _ = entry
                    process.join()
                    running.remove(entry)
                    failure = None if job.done else Failure(job, _reason(job, process.exitcode))
                    failures += [failure] if failure else []
                    display.ended(job, failure)
                display.update([job for job, _, _ in running])
        finally:
            _end([process for _, process, _ in running])
    return failures


def _idlest(gpus: Sequence[str], used: Sequence[str | None]) -> str | None:
    """The GPU on which the fewest jobs run."""
    return min(gpus, key=used.count, default=None)


def _interrupted(title: str, signal_number: int) -> RunInterruptedError:
    return RunInterruptedError(
        f"{title} interrupted; finished runs are kept: give the same command again to go on", signal_number
    )


def _reason(job: Job, exit_code: int | None) -> str:
    """Why a job has no result: the signal that killed it, or the error it printed last."""
    if exit_code is not None and exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    path = job.log
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    said = [line for line in lines if line.startswith(ERROR_PREFIX)]
    return said[-1].removeprefix(ERROR_PREFIX) if said else f"exit code {exit_code}; see {path}"


def _run_verb(arguments: tuple[str, ...], log: Path, gpu: str | None) -> None:
    """In the worker: the command line, with its output in the job's log, on one GPU where there is any."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    # A process group of its own: Ctrl-C at the terminal reaches the study, which then asks its workers to end.
    os.setpgid(0, 0)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    sys.argv = ["depthscale", *arguments]
    runpy.run_module("depthscale", run_name="__main__")


def _end_with_parent(parent: int) -> None:
    """A study that is killed takes its workers along; each writes its checkpoint first."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _end(processes: Iterable[ForkServerProcess]) -> None:
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        if process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for process in alive:
        process.join(max(0.1, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


class _Display:
    """A bar on a terminal; elsewhere one line per finished job."""

    def __init__(self, jobs: Sequence[Job], console: Console, title: str) -> None:
        self.jobs = list(jobs)
        self.console = console
        self.title = title
        self.done = sum(job.cost for job in jobs if job.done)
        self.num_ended = sum(job.done for job in jobs)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[runs]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(title, total=sum(job.cost for job in jobs), runs="")

    def __enter__(self) -> _Display:
        self.progress.start()
        self.update([])
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def update(self, running: Sequence[Job]) -> None:
        """Count the steps of running jobs as they are written."""
        if not self.console.is_terminal:
            return
        begun = sum(_steps_written(job) * job.cost_per_step for job in running)
        self.progress.update(self.task, completed=self.done + begun, runs=f"{self.num_ended}/{len(self.jobs)} runs")

    def ended(self, job: Job, failure: Failure | None) -> None:
        """Count a job that ended; say so where there is no bar, and in any case if it failed."""
        self.done += job.cost
        self.num_ended += 1
        if failure or not self.console.is_terminal:
            state = f"failed: {failure.reason}" if failure else "done"
            line = f"{self.title}: {self.num_ended}/{len(self.jobs)} {job.directory.name} {state}"
            self.console.print(line, markup=False, soft_wrap=True)


def _steps_written(job: Job) -> int:
    # Tasks are asked of a finished run, whose metrics are those of its training.
    if job.result == "tasks":
        return 0
    path = job.directory / METRICS_FILE
    records = read_metrics(path) if path.exists() else []
    return int(records[-1].get("step", 0)) if records else 0

"""The engine and the tuning rule, with jobs that need no training."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from depthscale.errors import RunInterruptedError
from depthscale.runs.comparison_config import CellKey
from depthscale.studies import engine
from depthscale.studies.engine import Job, run_jobs
from depthscale.studies.gpus import default_workers, visible_gpus
from depthscale.studies.study import presets, read_study_file
from depthscale.studies.study_document import write_study
from depthscale.studies.tuning import best_rate, extended

QUIET = Console(quiet=True)


def failing_job(directory: Path) -> Job:
    return Job(("train", "--run-dir", str(directory), "none.toml"), directory, "training", steps=1)


def test_a_failed_job_is_named_with_its_last_line_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = [failing_job(tmp_path / "a"), failing_job(tmp_path / "b")]
    failed = run_jobs(jobs, workers=2, console=QUIET, title="test")
    assert {failure.job.directory.name for failure in failed} == {"a", "b"}
    assert "no configuration at none.toml" in failed[0].reason


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    job = failing_job(tmp_path / "a")
    (tmp_path / "a" / "results").mkdir(parents=True)
    (tmp_path / "a" / "results" / "training.json").write_text("{}")
    assert job.done
    assert run_jobs([job], workers=1, console=QUIET, title="test") == []
    assert not (tmp_path / "a" / "log.txt").exists()


def test_tasks_leave_the_trainings_log_and_metrics_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 400}\n')
    training, asked = Job((), tmp_path, "training", steps=400), Job((), tmp_path, "tasks", steps=1)
    assert training.log == tmp_path / "log.txt"
    assert asked.log == tmp_path / "log-tasks.txt"
    assert engine._steps_written(training) == 400
    assert engine._steps_written(asked) == 0


def sleep_long(arguments: tuple[str, ...], log: Path, gpu: str | None) -> None:
    log.write_text("started")
    time.sleep(600)


def test_an_interrupted_study_ends_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_run_verb", sleep_long)
    monkeypatch.setattr(engine, "PRELOADED", [])
    job = failing_job(tmp_path / "a")

    def interrupt_once_it_runs() -> None:
        while not (tmp_path / "a" / "log.txt").exists():
            time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt_once_it_runs, daemon=True).start()
    with pytest.raises(RunInterruptedError, match="finished runs are kept"):
        run_jobs([job, failing_job(tmp_path / "b")], workers=1, console=QUIET, title="test")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_server_that_ctrl_c_ended_while_it_imported_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    def fail_to_start(process: ForkServerProcess) -> None:
        if interrupted:
            signal.raise_signal(signal.SIGINT)
        raise EOFError

    monkeypatch.setattr(ForkServerProcess, "start", fail_to_start)
    with pytest.raises(RunInterruptedError if interrupted else EOFError):
        run_jobs([failing_job(tmp_path / "a")], workers=1, console=QUIET, title="test")


def die(arguments: tuple[str, ...], log: Path, gpu: str | None) -> None:
    log.write_text("all was well")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_named_by_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_run_verb", die)
    monkeypatch.setattr(engine, "PRELOADED", [])
    (failure,) = run_jobs([failing_job(tmp_path / "a[/x]")], workers=1, console=Console(file=io.StringIO()), title="t")
    assert failure.reason == "killed by SIGKILL"


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6, unique=True))
def test_an_extended_grid_keeps_its_points_and_puts_the_best_inside(grid: list[float]) -> None:
    grid = sorted(grid)
    for best in (grid[0], grid[-1]):
        wider = extended(grid, best)
        assert sorted(wider) == wider
        assert set(grid) < set(wider)
        assert best not in (wider[0], wider[-1])


def test_the_best_rate_prefers_the_smaller_of_equals_and_never_a_diverged_one() -> None:
    assert best_rate([1e-3, 2e-3, 4e-3], [2.0, 1.5, 1.5]) == 2e-3
    assert best_rate([1e-3, 2e-3], [2.0, float("inf")]) == 1e-3


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid_and_its_study_is_written_once(name: str, tmp_path: Path) -> None:
    file = read_study_file(name, [])
    document = write_study(tmp_path, file)
    assert write_study(tmp_path, file) == document
    assert len(document["cells"]) == len(file.study.cells())
    tuned = {cell["lr_source"] for cell in document["cells"]} != {"base configuration"}
    assert tuned or file.study.tuning is not None, "tune it and say where, or bring the grid for --tune"


def test_the_small_study_holds_every_arm_of_the_design_at_36_visits() -> None:
    study = (file := read_study_file("small", [])).study
    design = {"pre", "post", "deepnorm", "deeploop", "deeploop_sandwich", "inverse_rounds", "loop_matched",
              "power_0.375", "alpha_only", "beta_only", "stacked", "pre_again"}  # fmt: skip
    looped = {cell.arm: file.cell_config(cell, study.seeds[0]) for cell in study.cells() if cell.rounds == 18}
    assert design <= set(looped)
    assert {len(looped[arm].stated_plan().visits) for arm in design} == {36}
    assert len(study.seeds) >= 5, "a verdict needs five pairs"
    assert study.tuning is not None


def test_small_tokens_reaches_20_and_100_tokens_per_parameter() -> None:
    study = (file := read_study_file("small-tokens", [])).study
    parameters = 34_944  # of two pre-norm blocks of width 32 (docs/results/small)
    train = [file.cell_config(CellKey("pre", 18, budget), study.seeds[0]).train for budget in study.budgets]
    ratios = [t.steps * t.batch_rows * file.data["context_length"] / parameters for t in train]
    assert ratios == pytest.approx([20, 100], rel=0.01)
    assert ratios[-1] >= 100


class _Pretended:
    """A process that is looked at ``looks`` times before it has ended."""

    exitcode = 1

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def join(self) -> None:
        pass


@pytest.mark.parametrize(
    ("build", "visible", "driver", "expected"),
    [
        ("2.13.0", None, None, ()),
        ("2.13.0", None, "0\n1\n", ("0", "1")),
        ("2.13.0", "GPU-a, GPU-b", "0\n1\n2\n", ("GPU-a", "GPU-b")),
        ("2.13.0", "", "0\n1\n", ()),
        ("2.13.0+cpu", None, "0\n1\n", ()),
    ],
)
def test_gpus_are_those_that_torch_may_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    build: str,
    visible: str | None,
    driver: str | None,
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _package: build)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("PATH", str(tmp_path))
    if driver is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nprintf '{driver}'\n")
        tool.chmod(0o755)
    assert visible_gpus() == expected
    assert default_workers() == (len(expected) or os.cpu_count())


@pytest.mark.parametrize(
    ("gpus", "workers", "looks", "expected"),
    [
        ((), 2, [0, 0, 0], [None, None, None]),
        (("0",), 2, [0, 0, 0], ["0", "0", "0"]),
        # The job on a goes on while that on b ends: the third takes b.
        (("a", "b"), 2, [9, 0, 0], ["a", "b", "b"]),
        (("a", "b"), 2, [0, 9, 0], ["a", "b", "a"]),
        # Three at a time: the fourth goes where one job runs less.
        (("a", "b"), 3, [9, 0, 9, 0], ["a", "b", "a", "b"]),
    ],
)
def test_a_job_runs_on_the_gpu_with_the_fewest_jobs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[str, ...],
    workers: int,
    looks: list[int],
    expected: list[str | None],
) -> None:
    monkeypatch.setattr(engine, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(engine.time, "sleep", lambda _seconds: None)
    given: list[str | None] = []

    class Context:
        def set_forkserver_preload(self, _modules: list[str]) -> None:
            pass

        def Process(self, target: object, args: tuple[object, object, str | None]) -> _Pretended:
            given.append(args[2])
            return _Pretended(looks[len(given) - 1])

    monkeypatch.setattr("multiprocessing.get_context", lambda _method: Context())
    run_jobs([failing_job(tmp_path / str(index)) for index in range(len(looks))], workers, QUIET, "test")
    assert given == expected


def test_a_worker_sees_the_gpu_it_was_given(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from depthscale.studies.engine import _run_verb\n"
        "try:\n    _run_verb(('--help',), pathlib.Path(sys.argv[1]), '3')\n"
        "finally:\n    print('sees', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    )
    log = tmp_path / "log.txt"
    subprocess.run([sys.executable, "-c", code, str(log)], check=False)
    assert "sees 3" in log.read_text(encoding="utf-8")

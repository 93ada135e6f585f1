"""What a person sees while work goes on: a bar on a terminal, plain lines or nothing elsewhere."""

import io
import time
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from depthscale.runs.metrics import append_metric
from depthscale.studies.engine import Failure, Job, _Display
from depthscale.training.progress import ProgressBar


def drive(bar: ProgressBar) -> None:
    state = SimpleNamespace(max_steps=10, global_step=0)
    bar.on_train_begin(None, state, None)  # type: ignore[arg-type]
    for step in range(1, 11):
        time.sleep(0.02)
        state.global_step = step
        bar.on_step_end(None, state, None)  # type: ignore[arg-type]
        bar.on_log(None, state, None, logs={"loss": 3.21})  # type: ignore[arg-type]
    bar.on_train_end(None, state, None)  # type: ignore[arg-type]


def test_a_run_on_a_terminal_shows_loss_speed_and_time_left() -> None:
    screen = io.StringIO()
    drive(ProgressBar(Console(file=screen, force_terminal=True, width=120), tokens_per_step=1000))
    shown = screen.getvalue()
    assert "10/10" in shown
    assert "loss 3.210" in shown
    assert "tokens/s" in shown
    assert "0:00:0" in shown


def test_a_run_elsewhere_shows_nothing() -> None:
    screen = io.StringIO()
    drive(ProgressBar(Console(file=screen), tokens_per_step=1000))
    assert screen.getvalue() == ""


def jobs(tmp_path: Path) -> list[Job]:
    return [Job((), tmp_path / name, "training", steps=100, cost_per_step=cost) for name, cost in (("a", 8), ("b", 2))]


def test_a_study_counts_begun_steps_at_what_they_cost(tmp_path: Path) -> None:
    first, second = jobs(tmp_path)
    append_metric(first.directory / "metrics.jsonl", {"step": 50})
    with _Display([first, second], Console(file=io.StringIO(), force_terminal=True), "study") as display:
        display.update([first])
        assert display.progress.tasks[0].completed == 50 * 8
        assert display.progress.tasks[0].total == 100 * 8 + 100 * 2
        display.ended(first, None)
        display.update([])
        assert display.progress.tasks[0].completed == 100 * 8


def test_a_study_elsewhere_says_a_line_per_run_and_every_failure(tmp_path: Path) -> None:
    screen = io.StringIO()
    first, second = jobs(tmp_path)
    with _Display([first, second], Console(file=screen, width=40), "study") as display:
        display.ended(first, None)
        display.ended(second, Failure(second, "corpus '/nope[/b]' does not exist, " + "and more " * 9))
    done, failed = screen.getvalue().splitlines()
    assert done == "study: 1/2 a done"
    assert failed.startswith("study: 2/2 b failed: corpus '/nope[/b]' does not exist")

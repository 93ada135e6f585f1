"""When a training loss means divergence, before and after a run goes on from a checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

from tiny_run import tiny_config

from depthscale.runs.interruption import Interruption
from depthscale.runs.metrics import append_metric, first_finite_loss, read_metrics
from depthscale.runs.outcome import divergence_reason
from depthscale.training.recorder import TrainingRecorder


def test_a_loss_beyond_the_factor_is_said_with_its_start() -> None:
    reason = divergence_reason(31.0, first=10.0, factor=3.0)
    assert reason == "training loss 31 exceeds 3 times its start, 10"


def test_without_a_start_or_below_the_factor_nothing_diverged() -> None:
    assert divergence_reason(30.0, first=10.0, factor=3.0) is None
    assert divergence_reason(1e9, first=None, factor=3.0) is None


def test_a_run_that_goes_on_measures_from_the_first_loss_that_was_a_number(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    for step, loss in enumerate((math.nan, 4.0, 3.0), start=1):
        append_metric(metrics, {"step": step, "kind": "train", "loss_nats": loss, "seconds": 1.0 * step})
    append_metric(metrics, {"step": 3, "kind": "evaluation", "loss_nats": 2.0})
    assert first_finite_loss(read_metrics(metrics)) == 4.0
    assert first_finite_loss([{"kind": "train", "loss_nats": None}]) is None
    recorder = TrainingRecorder(tiny_config(tmp_path).train, metrics, 256, Interruption())
    recorder.go_on_from(3)
    assert recorder.first_loss == 4.0
    assert recorder.seconds_before == 3.0

"""Subnormal numbers: flushed while a run trains, the mode given back, the run's speed no prey to vanished gradients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import make_run

from depthscale.training.subnormals import flushed_subnormals
from depthscale.training.trainer import LoopedTrainer

pytestmark = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")


def half_of_the_smallest() -> float:
    return (torch.tensor([torch.finfo(torch.float32).tiny]) / 2).item()


@pytest.fixture(params=[False, True])
def mode_before(request: pytest.FixtureRequest) -> Iterator[bool]:
    torch.set_flush_denormal(request.param)
    yield request.param
    torch.set_flush_denormal(False)


def test_they_are_zero_inside_and_the_mode_is_given_back(mode_before: bool) -> None:
    inside = []

    def fail() -> None:
        with flushed_subnormals():
            inside.append(half_of_the_smallest())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [0.0]
    assert (half_of_the_smallest() == 0) is mode_before


def test_a_backward_pass_flushes_them_too() -> None:
    weight = torch.tensor([1e-30], requires_grad=True)
    with flushed_subnormals():
        (weight * 1e-15 * 1e-25).backward()
    assert weight.grad is not None
    assert weight.grad.item() == 0


def test_a_run_trains_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    step = LoopedTrainer.training_step

    def watched(self: LoopedTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(half_of_the_smallest())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(LoopedTrainer, "training_step", watched)
    make_run(tmp_path, "train.steps=2")
    assert seen == [0.0, 0.0]
    assert half_of_the_smallest() > 0

"""What one of several processes does that train together; what it sees is judged in test_distributed.py."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from processes import report
from safetensors.torch import load_file
from tiny_run import UNEVEN, tiny_config
from transformers import TrainerCallback

from depthscale.runs.metrics import read_metrics
from depthscale.training.run import train_run
from depthscale.training.trainer import LoopedTrainer


def folder() -> Path:
    """Where the test wants its files; asked for late, since collecting the tests imports this module."""
    return Path(sys.argv[1]).parent


def losses(directory: Path) -> list[float]:
    return [record["loss_nats"] for record in read_metrics(directory / "metrics.jsonl") if record["kind"] == "train"]


class Crash(TrainerCallback):
    """Loses every process at a step, as a power cut would."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5:
            raise ZeroDivisionError("power cut")


class BadGradient(TrainerCallback):
    """Makes the second process's gradient infinite at the third step, and watches weights and moments there."""

    def __init__(self) -> None:
        self.at_step = -1
        self.before: list[torch.Tensor] = []
        self.unchanged: bool | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.state = state
        if dist.get_rank() == 1:
            parameter = next(iter(kwargs["model"].parameters()))
            parameter.register_hook(lambda gradient: gradient * torch.inf if self.state.global_step == 2 else gradient)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            self.before = self._everything(**kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            after = self._everything(**kwargs)
            self.unchanged = all(torch.equal(a, b) for a, b in zip(self.before, after, strict=True))

    @staticmethod
    def _everything(model: Any, optimizer: Any, **rest: Any) -> list[torch.Tensor]:
        moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "step")]
        return [tensor.detach().clone() for tensor in [*model.parameters(), *moments]]


def with_callback(callback: TrainerCallback, config: Any, directory: Path) -> Any:
    original = LoopedTrainer.__init__

    def extended(self: LoopedTrainer, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.add_callback(callback)

    LoopedTrainer.__init__ = extended  # type: ignore[method-assign]
    try:
        return train_run(config, directory)
    except ZeroDivisionError:
        return None
    finally:
        LoopedTrainer.__init__ = original  # type: ignore[method-assign]


def everywhere(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def bad_gradient() -> dict[str, Any]:
    callback = BadGradient()
    result = with_callback(
        callback,
        tiny_config(folder(), "train.steps=5", "train.log_every=1", "train.checkpoint_every=1"),
        folder() / "bad",
    )
    return {
        "unchanged": everywhere(callback.unchanged),
        "counted": everywhere(result["optimization"]["steps_non_finite"]),
        "outcome": result["outcome"],
        "last_weights_finite": all(
            bool(tensor.isfinite().all())
            for tensor in load_file(folder() / "bad" / "checkpoint" / "model.safetensors").values()
        ),
    }


def shared_weights() -> dict[str, list[float]]:
    """Five steps of everything that calls a block again: visits, recomputation, drawn rounds, truncated loops."""
    found = {}
    drawn = ("train.rounds.distribution=uniform", "train.rounds.maximum=4")
    truncated = ("plan.prelude=1", "plan.grad_rounds=2")
    for name, more in (
        ("static", ("train.checkpoint_visits=true",)),
        ("random", ("train.checkpoint_visits=true", *drawn)),
        ("truncated", ("train.checkpoint_visits=true", *truncated, *drawn)),
        ("truncated without checkpoints", truncated),
    ):
        train_run(tiny_config(folder(), "train.steps=5", "train.log_every=1", *more), folder() / name)
        found[name] = losses(folder() / name)
    return found


def save_and_evaluate() -> dict[str, Any]:
    every = ("train.checkpoint_every=2", "train.eval_every=2", "train.log_alignment_every=2", "train.log_every=1")
    config = tiny_config(folder(), "train.steps=6", *every)
    train_run(config, folder() / "unbroken")
    with_callback(Crash(), config, folder() / "broken")
    kept = sorted(path.name for path in (folder() / "broken" / "training_state").glob("checkpoint-*"))
    result = train_run(config, folder() / "broken", resume=True)
    kinds = [record["kind"] for record in read_metrics(folder() / "unbroken" / "metrics.jsonl")]
    return {
        "kinds": {kind: kinds.count(kind) for kind in set(kinds)},
        "unbroken": losses(folder() / "unbroken"),
        "resumed": losses(folder() / "broken"),
        "kept": kept,
        "counted_as_resumed": result["resumed"],
        "files": sorted(path.name for path in (folder() / "unbroken").iterdir()),
    }


def quick_observations() -> dict[str, Any]:
    os.environ["DEPTHSCALE_CACHE"] = str(folder() / "cache")
    train_run(tiny_config(folder(), *UNEVEN, "train.batch_rows=4"), folder() / "two")
    return {"bad_gradient": bad_gradient()}


def slow_observations() -> dict[str, Any]:
    os.environ["DEPTHSCALE_CACHE"] = str(folder() / "cache")
    return {"save_and_evaluate": save_and_evaluate(), "shared_weights": shared_weights()}


if __name__ == "__main__":
    report(slow_observations)

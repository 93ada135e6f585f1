"""Two gloo processes that train together, against one: losses, skipped steps, checkpoints, and that they end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_worker import losses
from processes import observe
from safetensors.torch import load_file
from tiny_run import UNEVEN, make_run, tiny_config
from transformers import TrainerCallback

from depthscale.errors import ConfigError
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result
from depthscale.training.run import train_run
from depthscale.training.trainer import LoopedTrainer, checkpoints


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    """Beside what two processes leave there, a run of eight rows at once and one of eight times one row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPTHSCALE_CACHE", str(shared_folder / "cache"))
        train_run(tiny_config(shared_folder, *UNEVEN, "train.batch_rows=8"), shared_folder / "at_once")
        train_run(
            tiny_config(shared_folder, *UNEVEN, "train.batch_rows=1", "train.accumulation=8"),
            shared_folder / "one_by_one",
        )
    return shared_folder


@pytest.fixture
def seen(folder: Path, two_processes: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = two_processes["training"]
    return found


def require_alike(folder: Path, name: str) -> None:
    assert losses(folder / name) == pytest.approx(losses(folder / "at_once"), rel=2e-6)
    weights, expected = (load_file(folder / run / "checkpoint" / "model.safetensors") for run in (name, "at_once"))
    for key, tensor in expected.items():
        torch.testing.assert_close(weights[key], tensor, rtol=1e-4, atol=1e-5)
    evaluated, at_once = (read_result(folder / run, "training") for run in (name, "at_once"))
    assert evaluated["tokens"] == at_once["tokens"]
    assert evaluated["final"]["report"]["loss_nats"] == pytest.approx(at_once["final"]["report"]["loss_nats"], rel=1e-5)


def test_accumulation_leaves_the_loss_as_it_is(folder: Path) -> None:
    """Public fault: accumulated means of uneven rows, transformers issue 35203."""
    require_alike(folder, "one_by_one")
    rows = [json.loads(line) for line in (folder / "at_once" / "metrics.jsonl").read_text().splitlines()]
    assert len({row["loss_nats"] for row in rows if row["kind"] == "train"}) == 5


def test_two_processes_leave_the_loss_as_it_is(folder: Path, seen: dict[str, Any]) -> None:
    """Public fault: means of unevenly masked processes, transformers issue 37766."""
    require_alike(folder, "two")
    assert read_result(folder / "two", "training")["optimization"]["num_processes"] == 2


def test_a_bad_gradient_of_one_process_is_skipped_by_all(seen: dict[str, Any]) -> None:
    """Public fault: a bad gradient on one rank, torchtitan pull request 4226."""
    found = seen["bad_gradient"]
    assert found["unchanged"] == [True, True]
    assert found["counted"] == [1, 1]
    assert found["last_weights_finite"]


@pytest.fixture(scope="module")
def slowly_seen(shared_folder: Path) -> dict[str, Any]:
    return observe(Path(__file__).with_name("distributed_worker.py"), shared_folder / "slow.json")


@pytest.mark.slow
def test_saving_and_evaluating_every_other_step_ends_and_resumes(slowly_seen: dict[str, Any]) -> None:
    """Public fault: a save of the first process only hangs, autocast pull request 386."""
    found = slowly_seen["save_and_evaluate"]
    assert found["kinds"] == {"train": 6, "evaluation": 3, "groups": 3, "visits": 4, "alignment": 4}
    assert found["kept"] == ["checkpoint-2", "checkpoint-4"]
    assert found["resumed"] == found["unbroken"]
    assert found["counted_as_resumed"] == 1
    assert found["files"] == ["checkpoint", "config.toml", "metrics.jsonl", "results"]


@pytest.mark.slow
def test_shared_weights_train_with_recomputation_and_drawn_rounds(slowly_seen: dict[str, Any]) -> None:
    """Public fault: a parameter 'marked ready twice', longformer issue 63."""
    runs = slowly_seen["shared_weights"]
    assert set(runs) == {"static", "random", "truncated", "truncated without checkpoints"}
    for name, found in runs.items():
        assert len(found) == 5, name
        assert found[-1] < found[0], name


def test_weights_that_are_not_finite_never_replace_a_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoil(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                next(iter(kwargs["model"].parameters())).data[0, 0] = torch.nan

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 4:
                raise ZeroDivisionError("power cut")

    original = LoopedTrainer.__init__

    def spoiled(self: LoopedTrainer, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.add_callback(Spoil())

    monkeypatch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    config = tiny_config(folder, "train.steps=6", "train.checkpoint_every=1", "train.log_every=1")
    with monkeypatch.context() as patch:
        patch.setattr(LoopedTrainer, "__init__", spoiled)
        with pytest.raises(ZeroDivisionError):
            train_run(config, tmp_path / "run")
    assert [path.name for path in checkpoints(tmp_path / "run" / "training_state")] == ["checkpoint-1", "checkpoint-2"]
    resumed = train_run(config, tmp_path / "run", resume=True)
    assert resumed["step"] == 6
    assert resumed["optimization"]["steps_non_finite"] == 0


def test_a_wish_for_fsdp_that_accelerate_would_ignore_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"depthscale\.shard_looped"):
        make_run(tmp_path)


@pytest.mark.slow
def test_the_command_line_under_torchrun(folder: Path) -> None:
    """As the recipes say it: torchrun --nproc_per_node 2 -m depthscale train."""
    (folder / "config.toml").write_text((folder / "at_once" / "config.toml").read_text())
    options = ["--set", "train.batch_rows=4", "--set", "train.checkpoint_every=2", "--set", "train.eval_every=2"]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "depthscale"]
    arguments = ["train", str(folder / "config.toml"), "--run-dir", str(folder / "torchrun"), *options]
    environment = os.environ | {"DEPTHSCALE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*run, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("on the report split") == 1
    records = read_metrics(folder / "torchrun" / "metrics.jsonl")
    assert [record["step"] for record in records if record["kind"] == "evaluation"] == [2, 4, 5]
    require_alike(folder, "torchrun")

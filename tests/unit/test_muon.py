"""``train.optimizer = "muon"``: which weights it steps, that it is torch's, and that a resumed run is the unbroken."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import make_run, write_corpus
from torch.optim import AdamW, Muon
from transformers import TrainerCallback

from depthscale.errors import ConfigError
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result
from depthscale.runs.train_config import TrainConfig
from depthscale.training.model import model_config
from depthscale.training.optimizers import MuonAndAdamW, build_optimizer
from depthscale.training.parameter_groups import named_parameters_once, role
from depthscale.training.run import train_run
from depthscale.training.tokenizer import byte_tokenizer
from depthscale.training.trainer import LoopedTrainer

MATRICES = ("query_key", "value_output", "mlp")


def make_config(*overrides: str) -> RunConfig:
    tables = {
        "plan": {"blocks": 2, "rounds": 3, "prelude": 1},
        "model": {"hidden_size": 32, "num_attention_heads": 2, "qk_norm": True},
        "train": {"steps": 10, "batch_rows": 4, "lr": 1e-2, "optimizer": "muon", "weight_decay": 0.1},
    }
    return validate(RunConfig, with_overrides(tables, overrides), "test")


def make_model(config: RunConfig) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    return LoopedLMForCausalLM(model_config(config, byte_tokenizer(), 257))


def backward(model: LoopedLMForCausalLM, seed: int) -> None:
    tokens = torch.randint(257, (2, 8), generator=torch.Generator().manual_seed(seed))
    model(tokens, labels=tokens).loss.backward()


def test_matrices_of_blocks_go_to_muon_and_all_else_to_adamw() -> None:
    config = make_config("model.tie_word_embeddings=false")
    model = make_model(config)
    optimizer = build_optimizer(model, config.train)
    assert isinstance(optimizer, MuonAndAdamW)
    backward(model, 0)
    optimizer.step()
    for name, parameter in named_parameters_once(model):
        expected = {"momentum_buffer"} if role(name) in MATRICES else {"step", "exp_avg", "exp_avg_sq"}
        assert set(optimizer.state[parameter]) == expected, name


def test_it_is_torchs_muon_and_torchs_adamw() -> None:
    config = make_config()
    together, apart = make_model(config), make_model(config)
    optimizer = build_optimizer(together, config.train)
    named = list(named_parameters_once(apart))
    matrices = [p for n, p in named if role(n) in MATRICES]
    embedding, gains = ([p for n, p in named if role(n) == kind] for kind in ("embedding", "norm"))
    parts = (
        Muon(matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        AdamW(embedding, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95), fused=True),
        AdamW(gains, lr=1e-2, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    )
    for step in range(3):
        backward(together, step)
        backward(apart, step)
        optimizer.step()
        optimizer.zero_grad()
        for part in parts:
            part.step()
            part.zero_grad()
    for ours, theirs in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_schedulers_and_multipliers_reach_both_parts() -> None:
    config = make_config("model.rule=inverse_rounds")
    model = make_model(config)
    multipliers = {float(scales["lr_multiplier"]) for scales in model.config.residual_scales}
    optimizer = build_optimizer(model, config.train)
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2, *(1e-2 * m for m in multipliers)}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    backward(model, 0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("optimizer_name", ["muon", "adamw"])
@pytest.mark.parametrize("rounds", [1, 5])
def test_a_tied_weight_decays_once_however_often_it_is_visited(optimizer_name: str, rounds: int) -> None:
    config = make_config(f"plan.rounds={rounds}", f"train.optimizer={optimizer_name}")
    model = make_model(config)
    optimizer = build_optimizer(model, config.train)
    before = {name: parameter.detach().clone() for name, parameter in named_parameters_once(model)}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in named_parameters_once(model):
        factor = 1.0 if role(name) == "norm" else 1 - 1e-2 * 0.1
        torch.testing.assert_close(parameter, factor * before[name], rtol=1e-6, atol=0)


def test_a_state_is_taken_up_exactly() -> None:
    config = make_config()
    first, second = make_model(config), make_model(config)
    one, other = build_optimizer(first, config.train), build_optimizer(second, config.train)
    for step in range(2):
        backward(first, step)
        one.step()
        one.zero_grad()
    second.load_state_dict(first.state_dict())
    # torch takes tensors over as they are; a checkpoint's are its own.
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for step in range(2, 4):
        for model, optimizer in ((first, one), (second, other)):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


class Crash(TrainerCallback):
    """Ends training as a power cut would."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5:
            raise ZeroDivisionError("power cut")


def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    overrides = ("train.optimizer=muon", "train.steps=7", "train.checkpoint_every=3", "train.log_every=1")
    run = make_run(tmp_path, *overrides)
    config = validate(RunConfig, read_toml(run / "config.toml"), "test")
    original = LoopedTrainer.__init__

    def with_crash(self: LoopedTrainer, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.add_callback(Crash())

    with monkeypatch.context() as patch:
        patch.setattr(LoopedTrainer, "__init__", with_crash)
        with pytest.raises(ZeroDivisionError):
            train_run(config, tmp_path / "broken")
    train_run(config, tmp_path / "broken", resume=True)
    traces = [
        [(r["step"], r["loss_nats"]) for r in read_metrics(folder / "metrics.jsonl") if r["kind"] == "train"]
        for folder in (run, tmp_path / "broken")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0]) == 7
    ours, theirs = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (run, tmp_path / "broken"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    said = read_result(run, "training")["optimization"]
    assert said["optimizer"] == "muon"
    assert "once per step on a tied weight" in said["weight_decay_rule"]


def test_muon_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path / "corpus")
    run = make_run(
        tmp_path, "train.optimizer=muon", "train.steps=60", "train.lr=2e-2", "model.norm_placement=pre",
        "model.rule=unscaled", "train.log_every=1",
    )  # fmt: skip
    result = read_result(run, "training")
    assert result["final"]["report"]["loss_nats"] < result["unigram_loss_nats"]["report"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"optimizer": "muom"}, "'adamw' or 'muon'"),
        ({"muon_momentum": 0.9}, "optimizer 'adamw' ignores muon_momentum"),
        ({"optimizer": "muon", "muon_momentum": 1.0}, "train.muon_momentum = 1.0"),
        ({"global_batch_rows": 6, "batch_rows": 4}, "6 is no multiple of batch_rows 4 x 1 process = 4; .*of 6"),
        ({"global_batch_rows": 8, "accumulation": 2}, "came with accumulation 2, which follows from it"),
        ({"global_batch_rows": 2, "batch_rows": 4}, "2 is no multiple of batch_rows 4"),
    ],
)
def test_bad_input_is_one_line(train: dict[str, Any], message: str) -> None:
    tables = make_config().model_dump(exclude_none=True)
    tables["train"] |= {"optimizer": "adamw"} | train
    with pytest.raises(ConfigError, match=message) as caught:
        validate(RunConfig, tables, "test")
    assert "\n" not in str(caught.value)


def test_the_global_batch_is_shared_by_the_processes() -> None:
    train = TrainConfig(steps=1, lr=1.0, batch_rows=12, global_batch_rows=480)
    assert [train.accumulation_over(n) for n in (1, 2, 4, 5, 8)] == [40, 20, 10, 8, 5]
    assert {train.rows_per_step(n) for n in (1, 2, 4, 5, 8)} == {480}
    with pytest.raises(ConfigError, match=r"12 x 16 processes = 192; choose batch_rows among the divisors of 30"):
        train.accumulation_over(16)
    with pytest.raises(ConfigError, match=r"7 processes cannot share 480 rows evenly"):
        train.accumulation_over(7)
    assert TrainConfig(steps=1, lr=1.0, batch_rows=2, accumulation=3).rows_per_step(4) == 24

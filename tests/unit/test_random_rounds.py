"""Random rounds in training: the law, the same draw for a whole step, resume, compute, gradients and compilation."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from depthscale.budget import ModelShape, flops_per_token
from depthscale.errors import ConfigError
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.loss import next_token_loss
from depthscale.residual import apply_rule
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides
from depthscale.runs.metrics import read_metrics
from depthscale.runs.train_config import RandomRounds
from depthscale.training import run as run_module
from depthscale.training.model import model_config
from depthscale.training.prepare import prepare_data
from depthscale.training.random_rounds import draw_rounds, rounds_probabilities
from depthscale.training.run import train_run
from depthscale.training.trainer import LoopedTrainer

torch.set_num_threads(1)

LAW = "train.rounds={distribution='poisson_lognormal', mean=3, sigma=0.5, minimum=1, maximum=6}"


# -- the law ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [
        RandomRounds(mean=8, sigma=0.5, minimum=1, maximum=32),
        RandomRounds(mean=4, sigma=0.0, maximum=40),
        RandomRounds(mean=3, minimum=2, maximum=5),
        RandomRounds(distribution="uniform", minimum=2, maximum=5),
        RandomRounds(mean=2, minimum=2, maximum=2),
    ],
)
def test_draws_follow_the_law(law: RandomRounds) -> None:
    probabilities = rounds_probabilities(law)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    num = 4000
    drawn = [draw_rounds(law, 0, step) for step in range(num)]
    assert law.minimum <= min(drawn) <= max(drawn) <= law.resolved_maximum
    shares = np.bincount(drawn, minlength=len(probabilities)) / num
    errors = np.sqrt(probabilities * (1 - probabilities) / num)
    # Four standard errors for each of at most 40 numbers; one draw's worth for those that hardly ever come.
    assert (np.abs(shares - probabilities) <= 4 * errors + 1 / num).all()


def test_the_mean_is_the_mean_of_the_rounds_and_not_of_the_poisson_part() -> None:
    law = RandomRounds(mean=8, sigma=0.5, maximum=2000)
    probabilities, rounds = rounds_probabilities(law), np.arange(2001)
    mean = probabilities @ rounds
    assert mean == pytest.approx(8, rel=1e-9)
    # Poisson variance plus that of a lognormal rate of mean 7: 7 + 49 * (e^(1/4) - 1).
    assert probabilities @ (rounds - mean) ** 2 == pytest.approx(7 + 49 * np.expm1(0.25), rel=1e-6)
    assert RandomRounds(mean=8).resolved_maximum == 32


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    law = RandomRounds(mean=8)
    drawn = [draw_rounds(law, 3, step) for step in range(50)]
    np.random.seed(1)  # whatever the process drew before
    torch.manual_seed(1)
    assert [draw_rounds(law, 3, step) for step in reversed(range(50))] == drawn[::-1]
    assert [draw_rounds(law, 4, step) for step in range(50)] != drawn
    # Snapshot: the draws of a seed must never change, or resumed and repeated runs would.
    assert drawn[:8] == [9, 12, 10, 13, 3, 6, 8, 3]


# -- configuration ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 short documents, all different."""
    words = ["the", "cat", "sat", "on", "a", "mat", "while", "one", "old", "dog", "ran", "far"]
    lines = []
    for index in range(80):
        picks = torch.randint(len(words), (60,), generator=torch.Generator().manual_seed(index)).tolist()
        lines.append(json.dumps({"text": " ".join(f"{words[p]} {words[p - 1]}." for p in picks)}))
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def make_config(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(corpus.parent / "cache"))

    def make(*overrides: str) -> RunConfig:
        data = {"corpus": str(corpus), "tokenizer": "bytes", "context_length": 32}
        tables = {
            "plan": {"blocks": 1, "rounds": 2, "prelude": 1},
            "model": {"hidden_size": 32, "num_attention_heads": 2},
            "data": data | {"tuning_fraction": 0.1, "report_fraction": 0.1},
            "train": {"steps": 12, "batch_rows": 2, "lr": 5e-3, "eval_rows": 8, "log_every": 1, "num_threads": 1},
        }
        return validate(RunConfig, with_overrides(tables, overrides), "test")

    return make


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ("{mean=0.5}", "greater than 1"),
        ("{mean=8, maximum=4}", "mean 8 is outside minimum 1 to maximum 4"),
        ("{mean=8, minimum=40}", "outside minimum 40"),
        ("{}", "without mean"),
        ("{distribution='uniform', minimum=2}", "without maximum"),
        ("{distribution='uniform', mean=3, maximum=4}", "ignores mean"),
        ("{distribution='uniform', minimum=5, maximum=4}", "minimum 5 is above maximum 4"),
        ("{distribution='normal', mean=3}", "'poisson_lognormal' or 'uniform'"),
        ("{means=3}", "did you mean"),
        ("7", "train.rounds"),
    ],
)
def test_bad_laws_are_named_in_one_line(make_config: Any, rounds: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_config(f"train.rounds={rounds}")
    assert "\n" not in str(caught.value)


def test_a_plan_that_does_not_loop_is_refused(make_config: Any) -> None:
    for override in (LAW, "model.stated_rounds=3"):
        with pytest.raises(ConfigError, match="'stacked' visits every block once"):
            make_config("plan.kind=stacked", "plan.prelude=0", override)


def test_the_rule_is_told_the_stated_rounds(make_config: Any) -> None:
    deeploop = ("model.norm_placement=post", "model.rule=deeploop")

    def skips(*overrides: str) -> list[float]:
        config = make_config(*deeploop, *overrides)
        tokenizer = prepare_data(config.data).tokenizer
        return [scales["skip"] for scales in model_config(config, tokenizer, 257).residual_scales]

    def at(rounds: int) -> list[float]:
        plan = make_config(*deeploop).plan.build().with_rounds(rounds)
        return [group.skip for group in apply_rule("deeploop", plan.counts(), {}).groups]

    assert skips() == at(2)
    assert skips(LAW) == at(6), "the largest that can be drawn"
    assert skips(LAW, "model.stated_rounds=4") == at(4)
    assert skips("model.stated_rounds=4") == at(4)
    assert at(2) != at(4) != at(6)


# -- training ---------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int | None]]:
    """(in training, rounds) of every forward pass."""
    seen: list[tuple[bool, int | None]] = []
    original = LoopedLMForCausalLM.forward

    def spy(self: LoopedLMForCausalLM, *args: Any, rounds: int | None = None, **named: Any) -> Any:
        seen.append((self.training, rounds))
        return original(self, *args, rounds=rounds, **named)

    monkeypatch.setattr(LoopedLMForCausalLM, "forward", spy)
    return seen


def test_a_step_makes_its_draw_in_every_micro_batch_and_evaluation_the_plans(
    make_config: Any, tmp_path: Path, calls: list[tuple[bool, int | None]]
) -> None:
    config = make_config(LAW, "train.accumulation=3", "train.eval_every=6", "train.data_seed=5")
    result = train_run(config, tmp_path / "run")
    drawn = [draw_rounds(config.train.rounds, 5, step) for step in range(12)]
    assert [rounds for training, rounds in calls if training] == [r for r in drawn for _ in range(3)]
    assert {rounds for training, rounds in calls if not training} == {None}
    assert len(set(drawn)) > 2
    assert len(result["visits"]["state_rms"]) == 1 + 1 + 2

    model = json.loads((tmp_path / "run" / "checkpoint" / "config.json").read_text())
    shape = ModelShape.from_config(model)

    def flops(rounds: int) -> int:
        return flops_per_token(dataclasses.replace(shape, plan=shape.plan.with_rounds(rounds)), 32).training

    budget = result["budget"]
    assert budget["training_flops"] == sum(flops(rounds) for rounds in drawn) * result["tokens"] // 12
    assert budget["flops_per_token_training"] == flops(2)
    made = budget["random_rounds"]
    assert made["mean"] == pytest.approx(sum(drawn) / 12)
    assert (made["smallest"], made["largest"]) == (min(drawn), max(drawn))
    # Without truncation FLOPs are linear in the rounds, so the law's mean decides their expectation.
    expected = flops(1) + (made["mean_expected"] - 1) * (flops(2) - flops(1))
    assert made["flops_per_token_training_expected"] == pytest.approx(expected)
    assert read_toml(tmp_path / "run" / "config.toml")["train"]["rounds"]["maximum"] == 6
    assert model["residual_rule"]["random_rounds"] == [1, 6]


def test_without_random_rounds_nothing_is_drawn(
    make_config: Any, tmp_path: Path, calls: list[tuple[bool, int | None]]
) -> None:
    result = train_run(make_config("train.steps=2"), tmp_path / "run")
    assert {rounds for _, rounds in calls} == {None}
    assert result["budget"]["random_rounds"] is None
    assert result["budget"]["training_flops"] == result["budget"]["flops_per_token_training"] * result["tokens"]


def test_a_resumed_run_draws_what_the_unbroken_one_did(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[bool, int | None]]
) -> None:
    config = make_config(LAW, "train.checkpoint_every=4", "plan.grad_rounds=2")
    unbroken = train_run(config, tmp_path / "unbroken")
    whole = [rounds for training, rounds in calls if training]
    calls.clear()
    original = LoopedTrainer.training_step

    def power_cut(self: LoopedTrainer, *args: Any, **named: Any) -> torch.Tensor:
        if self.state.global_step == 7:
            raise ZeroDivisionError("power cut")
        return original(self, *args, **named)

    monkeypatch.setattr(LoopedTrainer, "training_step", power_cut)
    with pytest.raises(ZeroDivisionError):
        train_run(config, tmp_path / "broken")
    monkeypatch.setattr(LoopedTrainer, "training_step", original)
    calls.clear()
    resumed = run_module.train_run(config, tmp_path / "broken", resume=True)
    assert [rounds for training, rounds in calls if training] == whole[4:]
    assert resumed["final"] == unbroken["final"]
    assert resumed["budget"] == unbroken["budget"]
    mine, theirs = (load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("broken", "unbroken"))
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name
    losses = [
        [(r["step"], r["loss_nats"]) for r in read_metrics(tmp_path / name / "metrics.jsonl") if r["kind"] == "train"]
        for name in ("broken", "unbroken")
    ]
    assert losses[0] == losses[1]


# -- truncated backpropagation -------------------------------------------------------------------------------


def build(grad_rounds: int | None = 2) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    plan = [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 4, "inject": True, "grad_rounds": grad_rounds}]
    scales = [{"skip": 1.5}, {"skip": 2.0}]
    config = LoopedLMConfig(
        vocab_size=97, hidden_size=32, norm_placement="post", plan=plan, residual_scales=scales, initializer_range=0.2
    )
    return LoopedLMForCausalLM(config).train()


def tokens() -> torch.Tensor:
    return torch.randint(0, 97, (2, 11), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
def test_whatever_is_drawn_only_the_last_rounds_carry_gradient(rounds: int) -> None:
    """Gradients equal those of the same states with the stream cut by hand before the last two rounds."""
    model, reference = build(), build(grad_rounds=None)
    model(tokens(), labels=tokens(), rounds=rounds).loss.backward()

    cut_before = {1 + 2 * round_ for round_ in range(1, rounds) if round_ <= rounds - 2}

    # The segment's input enters again by injection, so the early rounds are cut where their output is read.
    def cut_output(module: torch.nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        return output.detach() if inputs[3] + 1 in cut_before else None

    for block in reference.model.blocks:
        block.register_forward_hook(cut_output)
    next_token_loss(reference(tokens(), rounds=rounds).logits, tokens()).backward()
    for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None, name
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("rounds", [1, 4])
def test_truncated_rounds_under_autocast_lose_no_gradient(rounds: int) -> None:
    """Public fault: a weight cast to bfloat16 without gradient is reused where gradient is wanted."""
    gradients = []
    for autocast in (True, False):
        model = build()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(tokens(), labels=tokens(), rounds=rounds).loss
        loss.backward()
        gradients.append({name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None})
    half, full = gradients
    assert half.keys() == full.keys() == dict(build().named_parameters()).keys()
    for name, expected in full.items():
        # bfloat16 keeps 8 bits; a lost round would change a block's gradient by tens of percent.
        error = (half[name] - expected).norm() / expected.norm()
        assert error < 0.15, (name, error.item())


# -- compilation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad_rounds", [None, 2])
def test_random_rounds_compile_each_block_once(grad_rounds: int | None) -> None:
    """Public fault: random rounds compiled again and again. Here R is in 1 ... 8 over 50 steps."""
    torch._dynamo.reset()
    counters.clear()
    try:
        model = build(grad_rounds)
        model.compile_blocks(backend="eager")
        law = RandomRounds(distribution="uniform", minimum=1, maximum=8)
        graphs: Counter[int] = Counter()
        drawn = [draw_rounds(law, 0, step) for step in range(50)]
        for step, rounds in enumerate(drawn):
            model(tokens(), labels=tokens(), rounds=rounds).loss.backward()
            graphs[step] = counters["stats"]["unique_graphs"]
        assert set(drawn) == set(range(1, 9))
        assert graphs[0] > 0
        assert graphs[49] - graphs[0] <= 2
    finally:
        torch._dynamo.reset()

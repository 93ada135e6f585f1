"""One run from its configuration to its result, on a corpus of a few kilobytes."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments

from depthscale.errors import CheckpointError, ConfigError, ResultError, RunInterruptedError
from depthscale.evaluation.checkpoint import load_model
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate, with_overrides
from depthscale.runs.metrics import read_metrics
from depthscale.runs.train_config import TrainConfig
from depthscale.training import result as result_module
from depthscale.training.prepare import prepare_data
from depthscale.training.run import train_run
from depthscale.training.trainer import LoopedTrainer, training_arguments

WORDS = "the cat sat on a mat while one old dog ran far away from its red house and slept".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 short documents of a simple grammar, all different."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = []
    for index in range(120):
        generator = torch.Generator().manual_seed(index)
        picks = torch.randint(len(WORDS), (60,), generator=generator).tolist()
        lines.append(json.dumps({"text": " ".join(f"{WORDS[p]} {WORDS[(p + 1) % len(WORDS)]}." for p in picks)}))
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    return folder / "corpus.jsonl"


@pytest.fixture
def make_config(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(corpus.parent / "cache"))

    def make(*overrides: str) -> RunConfig:
        tables = {
            "plan": {"blocks": 2, "rounds": 2},
            "model": {"hidden_size": 32, "num_attention_heads": 2},
            "data": {
                "corpus": str(corpus),
                "tokenizer": "bytes",
                "context_length": 32,
                "tuning_fraction": 0.1,
                "report_fraction": 0.1,
            },
            "train": {"steps": 20, "batch_rows": 4, "lr": 5e-3, "eval_rows": 16, "log_every": 1, "num_threads": 1},
        }
        return validate(RunConfig, with_overrides(tables, overrides), "test")

    return make


def losses(directory: Path) -> list[tuple[int, float]]:
    records = read_metrics(directory / "metrics.jsonl")
    return [(r["step"], r["loss_nats"]) for r in records if r["kind"] == "train"]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "checkpoint" / "model.safetensors")


def test_a_run_writes_a_whole_result_and_a_loadable_checkpoint(make_config: Any, tmp_path: Path) -> None:
    result = train_run(make_config("train.steps=60", "train.eval_every=30", "train.lr=2e-2"), tmp_path / "run")
    assert result["outcome"] == "finished"
    assert result["step"] == 60
    assert result["tokens"] == 60 * 4 * 32
    assert result["final"]["report"]["loss_nats"] < result["unigram_loss_nats"]["report"] < math.log(258)
    assert len(result["visits"]["state_rms"]) == 1 + 4
    assert len(result["visits"]["update_cosine"]) == 3
    assert set(result["groups"]["groups"]) == {"embedding", "query_key", "value_output", "mlp", "norm"}
    for group in result["groups"]["groups"].values():
        assert group["distance_from_init"] > 0
        assert group["update_rms"] > 0
        assert group["grad_norm"] > 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint")
    parameters = sum(p.numel() for p in model.parameters())
    assert result["budget"]["parameters"] == parameters
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"config.toml", "metrics.jsonl", "results", "checkpoint"}
    kinds = [record["kind"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert kinds.count("evaluation") == 2
    assert kinds[0] == "visits"


def test_the_same_seed_gives_the_same_bits_and_another_does_not(make_config: Any, tmp_path: Path) -> None:
    config = make_config("train.steps=4")
    train_run(config, tmp_path / "a")
    torch.manual_seed(123)  # whatever the process drew before
    train_run(config, tmp_path / "b")
    train_run(make_config("train.steps=4", "train.seed=1"), tmp_path / "c")
    assert losses(tmp_path / "a") == losses(tmp_path / "b") != losses(tmp_path / "c")
    for name, tensor in weights(tmp_path / "a").items():
        assert torch.equal(tensor, weights(tmp_path / "b")[name])


def test_arms_with_one_data_seed_see_the_same_rows(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[int]] = {}

    def spy(self: LoopedTrainer, model: Any, inputs: dict[str, torch.Tensor], *rest: Any, **named: Any) -> torch.Tensor:
        seen.setdefault(str(self.model.config.norm_placement), []).append(hash(inputs["input_ids"].numpy().tobytes()))
        return original(self, model, inputs, *rest, **named)

    original = LoopedTrainer.training_step
    monkeypatch.setattr(LoopedTrainer, "training_step", spy)
    train_run(make_config("train.steps=6"), tmp_path / "pre")
    train_run(make_config("train.steps=6", "model.norm_placement=post", "plan.rounds=3"), tmp_path / "post")
    assert seen["pre"] == seen["post"]
    assert len(set(seen["pre"])) == 6


class Crash(TrainerCallback):
    """Ends the process's work at a step as a power cut would: by an exception, with nothing saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise ZeroDivisionError("power cut")


def crash(monkeypatch: pytest.MonkeyPatch, config: RunConfig, directory: Path, at_step: int) -> None:
    """Train until ``at_step`` and lose the process there."""
    original = LoopedTrainer.__init__

    def with_crash(self: LoopedTrainer, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.add_callback(Crash(at_step))

    with monkeypatch.context() as patch:
        patch.setattr(LoopedTrainer, "__init__", with_crash)
        with pytest.raises(ZeroDivisionError):
            train_run(config, directory)


@pytest.mark.parametrize("crash_at", [9, 17])
def test_a_resumed_run_equals_the_unbroken_one(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """Public fault: resume repeats or skips data. Here the first epoch ends between steps 9 and 16."""
    config = make_config("train.checkpoint_every=8", "train.eval_every=5", "train.batch_rows=120")
    unbroken = train_run(config, tmp_path / "unbroken")
    assert 9 < 20 / unbroken["data"]["epochs"] < 16

    crash(monkeypatch, config, tmp_path / "broken", crash_at)
    resumed = train_run(config, tmp_path / "broken", resume=True)
    assert resumed["resumed"] == 1
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    for name, tensor in weights(tmp_path / "unbroken").items():
        assert torch.equal(tensor, weights(tmp_path / "broken")[name])
    assert resumed["final"] == unbroken["final"]
    assert resumed["optimization"] == unbroken["optimization"]


def test_a_damaged_training_state_is_passed_over_for_the_one_before(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("train.checkpoint_every=3", "train.steps=10")
    unbroken = train_run(config, tmp_path / "unbroken")
    crash(monkeypatch, config, tmp_path / "broken", at_step=8)
    newest = tmp_path / "broken" / "training_state" / "checkpoint-6"
    for name in ("optimizer.pt", "model.safetensors", "trainer_state.json", "rng_state.pth"):
        (newest / name).write_bytes((newest / name).read_bytes()[:-50])
    console = Console(record=True, width=300)
    resumed = train_run(config, tmp_path / "broken", resume=True, console=console)
    assert "checkpoint-6 is damaged and is passed over" in console.export_text()
    assert resumed["final"] == unbroken["final"]

    crash(monkeypatch, config, tmp_path / "lost", at_step=8)
    for checkpoint in (tmp_path / "lost" / "training_state").glob("checkpoint-*"):
        (checkpoint / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
        train_run(config, tmp_path / "lost", resume=True)


def test_two_processes_cannot_train_in_one_directory(make_config: Any, tmp_path: Path) -> None:
    state = tmp_path / "run" / "training_state"
    state.mkdir(parents=True)
    with FileLock(state / "lock"), pytest.raises(ResultError, match="another process is training"):
        train_run(make_config("train.steps=1"), tmp_path / "run")


def test_a_directory_of_other_files_is_left_alone(make_config: Any, tmp_path: Path) -> None:
    (tmp_path / "mine" / "checkpoint").mkdir(parents=True)
    (tmp_path / "mine" / "checkpoint" / "precious.bin").write_text("mine")
    for resume in (False, True):
        with pytest.raises(ResultError, match="holds other files and no run"):
            train_run(make_config("train.steps=1"), tmp_path / "mine", resume=resume)
    assert (tmp_path / "mine" / "checkpoint" / "precious.bin").read_text() == "mine"


def test_resume_gives_a_finished_run_back_untouched(make_config: Any, tmp_path: Path) -> None:
    config = make_config("train.steps=2")
    first = train_run(config, tmp_path / "run")
    assert train_run(config, tmp_path / "run", resume=True) == first
    with pytest.raises(ResultError, match="already holds a run"):
        train_run(config, tmp_path / "run")


def test_a_run_is_not_resumed_under_another_configuration(make_config: Any, tmp_path: Path) -> None:
    train_run(make_config("train.steps=2"), tmp_path / "run")
    with pytest.raises(ConfigError, match="resume a run unchanged"):
        train_run(make_config("train.steps=3"), tmp_path / "run", resume=True)


def test_sigterm_writes_a_checkpoint_and_the_run_goes_on_from_it(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    unbroken = train_run(config, tmp_path / "unbroken")

    def step_and_signal(self: LoopedTrainer, *arguments: Any, **named: Any) -> torch.Tensor:
        if self.state.global_step == 6:
            signal.raise_signal(signal.SIGTERM)
        return original(self, *arguments, **named)

    original = LoopedTrainer.training_step
    with monkeypatch.context() as patch:
        patch.setattr(LoopedTrainer, "training_step", step_and_signal)
        with pytest.raises(RunInterruptedError, match="step 7 of 20") as caught:
            train_run(config, tmp_path / "run")
    assert caught.value.signal_number == signal.SIGTERM
    resumed = train_run(config, tmp_path / "run", resume=True)
    assert resumed["final"] == unbroken["final"]
    assert losses(tmp_path / "run") == losses(tmp_path / "unbroken")


def test_a_run_that_blows_up_is_a_diverged_result(make_config: Any, tmp_path: Path) -> None:
    result = train_run(make_config("train.lr=1e4", "train.max_grad_norm=1e9"), tmp_path / "run")
    assert result["outcome"] == "diverged"
    assert result["step"] < 20
    assert (tmp_path / "run" / "checkpoint" / "model.safetensors").exists()


def test_a_run_that_learns_nothing_is_a_stuck_result(make_config: Any, tmp_path: Path) -> None:
    result = train_run(make_config("train.lr=1e-9"), tmp_path / "run")
    assert result["outcome"] == "stuck"
    assert "unigram floor" in result["outcome_reason"]


def test_a_non_finite_step_changes_nothing_and_is_counted(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public fault: a NaN step poisons weights and moments, and the next save overwrites the last good one."""
    snapshots: list[list[torch.Tensor]] = []

    def poisoned(self: LoopedTrainer, *arguments: Any, **named: Any) -> torch.Tensor:
        loss = original(self, *arguments, **named)
        if self.state.global_step in (3, 4):
            states = [value for state in self.optimizer.state.values() for value in state.values()]
            snapshots.append([t.detach().clone() for t in [*self.model.parameters(), *states]])
            if self.state.global_step == 3:
                next(self.model.parameters()).grad[0, 0] = math.nan
        return loss

    original = LoopedTrainer.training_step
    monkeypatch.setattr(LoopedTrainer, "training_step", poisoned)
    result = train_run(make_config("train.steps=6"), tmp_path / "run")
    assert result["optimization"]["steps_non_finite"] == 1
    assert result["step"] == 6
    assert all(torch.equal(a, b) for a, b in zip(*snapshots, strict=True))


def test_non_finite_steps_without_end_diverge_and_keep_the_last_good_checkpoint(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(self: LoopedTrainer, *arguments: Any, **named: Any) -> torch.Tensor:
        loss = original(self, *arguments, **named)
        if self.state.global_step >= 3:
            next(self.model.parameters()).grad[0, 0] = math.nan
        return loss

    original = LoopedTrainer.training_step
    monkeypatch.setattr(LoopedTrainer, "training_step", poisoned)
    result = train_run(make_config("train.checkpoint_every=2"), tmp_path / "run")
    assert result["outcome"] == "diverged"
    assert "non-finite steps in a row" in result["outcome_reason"]
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


@pytest.mark.parametrize("document_boundaries", ["false", "true"])
def test_accumulation_does_not_change_the_gradient(make_config: Any, tmp_path: Path, document_boundaries: str) -> None:
    """Public fault: accumulation averages means. 1 x 8 rows against 8 x 1, with masked targets of uneven number."""
    across = f"data.attend_across_documents={document_boundaries}"
    train_run(make_config("train.steps=3", "train.batch_rows=8", across), tmp_path / "once")
    train_run(make_config("train.steps=3", "train.batch_rows=1", "train.accumulation=8", across), tmp_path / "parts")
    for (_, once), (_, parts) in zip(losses(tmp_path / "once"), losses(tmp_path / "parts"), strict=True):
        assert once == pytest.approx(parts, rel=1e-5)
    for name, tensor in weights(tmp_path / "once").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "parts")[name], rtol=1e-3, atol=1e-4)


def test_loss_does_not_depend_on_the_batch_size(make_config: Any, tmp_path: Path) -> None:
    """Public faults: padding counted in shorter rows; mean of means with a ragged last batch."""
    from depthscale.evaluation.loss import evaluate_loss

    config = make_config("train.steps=2")
    train_run(config, tmp_path / "run")
    model = load_model(tmp_path / "run" / "checkpoint")
    data = prepare_data(config.data)
    results = [evaluate_loss(model, data.splits["report"].dataset, data.collate, batch_rows=rows) for rows in (1, 3, 8)]
    assert len({result.num_tokens for result in results}) == 1
    assert results[0].loss_nats == pytest.approx(results[1].loss_nats, rel=1e-6)
    assert results[0].loss_nats == pytest.approx(results[2].loss_nats, rel=1e-6)
    rows = [data.splits["report"].dataset[i] for i in range(len(data.splits["report"].dataset))]
    total, count = 0.0, 0
    for row in rows:
        batch = data.collate([row])
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits[0, :-1].double()
        targets = batch["labels"][0, 1:]
        kept = targets != -100
        total -= logits.log_softmax(-1)[kept].gather(1, targets[kept, None]).sum().item()
        count += int(kept.sum())
    assert results[0].num_tokens == count
    assert results[0].loss_nats == pytest.approx(total / count, rel=1e-6)


def start(checkpoint: Path, rescale: bool = False) -> tuple[str, ...]:
    """What ``train --from`` sets."""
    return (f"start={{checkpoint='{checkpoint}', rescale={str(rescale).lower()}}}", f"data.tokenizer={checkpoint}")


@pytest.fixture
def other_corpus(tmp_path: Path) -> str:
    (tmp_path / "other").mkdir()
    for index in range(12):
        (tmp_path / "other" / f"{index}.txt").write_text(f"number {index} " + " ".join(WORDS[index % 7 :]) * 9)
    return f"data.corpus={tmp_path / 'other'}"


def test_continuing_on_another_corpus(make_config: Any, tmp_path: Path, other_corpus: str) -> None:
    base = ("model.norm_placement=post", "model.rule=deeploop", "train.steps=3")
    train_run(make_config(*base), tmp_path / "first")
    checkpoint = tmp_path / "first" / "checkpoint"
    other = (*base, other_corpus, "train.lr=1e-9", "data.context_length=16", "model.rule=deepnorm")
    console = Console(record=True, width=300)
    result = train_run(make_config(*other, *start(checkpoint)), tmp_path / "second", console=console)
    assert "init gain is not applied" in console.export_text()
    # The checkpoint's own scales, under their own name, whatever rule the configuration names.
    assert result["model"]["rule"] == "deeploop"
    assert result["model"]["scales"] == json.loads((checkpoint / "config.json").read_text())["residual_scales"]
    assert result["start"] == {"checkpoint": str(checkpoint), "rescale": False}
    for name, tensor in weights(tmp_path / "first").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "second")[name], rtol=0, atol=1e-6)
    deeper = (*other, "plan.rounds=4", "model.rule=deeploop")
    with pytest.raises(ConfigError, match="another plan"):
        train_run(make_config(*deeper, *start(checkpoint)), tmp_path / "third")
    rescaled = train_run(make_config(*deeper, *start(checkpoint, rescale=True)), tmp_path / "fourth")
    assert rescaled["model"]["scales"][0]["skip"] == pytest.approx((2 * 2 * 4) ** 0.5)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.hidden_size=64", r"hidden_size 32 \(asked: 64\)"),
        ("model.rope_theta=500", r"rope_theta 10000.0 \(asked: 500.0\)"),
        ("plan.blocks=3", r"num_blocks 2 \(asked: 3\)"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(make_config: Any, tmp_path: Path, override: str, words: str) -> None:
    train_run(make_config("train.steps=1"), tmp_path / "first")
    with pytest.raises(ConfigError, match=words):
        train_run(make_config(override, *start(tmp_path / "first" / "checkpoint")), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_continued_run_keeps_its_checkpoints_vocabulary(make_config: Any, tmp_path: Path) -> None:
    train_run(make_config("train.steps=1"), tmp_path / "first")
    checkpoint = tmp_path / "first" / "checkpoint"
    with pytest.raises(ConfigError, match=r"keeps its checkpoint.s: set data\.tokenizer"):
        make_config(start(checkpoint)[0], "data.tokenizer=bpe:300")
    with pytest.raises(CheckpointError, match="no checkpoint at /nope"):
        train_run(make_config(*start(Path("/nope"))), tmp_path / "second")


def test_a_continued_run_resumes_as_itself(
    make_config: Any, tmp_path: Path, other_corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("model.norm_placement=post", "model.rule=deeploop")
    train_run(make_config(*base, "train.steps=3"), tmp_path / "first")
    continued = make_config(
        "model.norm_placement=post", "model.rule=deepnorm", other_corpus, "train.checkpoint_every=4", "train.steps=8",
        *start(tmp_path / "first" / "checkpoint"),
    )  # fmt: skip
    unbroken = train_run(continued, tmp_path / "unbroken")
    crash(monkeypatch, continued, tmp_path / "broken", at_step=6)
    resumed = train_run(continued, tmp_path / "broken", resume=True)
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    for key in ("model", "final", "groups", "start"):
        assert resumed[key] == unbroken[key], key
    assert resumed["data"]["tokenizer_sha256"] == unbroken["data"]["tokenizer_sha256"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("truncated", "cannot be loaded"),
        ("key_missing", "lacks 'model.blocks"),
        ("config_missing", "no checkpoint at"),
        ("config_damaged", "damaged"),
        ("weights_missing", "cannot be loaded"),
        ("other_model", "expected 'looped_lm'"),
    ],
)
def test_damaged_checkpoints_are_refused(make_config: Any, tmp_path: Path, damage: str, words: str) -> None:
    from safetensors.torch import save_file

    train_run(make_config("train.steps=1"), tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint"
    model_file, config_file = checkpoint / "model.safetensors", checkpoint / "config.json"
    if damage == "truncated":
        model_file.write_bytes(model_file.read_bytes()[:-100])
    elif damage == "key_missing":
        tensors = load_file(model_file)
        tensors.pop(next(name for name in tensors if "v_proj" in name))
        save_file(tensors, model_file, metadata={"format": "pt"})
    elif damage == "config_missing":
        config_file.unlink()
    elif damage == "config_damaged":
        config_file.write_text("{")
    elif damage == "weights_missing":
        model_file.unlink()
    else:
        config_file.write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match=words) as caught:
        load_model(checkpoint)
    assert "\n" not in str(caught.value)


def test_tensorboard_on_request(make_config: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_run(make_config("train.steps=3", "train.tensorboard=true"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(
        [loss for _, loss in losses(tmp_path / "run")], rel=1e-6
    )


def test_bfloat16_and_compiled_blocks_train_like_float32(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from depthscale.nn import LoopedLMForCausalLM

    original = LoopedLMForCausalLM.compile_blocks
    # A real compiler takes a minute; that blocks are handed to one at all is seen as well with the plainest.
    monkeypatch.setattr(LoopedLMForCausalLM, "compile_blocks", lambda self: original(self, backend="eager"))
    train_run(make_config("train.steps=2"), tmp_path / "plain")
    train_run(make_config("train.steps=2", "train.compile_blocks=true"), tmp_path / "compiled")
    train_run(make_config("train.steps=2", "train.precision=bfloat16"), tmp_path / "half")
    train_run(make_config("train.steps=2", "train.checkpoint_visits=true"), tmp_path / "checkpointed")
    assert losses(tmp_path / "checkpointed") == losses(tmp_path / "plain")
    for (_, plain), (_, compiled), (_, half) in zip(
        losses(tmp_path / "plain"), losses(tmp_path / "compiled"), losses(tmp_path / "half"), strict=True
    ):
        assert compiled == pytest.approx(plain, rel=1e-5)
        assert half == pytest.approx(plain, rel=2e-2)
    assert not any("_orig_mod" in name for name in weights(tmp_path / "compiled"))
    # Weights stay float32 under mixed precision.
    assert all(tensor.dtype == torch.float32 for tensor in weights(tmp_path / "half").values())


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_schedules(make_config: Any, tmp_path: Path, schedule: str) -> None:
    options = ("train.steps=10", "train.warmup_steps=2", "train.min_lr_ratio=0.25", "train.lr=1e-2")
    train_run(make_config(*options, f"train.schedule={schedule}"), tmp_path / "run")
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    rates = [record["lr"] / 1e-2 for record in records if record["kind"] == "train"]
    assert max(rates) == pytest.approx(1.0)
    if schedule == "constant":
        assert rates[2:] == pytest.approx([1.0] * 8)
    elif schedule == "wsd":  # flat, then linear over the last fifth
        assert rates[2:8] == pytest.approx([1.0] * 6)
        assert rates[9] == pytest.approx((1.0 + 0.25) / 2)
    else:
        expected = [0.25 + 0.75 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
        assert rates[2:] == pytest.approx(expected)


def test_learning_rate_multipliers_reach_the_matrices_only(make_config: Any, tmp_path: Path) -> None:
    from depthscale.training.model import build_model
    from depthscale.training.parameter_groups import optimizer_groups

    config = make_config("plan.blocks=3", "model.rule=inverse_rounds")
    data = prepare_data(config.data)
    model = build_model(config, data.tokenizer, data.vocab_size)
    rates = {id(p): group["lr"] for group in optimizer_groups(model, 1.0, 0.1) for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer_groups(model, 1.0, 0.1) for p in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        expected = (3 / 12) ** -0.5 if "_proj" in name else 1.0
        assert rates[id(parameter)] == pytest.approx(expected), name
        assert decays[id(parameter)] == (0.0 if "norm" in name else 0.1), name


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left")])
@pytest.mark.parametrize("steps", ["train.checkpoint_every=2", "train.checkpoint_every=3"])
def test_a_full_disk_is_one_clear_line_and_costs_no_step(
    make_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, steps: str
) -> None:
    """The disk fills up after the second step: within training, or (with nothing to save then) after its end."""
    config = make_config("train.steps=3", steps)
    unbroken = train_run(config, tmp_path / "unbroken")
    original, saves = LoopedTrainer.save_model, []

    def full(self: LoopedTrainer, *arguments: Any, **named: Any) -> None:
        saves.append(1)
        if len(saves) > 1:
            raise error
        original(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LoopedTrainer, "save_model", full)
        with pytest.raises(CheckpointError, match="No space left"):
            train_run(config, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*writing*"))
    resumed = train_run(config, tmp_path / "run", resume=True)
    assert resumed["final"] == unbroken["final"]
    assert losses(tmp_path / "run") == losses(tmp_path / "unbroken")


def test_padding_does_not_count_in_what_is_measured_of_visits(make_config: Any, tmp_path: Path) -> None:
    """Public fault: pads counted in layer importance."""
    from depthscale.training.measure import measure_visits

    train_run(make_config("train.steps=2"), tmp_path / "run")
    model = load_model(tmp_path / "run" / "checkpoint")
    ids = torch.randint(97, (2, 20), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([ids, torch.zeros(2, 100, dtype=torch.int64)], dim=1)
    mask = (torch.arange(120) < 20).long().expand(2, -1)
    plain = measure_visits(model, {"input_ids": ids})
    with_pads = measure_visits(model, {"input_ids": padded, "attention_mask": mask})
    for name, values in plain.items():
        assert with_pads[name] == pytest.approx(values, abs=1e-6), name


def test_peak_memory_is_in_bytes() -> None:
    assert 10**7 < result_module._peak_memory_bytes() < 10**11


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"prelude": 1, "grad_rounds": 1}, True),
        ({"prelude": 1, "grad_rounds": 1, "inject": True}, False),
        ({"grad_rounds": 1}, False),
        ({"prelude": 1, "grad_rounds": 2}, False),
        ({"prelude": 1}, False),
    ],
)
def test_a_prelude_that_truncation_leaves_without_gradient_is_said(
    make_config: Any, tmp_path: Path, plan: dict[str, Any], said: bool
) -> None:
    overrides = [f"plan.{name}={str(value).lower()}" for name, value in plan.items()]
    console = Console(record=True, width=300)
    train_run(make_config(*overrides, "train.steps=1"), tmp_path / "run", console=console)
    assert console.export_text().count("leave the prelude without gradient") == int(said)


def test_several_gpus_without_torchrun_make_no_larger_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would give each of them a whole micro-batch."""

    def four_gpus(arguments: TrainingArguments) -> torch.device:
        arguments._n_gpu = 4
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(four_gpus))
    assert TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=8).train_batch_size == 32
    config = TrainConfig(steps=10, batch_rows=8, lr=1e-3, warmup_steps=1)
    assert training_arguments(config, tmp_path).train_batch_size == 8

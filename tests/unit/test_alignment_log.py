"""kappa logged along training: bit for bit the run without it, and a record where it was asked for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import write_corpus

from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate
from depthscale.runs.metrics import read_metrics
from depthscale.training.alignment_log import AlignmentLog
from depthscale.training.alignment_points import Settings
from depthscale.training.model import build_model
from depthscale.training.prepare import prepare_data
from depthscale.training.trainer import LoopedTrainer


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("alignment_log")
    patch = pytest.MonkeyPatch()
    patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    tables = {
        "plan": {"blocks": 1, "rounds": 3},
        "model": {"hidden_size": 32, "num_attention_heads": 2, "norm_placement": "post", "rule": "deeploop"},
        "data": {
            "corpus": str(write_corpus(folder / "corpus")),
            "tokenizer": "bytes",
            "context_length": 32,
            "tuning_fraction": 0.15,
            "report_fraction": 0.15,
        },
        "train": {"steps": 4, "batch_rows": 4, "lr": 5e-3, "num_threads": 1},
    }
    yield validate(RunConfig, tables, "test")
    patch.undo()


def train(config: RunConfig, directory: Path, every: int | None) -> tuple[LoopedTrainer, list[bytes]]:
    data = prepare_data(config.data)
    model = build_model(config, data.tokenizer, data.vocab_size)
    metrics = directory / "metrics.jsonl"
    callbacks = [] if every is None else [AlignmentLog(every, data, Settings(rows=2), metrics)]
    seen: list[bytes] = []

    class Spy(LoopedTrainer):
        def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *rest: object) -> torch.Tensor:
            seen.append(inputs["input_ids"].numpy().tobytes())
            return super().training_step(model, inputs, *rest)  # type: ignore[no-any-return]

    directory.mkdir()
    trainer = Spy(model, config.train, data, directory / "state", metrics, callbacks)
    trainer.train()
    return trainer, seen


def test_training_does_not_notice_the_log(config: RunConfig, tmp_path: Path) -> None:
    plain, plain_rows = train(config, tmp_path / "plain", None)
    plain_random = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    logged, logged_rows = train(config, tmp_path / "logged", 2)
    assert logged_rows == plain_rows
    assert len(plain_rows) == 4
    for (name, one), (_, other) in zip(plain.model.named_parameters(), logged.model.named_parameters(), strict=True):
        assert torch.equal(one, other), name
        first, second = plain.optimizer.state[one], logged.optimizer.state[other]
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(first[key], second[key])
    assert torch.equal(torch.get_rng_state(), plain_random[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == plain_random[1:]

    records = [r for r in read_metrics(tmp_path / "logged" / "metrics.jsonl") if r["kind"] == "alignment"]
    assert [record["step"] for record in records] == [0, 2, 4]
    assert "adam" not in records[0]
    for record in records:
        assert "reason" not in record
        assert set(record["loss"]["sublayers"]) == {"block0.attention", "block0.mlp", "block0.norm"}
        assert 0 < record["loss"]["kappa"] <= 3 + 1e-4
    assert records[1]["adam"]["kappa"] != records[1]["loss"]["kappa"]
    # At initialization DeepLoop's visits are aligned.
    assert records[0]["loss"]["kappa"] == pytest.approx(3, rel=0.02)


def test_a_model_that_cannot_be_measured_does_not_end_the_run(config: RunConfig, tmp_path: Path) -> None:
    data = prepare_data(config.data)
    model = build_model(config, data.tokenizer, data.vocab_size)
    with torch.no_grad():
        model.model.blocks[0].mlp.down_proj.weight.fill_(torch.nan)
    log = AlignmentLog(1, data, Settings(rows=2), tmp_path / "metrics.jsonl")
    log._log(model, 3, None)
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert "finite" in record["reason"]

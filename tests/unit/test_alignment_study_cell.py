"""One cell of an alignment study: trained for a few steps and measured along the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import write_corpus

from depthscale.alignment.measure import looped_forward
from depthscale.alignment.one_step import measure_step, optimizer_step
from depthscale.alignment.sublayers import looped_sublayers
from depthscale.runs.alignment_config import AlignmentRun
from depthscale.runs.config_file import validate, with_overrides
from depthscale.runs.results import read_result
from depthscale.training.alignment_cell import measure_cell, shuffled
from depthscale.training.alignment_points import Settings, batch_of
from depthscale.training.model import build_model
from depthscale.training.prepare import prepare_data
from depthscale.training.prepared_data import PreparedData

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cell")
    patch = pytest.MonkeyPatch()
    patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    yield write_corpus(folder / "corpus")
    patch.undo()


def config(corpus: Path, *overrides: str) -> AlignmentRun:
    tables = {
        "arm": "deeploop",
        "plan": {"blocks": 1, "rounds": 2},
        "model": {
            "hidden_size": 16,
            "num_attention_heads": 2,
            "mlp": "gelu",
            "norm_placement": "post",
            "rule": "deeploop",
        },
        "data": {
            "corpus": str(corpus),
            "tokenizer": "bytes",
            "context_length": 32,
            "tuning_fraction": 0.15,
            "report_fraction": 0.15,
        },
        "train": {"steps": 6, "batch_rows": 2, "lr": 5e-3, "log_every": 1, "num_threads": 1},
        "measure": {"steps": [0, 2, 4], "rows": [2, 3], "num_probes": 1},
    }
    return validate(AlignmentRun, with_overrides(tables, overrides), "test")


def places(result: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(point["step"], point["batch_rows"], point["gradient_of"]) for point in result["points"]]


def data_of(config: AlignmentRun) -> PreparedData:
    return prepare_data(config.data)


def test_a_cell_is_measured_where_it_is_asked_and_trains_no_further(corpus: Path, tmp_path: Path) -> None:
    result = measure_cell(config(corpus), tmp_path)
    assert places(result) == [
        (0, 2, "loss"), (0, 3, "loss"),
        (2, 2, "loss"), (2, 3, "loss"), (2, 2, "adam"),
        (4, 2, "loss"), (4, 3, "loss"), (4, 2, "adam"),
    ]  # fmt: skip
    assert result["outcome"] == "finished"
    assert [record["step"] for record in result["training_loss_nats"]] == [1, 2, 3, 4]
    assert (result["exponent"], result["relative_branch"]) == (0.5, pytest.approx(1 / 8))
    written = read_result(tmp_path, "alignment_cell")
    assert written["points"] == result["points"]
    assert {s["name"] for s in written["points"][0]["sublayers"]} == {"block0.attention", "block0.mlp", "block0.norm"}


def test_measuring_leaves_training_as_it_was(corpus: Path, tmp_path: Path) -> None:
    often = measure_cell(config(corpus, "measure.steps=[0, 1, 2, 3, 4]", "measure.one_step=[1]"), tmp_path / "a")
    once = measure_cell(config(corpus, "measure.steps=[4]"), tmp_path / "b")
    assert often["training_loss_nats"] == once["training_loss_nats"]
    assert often["points"][-1] == once["points"][-1]


def test_another_length_of_the_study_is_the_beginning_of_this_one(corpus: Path, tmp_path: Path) -> None:
    """Cells with many rounds end early; their points are those of a longer cell."""
    constant = "train.schedule=constant"
    longer = measure_cell(config(corpus, constant), tmp_path / "a")
    shorter = measure_cell(config(corpus, constant, "measure.steps=[0, 2]"), tmp_path / "b")
    assert shorter["points"] == longer["points"][:5]


def test_initialization_alone_needs_no_training(corpus: Path, tmp_path: Path) -> None:
    result = measure_cell(config(corpus, "measure.steps=[0]"), tmp_path)
    assert places(result) == [(0, 2, "loss"), (0, 3, "loss")]
    assert result["training_loss_nats"] == []


def test_the_real_steps_are_those_of_the_library(corpus: Path, tmp_path: Path) -> None:
    cell = config(corpus, "measure.steps=[0]", "measure.one_step=[0]", "measure.power_iterations=30")
    sgd, adamw = measure_cell(cell, tmp_path)["one_steps"]
    assert (sgd["optimizer"], adamw["optimizer"]) == ("sgd", "adamw")
    data = data_of(cell)
    model = build_model(cell, data.tokenizer, data.vocab_size)
    batch = batch_of(data, Settings("tuning", 2, 1))
    matrices = [s for s in looped_sublayers(model) if s.kind != "norm"]
    change = optimizer_step(
        model, lambda: looped_forward(model, batch).loss, lambda parameters: torch.optim.SGD(parameters, lr=1e-2)
    )
    moved = {name: change[name] for s in matrices for name in s.parameters}
    expected = measure_step(model, lambda: looped_forward(model, batch).final_states, moved, matrices)
    assert sgd["actual"] == pytest.approx(expected.actual, rel=1e-6)
    assert sgd["first_order"] == pytest.approx(expected.first_order, rel=1e-6)
    assert sgd["bound"] == pytest.approx(expected.bound, rel=1e-2)
    for step in (sgd, adamw):
        assert step["first_order"] <= step["bound"]
        assert step["actual"] == pytest.approx(step["first_order"], rel=0.05)
        assert step["all_parameters"] > step["actual"]


def test_untied_blocks_fold_and_sgd_has_no_update_of_adam(corpus: Path, tmp_path: Path) -> None:
    result = measure_cell(
        config(corpus, "plan.kind=stacked", "measure.optimizer=sgd", "train.lr=0.1", "measure.steps=[0, 2]"), tmp_path
    )
    assert {place[2] for place in places(result)} == {"loss"}
    first = result["points"][0]
    assert {s["num_visits"] for s in first["sublayers"]} == {2}
    assert {s["name"] for s in first["sublayers"]} == {"block0.attention", "block0.mlp", "block0.norm"}
    losses = [record["loss_nats"] for record in result["training_loss_nats"]]
    assert losses[1] < losses[0]


def test_a_cell_that_diverges_keeps_what_was_measured(corpus: Path, tmp_path: Path) -> None:
    result = measure_cell(config(corpus, "measure.optimizer=sgd", "train.lr=1e6", "train.max_grad_norm=1e6"), tmp_path)
    assert "step" in result["outcome"]
    assert result["outcome"] != "finished"
    assert (0, 2, "loss") in places(result)
    assert (4, 2, "loss") not in places(result)


def test_shuffled_tokens_keep_their_frequencies_only(corpus: Path) -> None:
    data = data_of(config(corpus))
    changed = shuffled(data, seed=1)
    for name, split in data.splits.items():
        before, after = np.asarray(split.dataset.stream), np.asarray(changed.splits[name].dataset.stream)
        assert not np.array_equal(before, after)
        assert np.array_equal(np.sort(before), np.sort(after))
        assert len(split.dataset) == len(changed.splits[name].dataset)
    assert changed.unigram_loss_nats("tuning") == pytest.approx(data.unigram_loss_nats("tuning"))
    again = shuffled(data, seed=1).splits["train"].dataset.stream
    assert np.array_equal(again, changed.splits["train"].dataset.stream)

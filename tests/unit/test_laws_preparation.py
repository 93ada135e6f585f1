"""Rows before a fit: columns found, mistakes refused, what is left out, and how rows are grouped."""

from __future__ import annotations

import numpy as np
import pytest

from depthscale.budget import ModelShape, count_parameters
from depthscale.errors import ConfigError, DataError
from depthscale.laws import LAWS, DataCard, Objective, Observations
from depthscale.laws.analysis import Question, analyze
from depthscale.laws.preparation import RowRule, map_columns, prepare
from depthscale.plan import DepthPlan

LAW, CHINCHILLA = LAWS["width_depth_tokens"], LAWS["chinchilla"]


def shape_rows(**changes: np.ndarray) -> Observations:
    """Twelve architectures with exact parameters (V = 1000, gelu at 4) and two token counts each."""
    width, depth, tokens = (
        a.ravel() for a in np.meshgrid(np.array([64.0, 128, 256]), np.array([2.0, 4, 8, 16]), np.array([1e8, 1e9]))
    )
    shapes = [
        ModelShape(DepthPlan.stacked(int(l)), 1000, int(m), 1, 1, int(m), int(4 * m), mlp="gelu", norm_placement="pre")
        for m, l in zip(width, depth, strict=True)
    ]
    parameters = np.array([float(count_parameters(shape).non_embedding) for shape in shapes])
    columns = {"width": width, "depth": depth, "tokens": tokens, "parameters": parameters, **changes}
    return Observations(columns, 2.0 + 100 / width + 2 / depth + 400 * tokens**-0.3)


def test_columns_are_completed_from_the_table() -> None:
    table = {"width": [1], "n_layers": [1], "tokens": [1], "loss": [1], "step": [1]}
    found, notes = map_columns(table, LAW, "depth=n_layers")
    assert notes == []
    assert found.sources == {
        "depth": ("n_layers", 1.0),
        "width": ("width", 1.0),
        "tokens": ("tokens", 1.0),
        "step": ("step", 1.0),
    }
    with pytest.raises(DataError, match="reads depth, which the table lacks"):
        map_columns(table, LAW, None)


def test_architectures_are_groups_unless_asked_otherwise() -> None:
    grouped = prepare(shape_rows(), LAW, RowRule(), DataCard(), None)
    assert int(grouped.base.group_codes.max()) + 1 == 12
    assert any("12 groups" in note for note in grouped.notes)
    assert prepare(shape_rows(), LAW, RowRule(independent=True), DataCard(), None).base.groups is None
    few = shape_rows().take(np.arange(6))
    assert prepare(few, LAW, RowRule(), DataCard(), None).base.groups is None


def test_rows_that_differ_from_an_exact_count_are_listed() -> None:
    card = DataCard(vocab_size=1000, mlp_ratio=4.0, embeddings_counted=False)
    assert prepare(shape_rows(), LAW, RowRule(), card, None).findings == ()
    wrong = shape_rows().columns["parameters"] * np.where(np.arange(24) == 5, 1.05, 1.0)
    (finding,) = prepare(shape_rows(parameters=wrong), LAW, RowRule(), card, None).findings
    assert (finding.kind, finding.rows) == ("parameters", (5,))


def test_unfinished_rows_are_left_out_unless_kept() -> None:
    steps = {"step": np.where(np.arange(24) < 3, 5.0, 10.0), "total_steps": np.full(24, 10.0)}
    found = prepare(shape_rows(**steps), LAW, RowRule(), DataCard(), None)
    assert found.base.num_rows == 21
    assert {finding.kind: finding.rows for finding in found.findings}["mid_schedule"] == (0, 1, 2)
    assert prepare(shape_rows(**steps), LAW, RowRule(keep_unfinished=True), DataCard(), None).base.num_rows == 24


def test_the_offset_and_the_cut_are_one_rule_each() -> None:
    found = prepare(shape_rows(), LAW, RowRule(below_rank=4, depth_offset=1.0), DataCard(), None)
    assert found.everything.num_rows == 24
    assert found.base.num_rows == 20
    assert found.everything.column("depth").min() == 1.0
    with pytest.raises(ConfigError, match="expected one rule"):
        RowRule(drop_highest=1, below_rank=2)


def test_several_rates_give_an_envelope_beside_the_fit() -> None:
    sizes, tokens, rate = (
        a.ravel() for a in np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 5), np.array([1e-3, 3e-3]))
    )
    columns = {"parameters": sizes, "tokens": tokens, "rate": rate}
    truth = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
    # The higher rate costs 2 % everywhere.
    loss = CHINCHILLA.predict(truth, columns) * np.where(rate > 2e-3, 1.02, 1.0)
    rows = prepare(Observations(columns, loss), CHINCHILLA, RowRule(), DataCard(), None)
    found, result = analyze(CHINCHILLA, rows, DataCard(), Question(Objective(), num_replicates=0, validate=False))
    assert result["envelope"]["num_rows"] == 25
    assert result["envelope"]["parameters"]["alpha"] == pytest.approx(0.35, abs=1e-6)
    assert found.parameters["E"] > 1.8
    assert result["interval_kind"].startswith("profile likelihood")

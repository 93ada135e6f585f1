"""What to build: every kind of budget, every kind of law, and what is said around the shape."""

from __future__ import annotations

import numpy as np
import pytest

from depthscale.budget import count_parameters, training_state_bytes
from depthscale.errors import ConfigError
from depthscale.laws import LAWS, AdditiveLaw, Form, Objective, Observations, ShapeTemplate, fit
from depthscale.laws.allocation.buildable import Spending, closed_optimum, grid
from depthscale.laws.allocation.recommendation import Wish, recommend
from depthscale.laws.forms import make_forms
from depthscale.laws.frontier import CHINCHILLA_FLOPS
from depthscale.laws.spending import closed_budget
from depthscale.reports.fit_words import allocation_sentences

DEPTH, CHINCHILLA = LAWS["width_depth_tokens"], LAWS["chinchilla"]
TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
TEMPLATE = ShapeTemplate(vocab_size=1000, context_length=128)


def rows(law: AdditiveLaw, truth: dict[str, float], axes: dict[str, np.ndarray], noise: float = 0.002) -> Observations:
    values = [a.ravel() for a in np.meshgrid(*axes.values())]
    columns = dict(zip(axes, values, strict=True))
    wobble = np.exp(noise * np.random.default_rng(0).standard_normal(len(values[0])))
    return Observations(columns, law.predict(truth, columns) * wobble)


@pytest.fixture(scope="module")
def forms() -> list[Form]:
    axes = {"width": np.array([256.0, 512, 1024, 2048]), "depth": np.array([4.0, 8, 16, 32])}
    data = rows(DEPTH, TRUTH, {**axes, "tokens": np.geomspace(1e9, 1e11, 4)})
    return make_forms(fit(DEPTH, data), num_replicates=80)[0]


def test_forms_of_a_depth_law(forms: list[Form]) -> None:
    names = [form.name for form in forms]
    assert names[0] == "width_depth_tokens, as fitted"
    assert "width_depth_tokens, depth less 2" in names
    offsets = {form.name: form.depth_offset for form in forms}
    assert offsets["width_depth_tokens, depth less 2"] == 2.0


def test_forms_that_miss_the_rows_are_named_and_left_out(forms: list[Form]) -> None:
    # Noise of 0.2 % and a wide grid of shapes: parameters alone leave many times the residual variance.
    _, left_out = make_forms(forms[0].fit, num_replicates=50)
    assert any("parameters and tokens alone: its residual variance is" in line for line in left_out)
    assert "parameters and tokens alone" not in [form.name for form in forms]


def test_special_cases_that_the_rows_reject_are_left_out() -> None:
    truth = {**TRUTH, "alpha_l": 2.5, "c_l": 200.0}
    axes = {"width": np.array([256.0, 512, 1024, 2048]), "depth": np.array([4.0, 8, 16, 32])}
    data = rows(DEPTH, truth, {**axes, "tokens": np.geomspace(1e9, 1e11, 4)}, noise=0.001)
    made, left_out = make_forms(fit(DEPTH, data), num_replicates=50)
    assert any("held at 1: rejected" in line for line in left_out)
    assert not any("held at 1" in form.name for form in made)


@pytest.mark.parametrize(
    "spending", [Spending(flops=1e20), Spending(parameters=3e8), Spending(memory=1e10), Spending(tokens=2e10)]
)
def test_every_budget_is_spent_and_not_more(forms: list[Form], spending: Spending) -> None:
    result, _ = recommend(forms, Wish(spending, TEMPLATE))
    best = result["best"]
    shape = TEMPLATE.shape(int(best["width"]), int(best["blocks"]))
    assert best["parameters"] == count_parameters(shape).non_embedding
    assert best["memory"] == training_state_bytes(shape).total
    assert 0.9 * spending.value < best[spending.kind] <= spending.value * (1 + 1e-9)
    assert len(result["form_losses"]) >= 3
    assert result["prediction"][0] < result["loss"] < result["prediction"][1]
    for name in ("width", "blocks", "tokens", "parameters"):
        low, high = result["intervals"][name]
        assert low * (1 - 1e-9) <= best[name] <= high * (1 + 1e-9)
    # What the budget leaves open follows each draw's own frontier.
    for name in {"tokens", "parameters"} - {spending.kind}:
        if spending.kind != "memory" or name == "tokens":
            low, high = result["intervals"][name]
            assert low < high, name
    said = dict(allocation_sentences({**result, "measured": None}))["95 % interval"]
    assert (f"{spending.kind} held" in said) == (spending.kind in {"tokens", "parameters"})
    assert all(0 <= shape["above_best"] <= 0.01 for shape in result["near_optimum"]["shapes"])
    assert not result["is_extrapolation"]
    first = result["closed_form"][0]
    assert first["law"] == "width ~ depth^e"
    assert first["exponent"] == pytest.approx(TRUTH["alpha_l"] / TRUTH["alpha_m"], rel=0.15)
    assert first["theory_inside"] == (first["interval"][0] <= 1 <= first["interval"][1])


def test_the_optimum_is_where_theory_puts_it(forms: list[Form]) -> None:
    """At 12 m^2 l parameters alpha_m c_m m^-alpha_m = 2 alpha_l c_l l^-alpha_l (arXiv 2602.05970)."""
    twelve = ShapeTemplate(vocab_size=1000, context_length=128, mlp_ratio=4.0, gated=False)
    result, _ = recommend(forms, Wish(Spending(parameters=1e9), twelve))
    p, best = forms[0].fit.parameters, result["best"]
    width_gain = p["alpha_m"] * p["c_m"] * best["width"] ** -p["alpha_m"]
    depth_gain = 2 * p["alpha_l"] * p["c_l"] * best["depth"] ** -p["alpha_l"]
    assert width_gain == pytest.approx(depth_gain, rel=0.25)  # steps of 64 and whole blocks


def test_a_law_without_shape_keeps_the_aspect() -> None:
    truth = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
    data = rows(CHINCHILLA, truth, {"parameters": np.geomspace(1e8, 1e10, 6), "tokens": np.geomspace(2e9, 2e11, 6)})
    forms, _ = make_forms(fit(CHINCHILLA, data, Objective("log_huber")), num_replicates=80)
    result, candidates = recommend(forms, Wish(Spending(flops=1e24), TEMPLATE, aspect=100.0))
    assert np.abs(candidates.width / (candidates.blocks * 100) - 1).max() < 0.35
    assert any("does not read shape" in note for note in result["notes"])
    assert result["map"] is None
    assert result["title"].startswith("EXTRAPOLATION (")
    assert "flops 8" in result["title"]
    assert result["most_useful_run"]["variance_removed"] > 0
    equal = result["closed_form"][0]
    assert equal["law"] == "tokens ~ parameters^e"
    assert equal["exponent"] == pytest.approx(truth["alpha"] / truth["beta"], abs=0.1)


def test_rounds_are_chosen_where_the_law_reads_them() -> None:
    law = LAWS["effective_depth"]
    truth = dict(zip(law.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.6, 0.299), strict=True))
    axes = {
        "width": np.array([256.0, 512, 1024, 2048]),
        "blocks": np.array([4.0, 8, 16]),
        "rounds": np.array([1.0, 2, 4]),
    }
    data = rows(law, truth, {**axes, "tokens": np.geomspace(1e9, 1e11, 3)})
    forms, _ = make_forms(fit(law, data), num_replicates=30)
    budget = closed_budget(law, data)
    assert budget is not None
    for spending in (Spending(parameters=2e8), Spending(memory=4e9), Spending(tokens=1e10)):
        result, candidates = recommend(forms, Wish(spending, TEMPLATE, rounds=(1, 4)))
        assert set(np.unique(candidates.rounds)) == {1.0, 4.0}
        # A round costs as much as a block: no shape may cost more than the frontier's, whatever its rounds.
        most = result["closed_optimum"]["flops"]
        assert (6 * candidates.parameters * candidates.rounds * candidates.tokens <= 1.05 * most).all()
    # Rows cost by their own rounds, and not by the rounds that the frontier holds.
    np.testing.assert_allclose(
        budget.spent(data.columns),
        72 * data.column("width") ** 2 * data.column("blocks") * data.column("rounds") * data.column("tokens"),
    )
    once, _ = recommend(forms, Wish(Spending(flops=1e20), TEMPLATE, rounds=(1, 4)))
    # Per FLOP a block is better than a round (exponent 1.3 against 0.6).
    assert once["best"]["rounds"] == 1


def test_closed_optimum_spends_what_there_is() -> None:
    p = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
    for spending, column in ((Spending(parameters=1e9), "parameters"), (Spending(tokens=1e11), "tokens")):
        compute, shape = closed_optimum(CHINCHILLA, p, CHINCHILLA_FLOPS, spending)
        assert shape[column] == pytest.approx(spending.value, rel=1e-6)
        assert 6 * shape["parameters"] * shape["tokens"] == pytest.approx(compute)


def test_grid_is_whole_and_dense_around_its_center() -> None:
    values = grid(300, 20000, 64, 4000)
    assert all(value % 64 == 0 for value in values)
    near = [value for value in values if 3700 < value < 4300]
    assert max(np.diff(near)) == 64


def test_what_is_refused(forms: list[Form]) -> None:
    with pytest.raises(ConfigError, match="2 budgets"):
        Spending(flops=1e20, tokens=1e9)
    with pytest.raises(ConfigError, match="0 budgets"):
        Spending()
    with pytest.raises(ConfigError, match="does not read rounds"):
        recommend(forms, Wish(Spending(flops=1e20), TEMPLATE, rounds=(2,)))

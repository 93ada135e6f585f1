"""Frontiers, budgets, conventions, regimes and held-out budgets where rows or laws are not the usual ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from depthscale.errors import ConfigError, DataError
from depthscale.laws import LAWS, AdditiveLaw, Form, Observations, ShapeTemplate, fit, optimal_shape
from depthscale.laws.allocation.buildable import Spending, closed_optimum
from depthscale.laws.allocation.recommendation import Wish, recommend
from depthscale.laws.analysis import Question, analyze
from depthscale.laws.card import DataCard
from depthscale.laws.conventions import standard_conventions
from depthscale.laws.forms import make_forms
from depthscale.laws.frontier import optimal_loss, optimal_size_quantity
from depthscale.laws.law import Factor, Term
from depthscale.laws.preparation import Prepared, RowRule, prepare
from depthscale.laws.quantities import Traced
from depthscale.laws.regime import regime_test
from depthscale.laws.spending import closed_budget, closed_map, derived_quantities, frontier_table, isoflop_curves
from depthscale.laws.validation import validate_extrapolation
from depthscale.reports.fit_words import regime_words

DEPTH, CHINCHILLA = LAWS["width_depth_tokens"], LAWS["chinchilla"]
TRUTH = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
DEPTH_TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
QUICK = Question(num_replicates=0, validate=False)
PRODUCT = AdditiveLaw(
    "product",
    (Term("A", (Factor("width", "a"), Factor("depth", "b"))), Term("K", (Factor("tokens", "c"),))),
    floor="E",
)


def rows(law: AdditiveLaw, truth: dict[str, float], noise: float = 0.002, **axes: np.ndarray) -> Observations:
    values = [a.ravel() for a in np.meshgrid(*axes.values())]
    columns = dict(zip(axes, values, strict=True))
    wobble = np.exp(noise * np.random.default_rng(0).standard_normal(len(values[0])))
    return Observations(columns, law.predict(truth, columns) * wobble)


def sized(**more: np.ndarray) -> Observations:
    data = rows(CHINCHILLA, TRUTH, parameters=np.geomspace(1e8, 1e10, 6), tokens=np.geomspace(2e9, 2e11, 5))
    return Observations({**data.columns, **more}, data.loss)


def shaped(depths: tuple[float, ...] = (2, 6, 14, 30)) -> Observations:
    axes = {
        "width": np.array([256.0, 512, 1024, 2048]),
        "depth": np.array(depths),
        "tokens": np.geomspace(1e9, 1e11, 4),
    }
    return rows(DEPTH, DEPTH_TRUTH, **axes)


def prepared(data: Observations, law: AdditiveLaw, card: DataCard | None = None, offset: float = 0.0) -> Prepared:
    return prepare(data, law, RowRule(depth_offset=offset), card or DataCard(), None)


def test_two_sizes_in_one_term_are_fitted_without_a_frontier() -> None:
    truth = {"E": 1.8, "A": 900.0, "K": 500.0, "a": 0.7, "b": 0.4, "c": 0.3}
    axes = {
        "width": np.array([256.0, 512, 1024]),
        "depth": np.array([4.0, 8, 16]),
        "tokens": np.geomspace(1e9, 1e11, 4),
    }
    data = rows(PRODUCT, truth, **axes)
    assert closed_budget(PRODUCT, data) is None
    found, result = analyze(PRODUCT, prepared(data, PRODUCT), DataCard(), QUICK)
    assert found.parameters["b"] == pytest.approx(0.4, abs=0.1)
    assert result["frontier"] == []
    assert result["budget"] is None
    assert any("'product' has no closed frontier, so none is given" in line for line in result["warnings"])


def test_a_law_over_depth_and_blocks_without_width_has_no_ratio() -> None:
    law = AdditiveLaw(
        "two", (Term("A", (Factor("depth", "a"), Factor("blocks", "b"))), Term("K", (Factor("tokens", "c"),))), "E"
    )
    assert derived_quantities(law, None, 0.0) == []


def test_too_few_depths_come_before_a_held_fit_that_is_refused() -> None:
    axes = [256.0, 384, 512, 768, 1024], [2.0, 3, 4, 6], [1e9, 4e9, 1.6e10]
    width, depth, tokens = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    loss = 1.75 + 275 / width**0.95 + 0.05 * depth**0.4 + 8.49 * (tokens / 1e6) ** -0.3
    loss = loss * np.exp(0.003 * np.random.default_rng(3).standard_normal(len(loss)))
    rising = Observations({"width": width, "depth": depth, "tokens": tokens}, loss)
    answer = regime_test(DEPTH, rising)
    assert answer.verdict == "not identifiable"
    assert "4 distinct depths" in answer.reasons[0]
    refused = answer.held["ensemble_averaging"]
    assert refused.deviance is None
    assert refused.refused
    assert any("alpha_l held at 1 the fit is not certified" in reason for reason in answer.reasons)
    words = {name: vars(test) for name, test in answer.held.items()}
    assert "held at 1 no fit is certified" in regime_words({"reasons": answer.reasons, "held": words})


def test_budgets_in_steps_hold_the_largest_out() -> None:
    sizes = np.concatenate([(c / 120) ** 0.5 * np.geomspace(0.2, 5, 10) for c in (1e18, 1e19, 1e20, 1e21)])
    flops = np.repeat([1e18, 1e19, 1e20, 1e21], 10)
    columns = {"parameters": sizes, "tokens": flops / 6 / sizes}
    wobble = np.exp(0.003 * np.random.default_rng(0).standard_normal(40))
    data = Observations({**columns, "flops": flops}, CHINCHILLA.predict(TRUTH, columns) * wobble)
    held = validate_extrapolation(fit(CHINCHILLA, data), "flops")
    assert held.num_splits == 1
    assert held.test_error < 0.02
    # Counted budgets differ in their last digits; they are the same four all the same.
    counted = data.with_column("flops", 6 * columns["parameters"] * columns["tokens"])
    assert validate_extrapolation(fit(CHINCHILLA, counted), "flops").test_error == held.test_error
    with pytest.raises(ConfigError, match=r"every row has flops = 1e\+20; expected two budgets"):
        validate_extrapolation(fit(CHINCHILLA, data.with_column("flops", np.full(40, 1e20))), "flops")


def test_conventions_of_the_depth_start_from_what_the_base_leaves_out() -> None:
    data = shaped()
    assert {"depth - 1", "depth - 2", "every layer counted"} & set(standard_conventions(data, data)) == {"depth - 1"}
    found = standard_conventions(data, data, depth_offset=2.0)
    np.testing.assert_array_equal(found["every layer counted"].column("depth"), data.column("depth") + 2)
    np.testing.assert_array_equal(found["depth - 1"].column("depth"), data.column("depth") + 1)
    assert "depth - 2" not in found
    table = data.with_column("depth", data.column("depth") + 2)
    _, result = analyze(DEPTH, prepared(table, DEPTH, offset=2.0), DataCard(), QUICK)
    assert {"every layer counted", "depth - 1"} <= {row["name"] for row in result["audit"]["rows"]}
    assert result["budget"]["offsets"] == {"depth": 2.0}


def test_layers_that_the_depth_leaves_out_cost_as_the_others_do() -> None:
    data = shaped()
    budget = closed_budget(DEPTH, data, 2.0)
    assert budget is not None
    width, depth, tokens = (data.column(name) for name in DEPTH.columns)
    np.testing.assert_allclose(budget.spent(data.columns), 72 * width**2 * (depth + 2) * tokens)
    arrays = {name: np.asarray(value) for name, value in DEPTH_TRUTH.items()}
    shape = optimal_shape(DEPTH, arrays, budget, 1e20)
    assert float(budget.spent(shape)) == pytest.approx(1e20)

    def loss(x: np.ndarray) -> float:
        m, l = np.exp(x)
        columns = {"width": m, "depth": l, "tokens": 1e20 / (72 * m**2 * (l + 2))}
        return float(DEPTH.predict(DEPTH_TRUTH, {k: np.array([v]) for k, v in columns.items()})[0])

    least = minimize(loss, np.log([1000.0, 10.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-15})
    np.testing.assert_allclose(np.exp(least.x), [float(shape["width"]), float(shape["depth"])], rtol=1e-4)
    assert float(optimal_loss(DEPTH, arrays, budget, 1e20)) == pytest.approx(least.fun)
    # Every other budget is spent just as exactly, at the optimum.
    for spending in (Spending(parameters=1e8), Spending(tokens=1e10)):
        compute, built = closed_optimum(DEPTH, DEPTH_TRUTH, budget, spending)
        assert 72 * built["width"] ** 2 * built["depth"] * built["tokens"] == pytest.approx(compute)
        spent = {"parameters": 12 * built["width"] ** 2 * built["depth"], "tokens": built["tokens"]}
        assert spent[spending.kind] == pytest.approx(spending.value, rel=1e-6)


def test_what_is_printed_of_a_depth_counts_every_layer() -> None:
    found = fit(DEPTH, shaped())
    budget = closed_budget(DEPTH, found.data, 2.0)
    assert budget is not None
    arrays = {name: np.asarray(value) for name, value in found.parameters.items()}
    read = float(optimal_shape(DEPTH, arrays, budget, 1e20)["depth"])
    quantity = optimal_size_quantity(DEPTH, budget, "depth", 1e20)
    assert float(quantity.function(arrays)) == pytest.approx(read + 2)
    for row in (frontier_table(found, None, budget, 0.95)[0], closed_map(found, budget, 1e20)["best"]):
        spent = 72 * row["width"] ** 2 * row["depth"] * row["tokens"]
        assert spent == pytest.approx(row.get("flops", 1e20))
    curve = isoflop_curves(found, budget)[0]
    best = optimal_shape(DEPTH, arrays, budget, curve["flops"])
    assert curve["held"]["depth"] == pytest.approx(float(best["depth"]) + 2)
    least = float(optimal_loss(DEPTH, arrays, budget, curve["flops"]))
    assert min(curve["losses"]) == pytest.approx(least, rel=1e-3)
    assert min(curve["losses"]) >= least
    # Its gradient, by which it is profiled, is exact through Newton's method too.
    traced = Traced(found.problem.bound, DEPTH.parameters, [quantity])
    kinds, step = np.array([0]), 1e-6 * np.eye(7)[5]
    up, down = (traced((found.internal + s)[None], kinds)[0][0] for s in (step, -step))
    assert traced(found.internal[None], kinds)[1][0][5] == pytest.approx((up - down) / 2e-6, rel=1e-5)


def test_the_form_over_width_and_depth_keeps_the_layers_that_are_left_out() -> None:
    shapes = shaped()
    size = 12 * shapes.column("width") ** 2 * (shapes.column("depth") + 2)
    columns = {**shapes.columns, "parameters": size}
    wobble = np.exp(0.01 * np.random.default_rng(0).standard_normal(len(size)))
    data = Observations(columns, shapes.loss * wobble)
    forms, _ = make_forms(fit(CHINCHILLA, data), 2.0, num_replicates=40)
    assert {form.name: form.depth_offset for form in forms}["width, depth and tokens"] == 2.0


def test_conventions_keep_the_tables_own_tokens() -> None:
    base = sized()
    size = base.column("parameters")
    width = np.sqrt(size / 240)
    full = {**base.columns, "width": width, "depth": np.full(30, 20.0), "parameters": size + 32_000 * width}
    own = Observations({**full, "flops": 7 * full["parameters"] * full["tokens"]}, base.loss)
    found = standard_conventions(own, own, None, 32_000, 2048)
    np.testing.assert_array_equal(found["embeddings not counted"].column("tokens"), own.column("tokens"))
    np.testing.assert_allclose(found["embeddings not counted"].column("parameters"), size)
    assert "attention counted in FLOPs" not in found
    # Tokens that were derived from FLOPs are derived again.
    card = DataCard(vocab_size=32_000, embeddings_counted=True)
    table = Observations({name: values for name, values in own.columns.items() if name != "tokens"}, own.loss)
    asked = Question(num_replicates=0, validate=False, context=2048)
    for data, derived in ((own, False), (table, True)):
        _, result = analyze(CHINCHILLA, prepared(data, CHINCHILLA, card), card, asked)
        assert ("attention counted in FLOPs" in {row["name"] for row in result["audit"]["rows"]}) == derived


def test_compute_is_refused_where_rounds_are_not_counted() -> None:
    looped = sized(rounds=np.tile([1.0, 4.0], 15))
    with pytest.raises(DataError, match=r"rounds reach 4 .* fit looped_chinchilla"):
        closed_budget(CHINCHILLA, looped)
    assert closed_budget(CHINCHILLA, sized(rounds=np.ones(30))) is not None
    # The fit itself stands.
    found, result = analyze(CHINCHILLA, prepared(looped, CHINCHILLA), DataCard(), QUICK)
    assert found.parameters["alpha"] == pytest.approx(0.35, abs=0.05)
    assert result["frontier"] == result["isoflop"] == []
    assert any("looped_chinchilla" in line for line in result["warnings"])
    # A depth that counts visits has the rounds in it.
    shapes = shaped((4.0, 8, 16))
    blocks = shapes.with_column("rounds", np.full(shapes.num_rows, 2.0))
    assert closed_budget(DEPTH, blocks.with_column("blocks", shapes.column("depth") / 2)) is not None
    with pytest.raises(DataError, match="rounds reach 2"):
        closed_budget(DEPTH, blocks.with_column("blocks", shapes.column("depth")))


def test_the_best_rate_is_not_the_luckiest_seed() -> None:
    base = sized()
    seeds = np.random.default_rng(1).normal(0, 0.01, (3, 30))
    columns = {name: np.tile(values, 3) for name, values in base.columns.items()}
    one = Observations({**columns, "rate": np.full(90, 1e-3)}, np.concatenate([base.loss * np.exp(s) for s in seeds]))
    rule = RowRule(keep_duplicates=True)
    _, result = analyze(CHINCHILLA, prepare(one, CHINCHILLA, rule, DataCard(), None), DataCard(), QUICK)
    assert result["envelope"] is None
    # With a second, worse rate the envelope is the first rate's mean over seeds.
    both = {name: np.tile(values, 2) for name, values in one.columns.items()} | {"rate": np.repeat([1e-3, 3e-3], 90)}
    two = Observations(both, np.concatenate([one.loss, 1.1 * one.loss]))
    _, result = analyze(CHINCHILLA, prepare(two, CHINCHILLA, rule, DataCard(), None), DataCard(), QUICK)
    assert result["envelope"]["num_rows"] == 30
    means = base.with_loss(one.loss.reshape(3, 30).mean(axis=0))
    assert result["envelope"]["parameters"] == pytest.approx(fit(CHINCHILLA, means).parameters, rel=1e-6)


def test_a_budget_far_below_the_rows_is_extrapolation() -> None:
    forms: list[Form] = make_forms(fit(CHINCHILLA, sized()), num_replicates=40)[0]
    template = ShapeTemplate(vocab_size=1000, context_length=128)
    result, _ = recommend(forms, Wish(Spending(flops=1e15), template))
    assert result["beyond_data"]["flops"] == pytest.approx(1.2e18 / 1e15, rel=0.5)
    assert result["is_extrapolation"]
    assert "flops" in result["title"]
    inside, _ = recommend(forms, Wish(Spending(flops=1e20), template))
    assert inside["beyond_data"]["flops"] == 1.0


def test_a_shape_is_chosen_by_a_depth_that_leaves_layers_out() -> None:
    forms = make_forms(fit(DEPTH, shaped()), 2.0, num_replicates=40)[0]
    template = ShapeTemplate(vocab_size=1000, context_length=128, mlp_ratio=4.0, gated=False)
    for spending in (Spending(flops=1e20), Spending(parameters=3e8)):
        result, _ = recommend(forms, Wish(spending, template))
        frontier = result["closed_optimum"]
        assert 72 * frontier["width"] ** 2 * frontier["depth"] * frontier["tokens"] == pytest.approx(frontier["flops"])
        # Buildable shapes count norms, head and attention too, and widths go in steps of 64.
        assert result["best"]["depth"] == pytest.approx(frontier["depth"], rel=0.25)
        assert result["beyond_data"]["flops"] == 1.0

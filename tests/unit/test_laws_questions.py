"""Profiles, comparison, regimes, validation, conventions and coverage on rows whose truth is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from depthscale.errors import ConfigError, DataError
from depthscale.laws import (
    CHINCHILLA_FLOPS,
    LAWS,
    FitError,
    JointLaw,
    Objective,
    Observations,
    bootstrap,
    compare,
    fit,
    frontier_exponent_quantity,
    hessian_covariance,
    join_arms,
    optimal_size_quantity,
    parameter,
    profile,
    ratio,
    regime_test,
    simulate_coverage,
    validate_extrapolation,
    validate_groups,
    validate_rows,
)
from depthscale.laws.conventions import audit, with_attention_flops, without_embeddings
from depthscale.laws.quantities import Quantity, Traced

CHINCHILLA = LAWS["chinchilla"]
DEPTH = LAWS["width_depth_tokens"]
TRUTH = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}


def grid(noise: float = 0.003, seed: int = 0, truth: dict[str, float] = TRUTH) -> Observations:
    sizes, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e10, 7), np.geomspace(2e9, 2e11, 7)))
    columns = {"parameters": sizes, "tokens": tokens}
    noise_ = noise * np.random.default_rng(seed).standard_normal(len(sizes))
    return Observations(columns, CHINCHILLA.predict(truth, columns) * np.exp(noise_), groups=np.arange(len(sizes)))


def depth_grid(exponent: float, depths: np.ndarray, kappa: float = 0.0, noise: float = 0.002) -> Observations:
    width, depth, tokens = (
        a.ravel() for a in np.meshgrid(np.geomspace(128, 2048, 5), depths, np.geomspace(1e9, 1e11, 4))
    )
    loss = 1.7 + 200 / width + 2.0 * (depth / depths[0]) ** -exponent * (width / 512) ** -kappa + 500 * tokens**-0.3
    loss = loss * np.exp(noise * np.random.default_rng(5).standard_normal(len(loss)))
    return Observations({"width": width, "depth": depth, "tokens": tokens}, loss)


@pytest.fixture(scope="module")
def fitted() -> object:
    return fit(CHINCHILLA, grid())


def test_profile_of_a_nearly_linear_parameter_is_the_walds(fitted) -> None:
    errors = hessian_covariance(fitted).errors
    for interval in profile(fitted, [parameter(fitted, name) for name in ("E", "alpha", "beta")]):
        half = 2.0154 * errors[interval.name]  # t(44) at 97.5 %
        assert interval.upper - interval.estimate == pytest.approx(half, rel=0.15)
        assert interval.estimate - interval.lower == pytest.approx(half, rel=0.15)
        assert interval.is_closed
        assert (np.diff(interval.values) >= 0).all()


def test_profile_of_a_derived_quantity_is_the_profile_of_the_held_one(fitted) -> None:
    (interval,) = profile(fitted, [ratio("alpha", "beta")])
    # The same constraint by hand: alpha = r * beta leaves four parameters; scan beta at r = the upper end.
    values = np.linspace(0.3, 0.45, 61)
    totals = [
        fit(CHINCHILLA, fitted.data, fixed={"beta": b, "alpha": interval.upper * b}, num_starts=6).total for b in values
    ]
    rise = (min(totals) / fitted.total - 1) * (49 - 5)
    assert rise == pytest.approx(4.0617, rel=0.02)  # F(1, 44) at 95 %


def test_gradients_of_quantities_are_exact(fitted) -> None:
    bound = fitted.problem.bound
    size = optimal_size_quantity(CHINCHILLA, CHINCHILLA_FLOPS, "parameters", 1e21)
    traced = Traced(bound, CHINCHILLA.parameters, [frontier_exponent_quantity(CHINCHILLA, CHINCHILLA_FLOPS), size])
    for kind in (0, 1):
        kinds = np.array([kind])
        gradient = traced(fitted.internal[None], kinds)[1][0]
        for p in range(5):
            step = np.zeros(5)
            step[p] = 1e-6
            up, down = (traced((fitted.internal + s)[None], kinds)[0][0] for s in (step, -step))
            assert gradient[p] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-8)


def test_a_quantity_that_is_a_constant_is_open_and_no_error(fitted) -> None:
    (interval,) = profile(fitted, [Quantity("one", lambda p: 0 * p["E"] + 1)])
    assert interval.lower_open
    assert interval.upper_open


def test_bootstrap_is_seeded_and_counts_its_units(fitted) -> None:
    first, again, other = (bootstrap(fitted, 50, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.parameters, again.parameters)
    assert not np.array_equal(first.parameters, other.parameters)
    assert first.num_units == 49
    assert len(first.parameters) + first.num_discarded == 50
    spread = bootstrap(fitted, 400).errors()["alpha"]
    assert spread == pytest.approx(hessian_covariance(fitted).errors["alpha"], rel=0.35)
    with pytest.raises(ConfigError, match="2 groups"):
        bootstrap(
            dataclasses.replace(fitted, data=dataclasses.replace(fitted.data, groups=np.arange(49) % 2)), clusters=True
        )


def test_replicates_that_are_not_certified_are_counted_out() -> None:
    # Three depths: a resample that misses one cannot tell floor, coefficient and exponent apart.
    depth = np.repeat([2.0, 8.0, 32.0], [2, 6, 6])
    loss = (1 + 3 / depth) * np.exp(0.01 * np.random.default_rng(0).standard_normal(14))
    found = fit(LAWS["power_with_floor"], Observations({"x": depth}, loss))
    draws = bootstrap(found, 300)
    missed = (np.random.default_rng(0).multinomial(14, np.full(14, 1 / 14), size=300)[:, :2].sum(axis=1) == 0).sum()
    assert missed > 10
    assert draws.num_discarded >= missed
    assert len(draws.parameters) == 300 - draws.num_discarded


def test_compare_finds_the_parameter_that_differs_and_the_saving() -> None:
    new = {**TRUTH, "A": 400.0}
    found = compare(CHINCHILLA, grid(), grid(seed=1, truth=new), CHINCHILLA_FLOPS, [1e20], num_replicates=300)
    p_values = {test.shared: test.p_value for test in found.tests}
    assert p_values[("alpha", "beta")] > 0.01
    assert p_values[CHINCHILLA.parameters] < 1e-10
    (saving,) = found.savings
    # By hand: the optimum only scales, so the same loss needs (400/480)^((1/alpha) / (1/alpha + 1/beta)) ... computed
    # from the law's own frontier at the true coefficients.
    from depthscale.laws import compute_saved

    truth = compute_saved(CHINCHILLA, TRUTH, new, CHINCHILLA_FLOPS, 1e20)
    assert saving.is_identified
    assert saving.interval[0] < truth < saving.interval[1]
    low, high = saving.bootstrap_interval
    assert low < truth < high
    assert saving.estimate == pytest.approx(truth, abs=0.1)


def test_compare_finds_a_crossing() -> None:
    new = {**TRUTH, "A": 1400.0, "alpha": 0.40}
    found = compare(CHINCHILLA, grid(0.001), grid(0.001, 1, new), CHINCHILLA_FLOPS, [1e19, 1e22], num_replicates=50)
    assert len(found.crossings) == 1
    assert found.savings[0].estimate < 0 < found.savings[1].estimate
    assert 1e19 < found.crossings[0] < 1e22


def test_sharing_everything_is_the_pooled_fit() -> None:
    arms = [grid(), grid(seed=1)]
    joint = JointLaw(CHINCHILLA, ("a", "b"))
    shared = fit(joint, join_arms(arms), shared=joint.pairs(CHINCHILLA.parameters))
    pooled = Observations(
        {n: np.concatenate([a.column(n) for a in arms]) for n in CHINCHILLA.columns},
        np.concatenate([a.loss for a in arms]),
    )
    alone = fit(CHINCHILLA, pooled).parameters
    for name, value in alone.items():
        assert shared.parameters[f"{name}[a]"] == pytest.approx(value, rel=1e-7)
        assert shared.parameters[f"{name}[b]"] == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize(
    ("exponent", "verdict"), [(1.0, "ensemble_averaging"), (3.0, "procedural_assembly"), (2.0, "neither")]
)
def test_regimes_are_told_apart_on_a_wide_design(exponent: float, verdict: str) -> None:
    answer = regime_test(DEPTH, depth_grid(exponent, np.array([2.0, 3, 4, 6, 8, 12, 16, 24])))
    assert answer.verdict == verdict
    assert answer.exponent.contains(exponent)
    assert answer.interaction_p_value > 1e-3
    assert answer.slopes[0].exponent == pytest.approx(exponent, abs=0.15)


def test_few_or_narrow_depths_are_not_identifiable() -> None:
    few = regime_test(DEPTH, depth_grid(1.0, np.array([2.0, 4, 8, 16, 32])))
    assert few.verdict == "not identifiable"
    assert "5 distinct depths" in few.reasons[0]
    narrow = regime_test(DEPTH, depth_grid(1.0, np.arange(4.0, 13.0)))
    assert "factor 3.00" in narrow.reasons[0]


def test_an_interaction_of_width_and_depth_is_found() -> None:
    answer = regime_test(DEPTH, depth_grid(1.0, np.array([2.0, 3, 4, 6, 8, 12, 16, 24]), kappa=0.15))
    assert answer.interaction_p_value < 1e-6


def test_validation_on_rows_that_follow_the_law(fitted) -> None:
    assert validate_rows(fitted).test_error == pytest.approx(0.003 * np.sqrt(2 / np.pi), rel=0.3)
    groups = validate_groups(dataclasses.replace(fitted, data=fitted.data.grouped_by(["parameters"])))
    assert groups.num_splits == 7
    far = validate_extrapolation(fitted, "tokens")
    assert far.coverage > 0.7
    # A law with the wrong form fails where it matters: beyond its rows.
    curved = grid(1e-4)
    bent = curved.with_loss(curved.loss + 0.05 * (curved.column("tokens") / 2e11))
    assert validate_extrapolation(fit(CHINCHILLA, bent), "tokens").coverage < 0.5


def test_audit_reports_what_a_convention_does() -> None:
    data = grid()
    found = audit(CHINCHILLA, data, {"half the tokens": data.with_column("tokens", data.column("tokens") / 2)})
    rows = {row.name: row for row in found.rows}
    assert rows["half the tokens"].parameters["beta"] == pytest.approx(found.base["beta"], rel=1e-7)
    assert rows["half the tokens"].parameters["B"] < found.base["B"]
    assert set(rows) == {"half the tokens", "Huber of log loss", "squares of raw loss"}
    assert found.spread("B") > found.spread("beta")


def test_embedding_and_attention_conventions() -> None:
    columns = {
        "width": np.array([512.0, 1024.0]),
        "depth": np.array([8.0, 16.0]),
        "parameters": np.array([5e7, 3e8]),
        "flops": np.array([1e18, 1e19]),
    }
    data = Observations(columns, np.array([3.0, 2.5]))
    less = without_embeddings(data, 32_000)
    assert less.column("parameters")[0] == 5e7 - 32_000 * 512
    assert less.column("tokens")[0] == pytest.approx(1e18 / 6 / (5e7 - 32_000 * 512))
    seen = with_attention_flops(data, 2048)
    assert seen.column("tokens")[1] == pytest.approx(1e19 / (6 * 3e8 + 12 * 16 * 1024 * 2048))
    with pytest.raises(DataError, match="fewer parameters than its embedding"):
        without_embeddings(data, 1_000_000)


def test_attention_flops_are_the_budgets() -> None:
    from depthscale.budget import ModelShape, flops_per_token
    from depthscale.plan import DepthPlan

    flops = flops_per_token(ModelShape(DepthPlan.stacked(8), 1000, 512, 8, 8, 64, 2048), 2048)
    assert 3 * flops.attention_scores == 12 * 8 * 512 * 2048


def test_coverage_counts(fitted) -> None:
    found = simulate_coverage(fitted, ["alpha"], "resampled", num_simulations=30, num_replicates=60)
    assert found.num_certified == 30
    assert set(found.shares["alpha"]) >= {"jacobian", "sandwich", "profile", "row_bootstrap", "cluster_bootstrap"}
    assert all(0.7 <= share <= 1 for share in found.shares["alpha"].values())


def test_fixed_and_shared_parameters_hold_exactly() -> None:
    held = fit(CHINCHILLA, grid(), fixed={"A": 470.0, "beta": 0.36, "E": 1.79})
    assert held.parameters["A"] == pytest.approx(470.0, rel=1e-12)
    assert held.parameters["beta"] == pytest.approx(0.36, rel=1e-12)
    assert held.parameters["E"] == pytest.approx(1.79, rel=1e-12)
    assert fit(CHINCHILLA, grid(), shared=[("alpha", "beta")]).parameters["alpha"] == pytest.approx(
        fit(CHINCHILLA, grid(), shared=[("alpha", "beta")]).parameters["beta"], rel=1e-12
    )
    with pytest.raises(ConfigError, match="did you mean 'alpha'"):
        fit(CHINCHILLA, grid(), fixed={"alpa": 1.0})
    with pytest.raises(ConfigError, match="positive"):
        fit(CHINCHILLA, grid(), fixed={"A": -1.0})
    with pytest.raises(ConfigError, match="fixed or shared once"):
        fit(CHINCHILLA, grid(), fixed={"alpha": 0.3, "beta": 0.4}, shared=[("alpha", "beta")])


def test_too_few_rows_are_refused() -> None:
    data = grid().take(np.arange(3))
    with pytest.raises(FitError):
        fit(CHINCHILLA, data, Objective())


def test_savings_that_the_rows_do_not_settle_are_not_identified() -> None:
    near, never = ({**TRUTH, "E": floor} for floor in (1.86, 2.4))
    close = compare(CHINCHILLA, grid(0.02), grid(0.02, 1, near), CHINCHILLA_FLOPS, [1e25], num_replicates=50)
    assert close.savings[0].bootstrap_interval is None
    assert close.savings[0].interval[0] == -np.inf
    far = compare(CHINCHILLA, grid(), grid(seed=1, truth=never), CHINCHILLA_FLOPS, [1e24], num_replicates=50)
    assert np.isnan(far.savings[0].estimate)
    assert not far.savings[0].is_identified


def test_rows_without_weight_are_as_absent() -> None:
    data = grid()
    kept = np.arange(49) % 3 > 0
    weighed = dataclasses.replace(data, weights=kept.astype(float))
    for objective in (Objective(), Objective("log_huber")):
        here, there = fit(CHINCHILLA, weighed, objective), fit(CHINCHILLA, data.take(kept), objective)
        assert here.parameters == pytest.approx(there.parameters, rel=1e-6)
        assert here.value == pytest.approx(there.value, rel=1e-9)
    assert hessian_covariance(fit(CHINCHILLA, weighed)).errors == pytest.approx(
        hessian_covariance(fit(CHINCHILLA, data.take(kept))).errors, rel=1e-5
    )


def test_a_solver_that_stops_early_gets_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    from depthscale.laws import fitting

    def hurried(problem: object, start: np.ndarray) -> object:
        return minimize(problem, start, max_iterations=6)

    minimize = fitting.minimize
    monkeypatch.setattr(fitting, "minimize", hurried)
    with pytest.raises(FitError, match=r"Newton step .* standard errors"):
        fit(DEPTH, depth_grid(1.0, np.array([2.0, 3, 4, 6, 8])))


def test_the_profile_of_huber_holds_its_truth_about_as_often_as_said() -> None:
    inside = 0
    for seed in range(40):
        found = fit(CHINCHILLA, grid(seed=seed), Objective("log_huber"), num_starts=8)
        inside += profile(found, [parameter(found, "alpha")])[0].contains(0.35)
    # Binomial(40, 0.95) is below 33 with probability 0.004.
    assert inside >= 33

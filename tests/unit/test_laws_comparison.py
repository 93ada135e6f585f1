"""Two arms where something is missing: rows, a frontier, a certificate; and what units may not change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from depthscale.errors import DataError
from depthscale.laws import (
    CHINCHILLA_FLOPS,
    LAWS,
    WIDTH_DEPTH_TOKENS_FLOPS,
    Comparison,
    FitError,
    JointLaw,
    Objective,
    Observations,
    compare,
    fit,
    hessian_covariance,
    jacobian_covariance,
    join_arms,
    parameter,
    profile,
    regime_test,
    sandwich_covariance,
    search,
)
from depthscale.laws import comparison as comparison_module
from depthscale.laws.comparison import crossings
from depthscale.laws.comparison_analysis import compare_rows
from depthscale.laws.nested_tests import hypotheses, nested_test
from depthscale.laws.resampling import Bootstrap
from depthscale.laws.standard_errors import local_covariance

CHINCHILLA, DEPTH = LAWS["chinchilla"], LAWS["width_depth_tokens"]
TRUTH = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
SHAPE_TRUTH = dict(zip(DEPTH.parameters, (1.75, 275.0, 3.0, 536.0, 0.95, 1.2, 0.3), strict=True))


def grid(seed: int = 0, truth: dict[str, float] = TRUTH, unit: float = 1.0) -> Observations:
    sizes, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e10, 7), np.geomspace(2e9, 2e11, 7)))
    loss = CHINCHILLA.predict(truth, {"parameters": sizes, "tokens": tokens})
    noise = np.exp(0.003 * np.random.default_rng(seed).standard_normal(49))
    return Observations({"parameters": sizes, "tokens": tokens * unit}, loss * noise)


def shapes(c_l: float, alpha_l: float, seed: int = 0) -> Observations:
    axes = (np.array([256.0, 512, 1024]), np.array([2.0, 3, 4, 6, 8, 12, 16]), np.array([1e9, 4e9, 1.6e10]))
    columns = dict(zip(DEPTH.columns, (axis.ravel() for axis in np.meshgrid(*axes)), strict=True))
    loss = DEPTH.predict({**SHAPE_TRUTH, "c_l": c_l, "alpha_l": alpha_l}, columns)
    noise = np.exp(0.003 * np.random.default_rng(seed).standard_normal(len(loss)))
    return Observations(columns, loss * noise).grouped_by(["width", "depth"])


@pytest.mark.parametrize("objective", [Objective(), Objective("log_huber"), Objective("raw_squares")])
def test_errors_do_not_depend_on_the_unit_of_the_weights(objective: Objective) -> None:
    data = grid().grouped_by(["parameters"])
    relative = np.where(np.arange(49) % 4 == 0, 2.0, 1.0)
    plain, heavy = (
        fit(CHINCHILLA, dataclasses.replace(data, weights=unit * relative), objective) for unit in (1.0, 1e4)
    )
    for covariance in (
        jacobian_covariance,
        hessian_covariance,
        sandwich_covariance,
        lambda found: sandwich_covariance(found, clustered=True),
    ):
        assert covariance(heavy).errors == pytest.approx(covariance(plain).errors, rel=1e-4)
    np.testing.assert_allclose(local_covariance(heavy), local_covariance(plain), rtol=1e-3, atol=1e-9)
    (here,), (there,) = (profile(found, [parameter(found, "alpha")]) for found in (heavy, plain))
    assert (here.lower, here.upper) == pytest.approx((there.lower, there.upper), rel=1e-4)


def test_a_weighted_fit_has_the_errors_of_an_unweighted_one_where_weights_are_equal() -> None:
    data = shapes(3.0, 1.2)
    plain = fit(DEPTH, data)
    heavy = fit(DEPTH, dataclasses.replace(data, weights=np.full(data.num_rows, 1e4)))
    for covariance in (jacobian_covariance, hessian_covariance):
        assert covariance(heavy).errors == pytest.approx(covariance(plain).errors, rel=1e-4)
    here, there = (regime_test(DEPTH, found.data, "depth", None) for found in (heavy, plain))
    assert here.design_effect == pytest.approx(there.design_effect, rel=1e-4)
    for name, held in there.held.items():
        assert here.held[name].group_p_value == pytest.approx(held.group_p_value, rel=1e-3)


def test_as_many_parameters_as_rows_is_no_fit() -> None:
    data = grid().take(np.array([0, 8, 13, 30, 48]))
    refused = search(CHINCHILLA, data).certificate
    assert any("5 rows came for 5 free parameters" in reason for reason in refused.reasons)
    # Enough, once a parameter is held.
    held = search(CHINCHILLA, data, fixed={"E": 1.8}).certificate
    assert not any("free parameters" in reason for reason in held.reasons)
    with pytest.raises(FitError, match=r"arm 'looped' has 5 rows for 5 parameters"):
        compare(CHINCHILLA, grid(), data, CHINCHILLA_FLOPS, [1e20], num_replicates=10, names=("stacked", "looped"))


def test_tests_do_not_depend_on_units() -> None:
    law = JointLaw(CHINCHILLA, ("reference", "new"))
    new = {**TRUTH, "beta": 0.38}
    answers = []
    for unit in (1.0, 1e-9):
        joint = fit(law, join_arms([grid(unit=unit), grid(1, new, unit)]))
        answers.append([nested_test(joint, law, names) for names in hypotheses(CHINCHILLA)])
    for here, there in zip(*answers, strict=True):
        assert here.deviance == pytest.approx(there.deviance, rel=1e-3, abs=1e-6), here.shared


@pytest.fixture(scope="module")
def downhill() -> Comparison:
    """The new arm's loss rises with depth."""
    arms = shapes(3.0, 1.2), shapes(0.05, -0.4, 1)
    names = ("stacked", "looped")
    return compare(DEPTH, *arms, WIDTH_DEPTH_TOKENS_FLOPS, [1e18, 1e19], num_replicates=20, names=names)


def test_a_refused_test_is_an_answer_and_the_others_stand(downhill: Comparison) -> None:
    tests = {test.shared: test for test in downhill.tests}
    # One exponent for depth in both arms would have to be zero, where floor and depth term are one.
    alone = tests[("alpha_l",)]
    assert (alone.deviance, alone.p_value) == (None, None)
    assert "arms share alpha_l is not certified: " in alone.refused
    assert alone.verdict == ("differ" if alone.group_p_value < 0.05 else "not certified")
    assert dataclasses.replace(alone, group_p_value=None).verdict == "not certified"
    assert tests[("alpha_D",)].verdict == "no difference shown"
    assert tests[DEPTH.parameters].verdict == "differ"


def test_an_exponent_that_is_not_positive_leaves_no_frontier(downhill: Comparison) -> None:
    value = downhill.joint.parameters["alpha_l[new]"]
    assert value < 0
    assert downhill.no_frontier == f"no frontier: exponent alpha_l of looped is {value:.3g}, not positive"
    assert [saving.reason for saving in downhill.savings] == [downhill.no_frontier] * 2
    assert all(np.isnan(saving.estimate) and not saving.is_identified for saving in downhill.savings)
    assert downhill.crossings == ()


def test_an_arm_that_never_reaches_the_loss_says_so() -> None:
    never = {**TRUTH, "E": 2.4}
    names = ("stacked", "looped")
    found = compare(CHINCHILLA, grid(), grid(1, never), CHINCHILLA_FLOPS, [1e24], num_replicates=20, names=names)
    assert found.savings[0].reason == "looped never reaches the loss of stacked"
    assert found.no_frontier is None


def test_costs_without_end_close_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where the new arm's floor all but touches the loss: the cost overflows, and is no number to report.
    monkeypatch.setattr(Bootstrap, "values", lambda draws, _: np.full(len(draws.parameters), np.inf))
    found = compare(CHINCHILLA, grid(), grid(1), CHINCHILLA_FLOPS, [1e20], num_replicates=20)
    assert np.isfinite(found.savings[0].interval).all()
    assert found.savings[0].bootstrap_interval is None


def test_one_frontier_does_not_cross_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    law = JointLaw(CHINCHILLA, ("reference", "new"))
    joint = fit(law, join_arms([grid(), grid()]))
    generator = np.random.default_rng(0)

    def shaken(*arguments: object) -> float:
        """Rounding, made certain: the two arms' losses differ in their last digits."""
        return float(optimal_loss(*arguments)) * (1 + 1e-14 * generator.standard_normal())

    optimal_loss = comparison_module.optimal_loss
    monkeypatch.setattr(comparison_module, "optimal_loss", shaken)
    assert crossings(joint, law, CHINCHILLA_FLOPS, 1e18, 1e22) == ()


def test_an_arm_too_small_to_group_is_named() -> None:
    few = dataclasses.replace(grid(1).take(np.arange(9)), groups=None)
    with pytest.raises(DataError, match=r"'stacked' with 49 rows has 7, 'looped' with 9 rows has none.*--independent-"):
        compare_rows(
            CHINCHILLA, grid().grouped_by(["parameters"]), few, ("stacked", "looped"), [1e20], Objective(), 10, 0, 0.95
        )


def test_an_arm_that_is_refused_is_named_with_its_parameters() -> None:
    # One size alone: the size's term and the floor are one.
    flat = grid(1).take(np.flatnonzero(grid().column("parameters") == 1e8))
    doubled = flat.take(np.repeat(np.arange(flat.num_rows), 2))
    with pytest.raises(FitError, match=r"^the fit of arm 'looped' is not certified: .*A.*only a combination"):
        compare(CHINCHILLA, grid(), doubled, CHINCHILLA_FLOPS, [1e20], num_replicates=10, names=("stacked", "looped"))

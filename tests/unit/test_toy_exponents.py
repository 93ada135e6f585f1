"""Exponents of known curves, what is refused, and what is said of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from depthscale.errors import DataError
from depthscale.laws import fit, profile
from depthscale.laws import parameter as parameter_of
from depthscale.laws.observations import Observations
from depthscale.toy.exponents import exponent_refused, fit_exponent
from depthscale.toy.teacher_limited_law import TeacherLimitedLaw
from depthscale.toy.verdict import reading, verdict

DEPTHS = [6, 8, 12, 16, 24, 32, 48]
X = np.array(DEPTHS, dtype=np.float64)


def noisy(losses: np.ndarray[Any, Any], noise: float = 0.02, replicates: int = 3) -> np.ndarray[Any, Any]:
    draws = np.random.default_rng(0).normal(size=(replicates, len(losses)))
    return losses * np.exp(noise * draws)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("form", ["power", "floored", "teacher_limited"])
def test_the_interval_holds_the_exponent_whatever_the_form(exponent: float, form: str) -> None:
    losses = {
        "power": 2 * X**-exponent,
        "floored": 2 * X**-exponent + 0.5 * 48.0**-exponent,
        "teacher_limited": 2 * (X**-exponent - 128.0**-exponent),
    }[form]
    found = fit_exponent(DEPTHS, noisy(losses), 128)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= exponent <= found.upper
    true = next(each for each in found.forms if each.form == form)
    assert true.kept
    assert true.exponent == pytest.approx(exponent, abs=0.35 if form == "floored" else 0.1)


def test_a_form_that_misses_is_left_out_and_said() -> None:
    found = fit_exponent(DEPTHS, noisy(2 * (X**-0.5 - 128.0**-0.5), noise=0.001), 128)
    power = next(each for each in found.forms if each.form == "power")
    assert found.form == "teacher_limited"
    assert not power.kept
    assert "residual variance" in str(power.reason)


def test_each_replicate_is_covered() -> None:
    losses = np.stack([X**-0.8, X**-1.0, X**-1.3]) * np.exp(0.001 * np.random.default_rng(0).normal(size=(3, 7)))
    found = fit_exponent(DEPTHS, losses, 128)
    assert len(found.of_replicates) == 3
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= min(found.of_replicates) < max(found.of_replicates) <= found.upper


@pytest.mark.filterwarnings("error")
def test_a_loss_that_rises_again_has_an_open_interval() -> None:
    # The profile of the floored form ends in a curvature that is not a number.
    found = fit_exponent(DEPTHS, np.array([[1.0, 0.5, 0.25, 0.2, 0.3, 0.5, 0.8]]), 128)
    assert found.value is not None
    assert (found.lower, found.upper) == (-np.inf, np.inf)


def test_students_as_deep_as_the_teacher_leave_one_form_out() -> None:
    found = fit_exponent(DEPTHS, noisy(X**-1.0), 48)
    limited = next(each for each in found.forms if each.form == "teacher_limited")
    assert limited.exponent is None
    assert "as deep as the teacher" in str(limited.reason)
    assert found.value == pytest.approx(1.0, abs=0.1)
    with pytest.raises(DataError, match="shallower students"):
        TeacherLimitedLaw(48.0).bind({"depth": X}, X**-1.0)


@pytest.mark.parametrize(
    ("depths", "words"),
    [([6], "one depth only"), ([], "no depth"), ([6, 12, 16, 24, 48], "5 depths"), ([6, 8, 12, 16, 24, 32], "factor")],
)
def test_too_few_depths_give_no_exponent(depths: list[int], words: str) -> None:
    assert words in str(exponent_refused(depths))
    found = fit_exponent(depths, np.ones((1, len(depths))), 128)
    assert found.value is None
    assert words in str(found.reason)


def test_the_teacher_limited_law_has_its_own_derivatives() -> None:
    rows = Observations({"depth": X}, noisy(2 * (X**-1.5 - 128.0**-1.5))[0])
    found = fit(TeacherLimitedLaw(128.0), rows)
    bound, u, step = found.problem.bound, found.internal[None], 1e-5
    first, second = np.random.default_rng(1).normal(size=(2, 1, len(X)))

    def total(point: np.ndarray[Any, Any]) -> float:
        """sum F(f) for F(f) = first (f - f_0) + second (f - f_0)^2 / 2 around this point."""
        change = bound.predict(point) - bound.predict(u)
        return float((first * change + second * change**2 / 2).sum())

    gradient, hessian = bound.contract(bound.terms(u), first, second)
    shifts = step * np.eye(2)
    slope = [(total(u + e) - total(u - e)) / (2 * step) for e in shifts]
    bend = [
        [(total(u + a + b) - total(u + a - b) - total(u - a + b) + total(u - a - b)) / (4 * step**2) for b in shifts]
        for a in shifts
    ]
    np.testing.assert_allclose(gradient[0], slope, rtol=1e-6)
    np.testing.assert_allclose(hessian[0], bend, rtol=1e-3)
    np.testing.assert_allclose(bound.jacobian(u)[0].T @ first[0], slope, rtol=1e-6)
    weights = np.ones((1, len(X)))
    np.testing.assert_allclose(bound.squares(bound.terms(u), weights)[0], (bound.jacobian(u)[0] ** 2).sum(axis=0))
    interval = profile(found, [parameter_of(found, "a")])[0]
    assert interval.contains(1.5)


def test_the_teacher_limited_law_does_not_depend_on_units() -> None:
    losses = noisy(2 * (X**-1.5 - 128.0**-1.5))[0]
    once = fit(TeacherLimitedLaw(128.0), Observations({"depth": X}, losses)).parameters["a"]
    scaled = fit(TeacherLimitedLaw(128e3), Observations({"depth": X * 1e3}, losses * 1e6)).parameters["a"]
    assert scaled == pytest.approx(once, rel=1e-8)


# -- words ---------------------------------------------------------------------------------------------


def line(exponent: tuple[float, float | None, float | None] | None = (1.0, 0.9, 1.1), **changes: Any) -> dict[str, Any]:
    values = ("value", "lower", "upper")
    fitted = dict(zip(values, exponent, strict=True)) if exponent else dict.fromkeys(values)
    return {
        "case": "case",
        "teacher": "tied",
        "rho": 1.0,
        "loss_kind": "mse",
        "family": "plain",
        "order": 1,
        "blocks": None,
        "temperature": None,
        "ends": [100],
        "exponents": [{**fitted, "reason": None if exponent else "one depth only"}],
        "fall": {6: 0.02},
        "converged": True,
        **changes,
    }


@pytest.mark.parametrize(
    ("exponent", "changes", "expected"),
    [
        ((1.0, 0.9, 1.1), {}, "ensemble"),
        ((2.9, 2.7, 3.1), {}, "smooth"),
        ((2.0, 0.9, 3.1), {}, "not decided"),
        ((1.2, 0.9, None), {}, "not decided"),
        ((2.0, 1.9, 2.1), {}, "neither"),
        ((-0.5, -0.7, -0.2), {}, "deeper is worse"),
        ((1.0, 0.9, 1.1), {"converged": False, "fall": {6: 0.4}}, "not decided"),
        ((1.0, 0.9, 1.1), {"converged": None, "fall": None}, "not decided"),
        ((5.0, 4.8, 5.2), {"order": 2}, "smooth"),
        ((3.0, 2.8, 3.2), {"order": 2}, "neither"),
        (None, {}, "no exponent"),
    ],
)
def test_readings(exponent: Any, changes: dict[str, Any], expected: str) -> None:
    found = line(exponent, **changes)
    assert reading(found) == expected
    (said,) = verdict([found])
    words = {"ensemble": "as ensemble averaging", "smooth": "as a smooth flow", "neither": "neither mechanism"}
    assert f": {words.get(expected, 'deeper students do worse' if 'worse' in expected else expected)}" in said


def test_second_order_beside_first_may_stay_open() -> None:
    first = line((2.0, 1.8, 2.2))
    above = line((3.0, 2.8, 3.2), order=2, family="second_order")
    overlapping = line((2.3, 2.1, 2.5), order=2, family="second_order")
    assert any("steeper, 3.00 (2.80 to 3.20) against 2.00" in said for said in verdict([first, above]))
    assert any("Second order" in said and "not decided" in said for said in verdict([first, overlapping]))


def test_temperature_and_steps_in_words() -> None:
    cold = line((1.0, 0.9, 1.1), loss_kind="kl_own_head", temperature=0.1)
    warm = line((2.0, 1.9, 2.1), loss_kind="kl_own_head", temperature=1.0)
    assert any("from T = 0.1 to 1 the exponent rises" in said for said in verdict([warm, cold]))
    exponents = [line((1.0, 0.9, 1.1))["exponents"][0], line((1.05, 0.9, 1.2))["exponents"][0]]
    grown = line(ends=[50, 100], exponents=exponents)
    assert any("from 50 to 100 the exponent does not change beyond its interval" in said for said in verdict([grown]))


def test_second_order_stands_beside_first_order_of_its_own_case() -> None:
    other = line((9.0, 8.8, 9.2), case="other")
    first = line((2.0, 1.8, 2.2))
    second = line((3.0, 2.8, 3.2), order=2, family="second_order")
    (said,) = [words for words in verdict([other, first, second]) if words.startswith("Second order")]
    assert "3.00 (2.80 to 3.20) against 2.00" in said


def test_lines_that_are_compared_before_they_converge_are_named() -> None:
    first = line((2.0, 1.8, 2.2), converged=False, fall={6: 0.4})
    second = line((3.0, 2.8, 3.2), order=2, family="second_order")
    assert any(
        "steeper" in said and "(not known to have converged: first order)" in said for said in verdict([first, second])
    )
    cold = line((1.0, 0.9, 1.1), loss_kind="kl_own_head", temperature=0.1, converged=None, fall=None)
    warm = line((2.0, 1.9, 2.1), loss_kind="kl_own_head", temperature=1.0)
    assert any("rises" in said and "(not known to have converged: T = 0.1)" in said for said in verdict([warm, cold]))


@pytest.mark.parametrize(
    ("fall", "words"),
    [
        ({6: 0.004, 8: -0.1}, "the loss fell most at depth 6, by 0.4 %"),
        ({6: -0.05, 8: -0.1}, "no depth's loss fell"),
    ],
)
def test_what_a_converged_loss_still_did_is_said_as_measured(fall: dict[int, float], words: str) -> None:
    assert words in verdict([line(fall=fall)])[0]

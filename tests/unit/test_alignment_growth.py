"""Growth exponents, the threshold and its assumptions, and the exponent that agrees with itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.growth import adam_growth, growth_exponent, sgd_growth, stability_threshold
from depthscale.alignment.self_consistent import GammaPoint, self_consistent_exponent

ROUNDS = [1, 2, 4, 8, 16]


def noisy_power(exponent: float, noise: float = 0.02, seed: int = 0, repeats: int = 3) -> tuple[list[int], list[float]]:
    rounds = [r for r in ROUNDS for _ in range(repeats)]
    error = np.random.default_rng(seed).normal(0, noise, len(rounds))
    return rounds, [float(r**exponent * math.exp(e)) for r, e in zip(rounds, error, strict=True)]


@pytest.mark.parametrize("exponent", [-0.46, 0.0, 0.5, 1.0])
def test_the_exponent_of_a_power_is_found_with_its_interval(exponent: float) -> None:
    found = growth_exponent(*noisy_power(exponent), level=0.999)
    assert found.lower < exponent < found.upper
    assert found.upper - found.lower < 0.06
    assert found.is_power
    assert found.is_constant == (exponent == 0.0)
    assert found.coefficient == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
@pytest.mark.parametrize("rounding", [0.0, 1e-8, 1e-5])
def test_points_on_one_line_to_rounding_need_no_spread(exponent: float, rounding: float) -> None:
    found = growth_exponent(ROUNDS, [r**exponent * (1 + rounding * (r == 4)) for r in ROUNDS])
    assert found.exponent == pytest.approx(exponent, abs=1e-4)
    assert found.upper - found.lower < 1e-4
    assert found.is_power
    assert found.is_constant == (exponent == 0)


def test_a_curve_is_no_power() -> None:
    """Saturation: visits aligned at few rounds and no longer at many."""
    kappa = [r / (1 + r / 4) for r in ROUNDS]
    found = growth_exponent(ROUNDS, kappa)
    assert not found.is_power
    assert found.bend is not None
    assert found.bend < -0.3


def test_a_threshold_is_given_where_its_assumptions_hold() -> None:
    rounds, kappa = noisy_power(0.6)
    flat = noisy_power(0.0, seed=1)[1]
    found = stability_threshold(rounds, kappa, flat, noisy_power(0.0, seed=2)[1], level=0.999)
    assert found.failed == ()
    assert found.value == pytest.approx((1 + found.gamma.exponent) / 4)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < (1 + 0.6) / 4 < found.upper


def test_a_threshold_is_refused_with_the_assumption_that_fails() -> None:
    rounds, kappa = noisy_power(0.6)
    flat, growing = noisy_power(0.0, seed=1)[1], noisy_power(0.4, seed=2)[1]
    moving = stability_threshold(rounds, kappa, growing, flat)
    assert moving.value is None
    assert moving.lower is None
    assert len(moving.failed) == 1
    assert "max ||U|| in units of beta/alpha grows as R^0.4" in moving.failed[0]
    assert "max ||G||" in stability_threshold(rounds, kappa, flat, growing).failed[0]
    curved = [r / (1 + r / 4) for r in rounds]
    assert "not shown to be a power of R" in stability_threshold(rounds, curved, flat, flat).failed[0]
    scattered = noisy_power(0.0, noise=1.0, repeats=1, seed=3)[1]
    uncertain = stability_threshold(ROUNDS, ROUNDS, scattered, [1.0] * 5)
    assert "too uncertain to call it constant" in uncertain.failed[0]
    few = stability_threshold([1, 2, 4], [1, 2, 4], [1, 1, 1], [1, 1, 1])
    assert "too few rounds" in few.failed[0]


def test_gamma_outside_its_range_is_cut() -> None:
    """Visits that cancel ask for no less than orthogonal ones."""
    rounds, kappa = noisy_power(-0.4)
    flat = noisy_power(0.0, seed=1)[1]
    assert stability_threshold(rounds, kappa, flat, flat).value == 0.25


def test_growth_of_a_steps_change() -> None:
    """DeepLoop: bounded iff p >= (1 + gamma) / 4; Adam: iff p >= gamma_U / 2, the same at both extremes."""
    for gamma in (0.0, 0.5, 1.0):
        assert sgd_growth(gamma, (1 + gamma) / 4) == 0
        assert sgd_growth(gamma, 0.25) == pytest.approx(gamma)
        # For visits whose U and G align alike, u = g = R^((1 + gamma) / 2), so both optimizers ask for one exponent.
        assert adam_growth((1 + gamma) / 2, (1 + gamma) / 4) == 0


def points(gammas: dict[float, float], error: float = 0.01, step: int = 0, rows: int = 8) -> list[GammaPoint]:
    return [GammaPoint(p, gamma, error, step, rows) for p, gamma in gammas.items()]


def test_the_self_consistent_exponent_of_a_known_curve() -> None:
    """gamma(p) = 2p - 0.2 solves p = (1 + gamma) / 4 at p = 0.4."""
    found = self_consistent_exponent(points({p: 2 * p - 0.2 for p in (0.25, 0.33, 0.45, 0.55)}))
    assert found.estimate == pytest.approx(0.4)
    assert found.lower < 0.4 < found.upper
    # One gamma's error of .01 moves p by about .01 / 4 / (1 - 1/2) = .005 where one point carries it all.
    assert found.upper - found.lower < 2 * 2.2 * 0.005


def test_open_ends_are_infinite() -> None:
    above = self_consistent_exponent(points({0.25: 1.0, 0.3: 1.0}))
    assert (above.estimate, above.lower, above.upper) == (math.inf, math.inf, math.inf)
    below = self_consistent_exponent(points({0.4: 0.0, 0.5: 0.0}))
    assert below.estimate == -math.inf
    assert self_consistent_exponent(points({0.5: 1.0, 0.6: 1.0}, error=0.0)).estimate == 0.5


def test_of_several_crossings_the_largest_counts() -> None:
    """Below it some measured exponent lies under its own threshold."""
    found = self_consistent_exponent(points({0.25: -0.2, 0.35: 0.9, 0.45: 0.9, 0.5: 0.9}))
    assert found.estimate == pytest.approx(0.475)


def test_a_recommendation_needs_enough_points_and_a_sweeps_edge() -> None:
    curve = {p: 2 * p - 0.2 for p in (0.25, 0.33, 0.45, 0.55)}
    everything = [q for step in (0, 100, 200) for rows in (8, 32) for q in points(curve, step=step, rows=rows)]
    found = self_consistent_exponent(everything)
    assert found.missing == ()
    assert len(found.crossings) == 6
    assert found.is_recommendation((0.38, 0.42))
    assert not found.is_recommendation((0.48, 0.52))
    assert not found.is_recommendation(None)
    few = self_consistent_exponent(points(curve))
    assert few.missing == ("1 training steps were measured; 3 are needed", "1 batch sizes were measured; 2 are needed")
    assert not few.is_recommendation((0.38, 0.42))


def test_conditions_that_differ_widen_the_answer() -> None:
    early, late = points({0.25: 1.0, 0.55: 1.0}, step=0), points({0.25: 0.5, 0.55: 0.5}, step=200)
    found = self_consistent_exponent(early + late)
    assert found.lower < 0.375
    assert found.upper > 0.5


def test_bad_input_is_named() -> None:
    with pytest.raises(AlignmentError, match="at least 3 points"):
        growth_exponent([1, 2], [1.0, 2.0])
    with pytest.raises(AlignmentError, match="positive and finite"):
        growth_exponent([1, 2, 4], [1.0, 0.0, 2.0])
    with pytest.raises(AlignmentError, match="each once"):
        self_consistent_exponent([GammaPoint(0.3, 0.5, 0.1), GammaPoint(0.3, 0.5, 0.1)])
    with pytest.raises(AlignmentError, match="no points"):
        self_consistent_exponent([])
    with pytest.raises(AlignmentError, match="not negative"):
        self_consistent_exponent([GammaPoint(0.3, 0.5, -0.1), GammaPoint(0.4, 0.5, 0.1)])

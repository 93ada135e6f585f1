"""Paired statistics: coverage, symmetry, agreement of two routes to the same answer."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from depthscale.errors import ResultError
from depthscale.studies.paired import (
    direction_verdict,
    equivalence_test,
    paired_interval,
    smallest_detectable_difference,
    t_test_power,
)

differences_lists = st.lists(st.floats(-1, 1).map(lambda value: round(value, 4)), min_size=2, max_size=12)


def test_interval_matches_scipy_on_a_fixed_sample() -> None:
    sample = [-0.11, 0.02, -0.05, -0.08, 0.01, -0.03]
    interval = paired_interval(sample, 0.9)
    reference = stats.ttest_1samp(sample, 0.0).confidence_interval(0.9)
    assert interval is not None
    assert interval.low == pytest.approx(reference.low, rel=1e-12)
    assert interval.high == pytest.approx(reference.high, rel=1e-12)


@pytest.mark.parametrize("num_pairs", [2, 5, 9])
def test_interval_covers_the_true_mean_at_its_level(num_pairs: int) -> None:
    draws = np.random.default_rng(7).normal(0.3, 2.0, size=(2000, num_pairs))
    intervals = [paired_interval(row.tolist(), 0.9) for row in draws]
    covered = sum(interval is not None and not interval.excludes(0.3) for interval in intervals)
    # Binomial(2000, 0.9) has a standard deviation of 13.4; four of them on either side.
    assert 1800 - 54 <= covered <= 1800 + 54


@given(differences_lists)
def test_swapping_the_arms_mirrors_interval_and_verdict(differences: list[float]) -> None:
    interval = paired_interval(differences)
    mirrored = paired_interval([-value for value in differences])
    assert interval is not None
    assert mirrored is not None
    assert mirrored.low == pytest.approx(-interval.high, abs=1e-12)
    assert mirrored.high == pytest.approx(-interval.low, abs=1e-12)
    swapped = {"a_better": "b_better", "b_better": "a_better", "not_decided": "not_decided"}
    assert direction_verdict(mirrored) == swapped[direction_verdict(interval)]


@given(differences_lists, st.floats(0.001, 2))
def test_equivalence_is_the_inclusion_of_its_interval(differences: list[float], margin: float) -> None:
    test = equivalence_test(differences, margin)
    assert test.interval is not None
    inside = -margin < test.interval.low and test.interval.high < margin
    outside = test.interval.low > margin or test.interval.high < -margin
    # On the edge the two routes may round apart.
    near_edge = min(abs(abs(test.interval.low) - margin), abs(abs(test.interval.high) - margin)) < 1e-9
    if not near_edge:
        enough = len(differences) >= 5
        assert (test.verdict == "equivalent") == (inside and enough)
        assert (test.verdict == "different_beyond_margin") == (outside and enough)
        assert test.p_value is not None
        assert (test.p_value < 0.05) == inside


def test_equivalence_is_rarely_claimed_at_the_margin_itself() -> None:
    draws = np.random.default_rng(11).normal(0.02, 0.01, size=(2000, 6))
    claimed = sum(equivalence_test(row.tolist(), margin=0.02).verdict == "equivalent" for row in draws)
    # At a true difference of one margin the error rate is at most 5 %: 100 expected, standard deviation 9.7.
    assert claimed <= 100 + 39


@pytest.mark.parametrize("num_pairs", [3, 5, 10])
def test_detectable_difference_is_found_with_the_stated_power(num_pairs: int) -> None:
    delta = smallest_detectable_difference(1.5, num_pairs)
    assert delta is not None
    draws = np.random.default_rng(5).normal(delta, 1.5, size=(2000, num_pairs))
    found = sum(interval is not None and interval.excludes(0.0) for interval in map(paired_interval, draws.tolist()))
    # Binomial(2000, 0.8) has a standard deviation of 17.9; four of them on either side.
    assert 1600 - 72 <= found <= 1600 + 72


@pytest.mark.parametrize("num_pairs", [3, 5, 30])
@pytest.mark.parametrize("noncentrality", [0.0, 1.0, 4.0])
def test_power_matches_the_noncentral_t_of_scipy(num_pairs: int, noncentrality: float) -> None:
    critical = stats.t.ppf(0.975, num_pairs - 1)
    reference = stats.nct.sf(critical, num_pairs - 1, noncentrality) + stats.nct.cdf(
        -critical, num_pairs - 1, noncentrality
    )
    assert t_test_power(noncentrality, num_pairs) == pytest.approx(reference, abs=1e-6)


@settings(max_examples=20)
@given(st.integers(2, 40), st.floats(0.001, 10))
def test_detectable_difference_scales_with_the_spread_and_falls_with_pairs(num_pairs: int, spread: float) -> None:
    one = smallest_detectable_difference(1.0, num_pairs)
    scaled = smallest_detectable_difference(spread, num_pairs)
    more = smallest_detectable_difference(1.0, num_pairs + 1)
    assert one is not None
    assert scaled == pytest.approx(spread * one, rel=1e-9)
    assert more is not None
    assert more < one


def test_one_pair_has_no_interval_and_no_verdict() -> None:
    assert paired_interval([-0.5]) is None
    assert direction_verdict(None) == "not_decided"
    assert smallest_detectable_difference(0.1, 1) is None
    assert equivalence_test([0.0], margin=0.02).verdict == "not_decided"
    assert equivalence_test([0.0], margin=0.02).interval is None


def test_four_clear_pairs_decide_nothing_and_five_do() -> None:
    clear = [-0.50, -0.51, -0.49, -0.50]
    assert direction_verdict(paired_interval(clear)) == "not_decided"
    assert direction_verdict(paired_interval([*clear, -0.50])) == "a_better"
    assert equivalence_test([0.0, 0.001, -0.001, 0.0], margin=0.02).verdict == "not_decided"


def test_identical_arms_differ_by_nothing_and_are_equivalent() -> None:
    interval = paired_interval([0.0] * 5)
    assert direction_verdict(interval) == "not_decided"
    assert equivalence_test([0.0] * 5, margin=0.02).verdict == "equivalent"
    assert equivalence_test([0.5] * 5, margin=0.02).verdict == "different_beyond_margin"


def test_interval_shrinks_with_the_root_of_the_pairs() -> None:
    sample = [0.1, -0.2, 0.3, 0.0, -0.1]
    interval = paired_interval(sample)
    assert interval is not None
    # t_(0.975, 4) = 2.7764, Student's table.
    half_width = 2.7764 * statistics.stdev(sample) / math.sqrt(5)
    assert (interval.high - interval.low) / 2 == pytest.approx(half_width, rel=1e-4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: paired_interval([0.1, math.nan]), "finite"),
        (lambda: paired_interval([0.1, 0.2], confidence=1.0), "confidence"),
        (lambda: smallest_detectable_difference(-1.0, 5), "standard deviation"),
        (lambda: smallest_detectable_difference(1.0, 5, power=0.01), "power"),
        (lambda: equivalence_test([0.1, 0.2], margin=0.0), "margin"),
        (lambda: equivalence_test([0.1, 0.2], margin=0.1, confidence=0.4), "confidence"),
    ],
)
def test_bad_input_is_named(call: object, named: str) -> None:
    with pytest.raises(ResultError, match=named):
        call()  # type: ignore[operator]

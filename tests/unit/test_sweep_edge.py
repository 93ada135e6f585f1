"""The crossing, its interval, and times at the floor, on counts whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from depthscale.errors import ResultError
from depthscale.studies.sweep_analysis import PAPER
from depthscale.studies.sweep_edge import find_edge, share_interval
from depthscale.studies.sweep_times import compare_times, escape_curve

P = (0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60)
FIVE = (5,) * 7


def test_the_papers_counts_cross_at_the_maximum_of_an_independent_fit() -> None:
    edge = find_edge(PAPER["exponents"], PAPER["trained"], PAPER["runs"])
    assert edge.kind == "crossing"
    # Independent: Newton's iterations of the two-parameter logistic regression, run to rest.
    x = np.column_stack([np.ones(7), np.array(P)])
    k, weights, theta = np.array(PAPER["trained"], float), np.full(7, 5.0), np.zeros(2)
    for _ in range(50):
        share = 1 / (1 + np.exp(-x @ theta))
        theta += np.linalg.solve((x.T * (weights * share * (1 - share))) @ x, x.T @ (k - weights * share))
    assert edge.slope == pytest.approx(theta[1], rel=1e-4)
    assert edge.p50 == pytest.approx(-theta[0] / theta[1], abs=1e-5)
    assert edge.lower < edge.p50 < edge.upper

    # At each end the best curve through it is worse by exactly half the quantile.
    def best_through(p50: float) -> float:
        slopes = np.linspace(0, 80, 20_001)[:, None]
        logits = slopes * (np.array(P) - p50)
        return float((-k * np.logaddexp(0, -logits) - (5 - k) * np.logaddexp(0, logits)).sum(axis=1).max())

    drop = stats.chi2.ppf(0.95, 1) / 2
    for end in (edge.lower, edge.upper):
        assert best_through(edge.p50) - best_through(end) == pytest.approx(drop, abs=1e-3)


@pytest.mark.parametrize(
    ("trained", "kind"),
    [
        ((0, 0, 0, 0, 0, 0, 0), "all_stuck"),
        ((5, 5, 5, 5, 5, 5, 5), "all_train"),
        ((0, 0, 0, 5, 5, 5, 5), "separated"),
        ((0, 0, 0, 2, 5, 5, 5), "crossing"),
        ((2, 3, 2, 3, 2, 3, 2), "flat"),
        ((5, 5, 5, 4, 1, 0, 0), "falling"),
        ((3, 5, 5, 5, 5, 5, 5), "outside"),
    ],
)
def test_every_shape_of_counts_has_its_name(trained: tuple[int, ...], kind: str) -> None:
    edge = find_edge(P, trained, FIVE)
    assert edge.kind == kind
    assert (edge.p50 is None) == (kind != "crossing")
    assert edge.lower <= edge.upper


def test_sides_are_open_exactly_where_no_run_speaks_against_it() -> None:
    stuck, train = find_edge(P, (0,) * 7, FIVE), find_edge(P, FIVE, FIVE)
    assert math.isinf(stuck.upper)
    assert stuck.lower == pytest.approx(0.60, abs=1e-3)
    assert math.isinf(train.lower)
    assert train.upper == pytest.approx(0.30, abs=1e-3)
    flat = find_edge(P, (2, 3, 2, 3, 2, 3, 2), FIVE)
    assert math.isinf(flat.lower)
    assert math.isinf(flat.upper)
    # One run at each of two exponents rejects nothing.
    few = find_edge((0.3, 0.4), (0, 0), (1, 1))
    assert math.isinf(few.lower)


def test_a_complete_separation_is_an_interval_and_no_slope() -> None:
    edge = find_edge(P, (0, 0, 0, 5, 5, 5, 5), FIVE)
    assert edge.between == (0.40, 0.45)
    assert edge.slope is None
    assert edge.lower == pytest.approx(0.40, abs=1e-3)
    assert edge.upper == pytest.approx(0.45, abs=1e-3)


def test_one_mixed_exponent_between_none_and_all_is_a_step_at_it() -> None:
    edge = find_edge(P, (0, 0, 0, 2, 5, 5, 5), FIVE)
    assert edge.p50 == 0.45
    assert edge.slope == math.inf
    assert 0.40 < edge.lower < 0.45 < edge.upper < 0.50


@settings(max_examples=40)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=4), st.sampled_from([1.0, 10.0, 1000.0]))
def test_units_of_the_exponent_do_not_matter(trained: list[int], unit: float) -> None:
    exponents = [0.3, 0.4, 0.5, 0.6]
    one = find_edge(exponents, trained, [5] * 4)
    other = find_edge([unit * p for p in exponents], trained, [5] * 4)
    assert one.kind == other.kind
    for name in ("lower", "upper"):
        assert getattr(other, name) / unit == pytest.approx(getattr(one, name), rel=1e-3, abs=1e-3)


def test_the_interval_covers_the_crossing_that_made_the_counts() -> None:
    drawn = np.random.default_rng(20260801)
    shares = 1 / (1 + np.exp(-20 * (np.array(P) - 0.45)))
    edges = [find_edge(P, drawn.binomial(10, shares).tolist(), [10] * 7) for _ in range(150)]
    covered = sum(edge.lower <= 0.45 <= edge.upper for edge in edges)
    # 95 % of 150 is 142.5; fewer than 134 has a probability below 1 % if that is the coverage.
    assert covered >= 134


def test_runs_that_share_a_seed_widen_the_interval() -> None:
    """Every seed turns at a p of its own: 35 runs then say no more than 5."""
    turns = (0.32, 0.38, 0.43, 0.47, 0.57)
    outcomes = [{seed: turn < p for seed, turn in enumerate(turns)} for p in P]
    trained = [sum(at.values()) for at in outcomes]
    alike, independent = find_edge(P, trained, FIVE, outcomes=outcomes), find_edge(P, trained, FIVE)
    assert alike.p50 == independent.p50
    assert independent.seed_factor == 1
    assert alike.seed_factor > 2
    assert alike.lower < independent.lower
    assert independent.upper < alike.upper
    # The same counts from seeds that end now so, now so: nothing is added.
    mixed = [{seed: (seed + 2 * index) % 5 < k for seed in range(5)} for index, k in enumerate(trained)]
    assert find_edge(P, trained, FIVE, outcomes=mixed).upper < alike.upper


def test_intervals_of_sweeps_with_shared_seeds_cover_the_crossing() -> None:
    drawn = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        turns = drawn.logistic(0.45, 0.05, 5)
        outcomes = [{seed: bool(turn < p) for seed, turn in enumerate(turns)} for p in P]
        edge = find_edge(P, [sum(at.values()) for at in outcomes], FIVE, outcomes=outcomes)
        covered += edge.lower <= 0.45 <= edge.upper
    # Without the factor 7 of 10 cover; 48 of 60 or more have a probability below 6 % then.
    assert covered >= 48


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ResultError, match="shares of one run or more"):
        find_edge((0.3, 0.4), (1, 6), (5, 5))
    with pytest.raises(ResultError, match="two or more"):
        find_edge((0.3,), (1,), (5,))
    with pytest.raises(ResultError, match="at least one run"):
        share_interval(0, 0)


def test_shares_have_known_intervals() -> None:
    interval = share_interval(0, 5)
    # Clopper and Pearson of 0 of n: 1 - (0.025)^(1/n); Wilson's upper end: z^2 / (n + z^2).
    assert interval.exact == (0.0, pytest.approx(1 - 0.025 ** (1 / 5)))
    z2 = stats.norm.ppf(0.975) ** 2
    assert interval.wilson[1] == pytest.approx(z2 / (5 + z2))


def test_kaplan_meier_by_hand_with_censored_runs() -> None:
    curve = escape_curve([20, 40, 40, None, None], last_step=100)
    assert curve.steps == (20.0, 40.0)
    assert curve.at_floor == (pytest.approx(0.8), pytest.approx(0.4))
    assert curve.median == 40.0
    assert curve.num_censored == 2
    assert all(low < share < high for low, share, high in zip(curve.lower, curve.at_floor, curve.upper, strict=True))
    assert escape_curve([20, None, None], last_step=100).median is None
    assert escape_curve([None], last_step=100).steps == ()
    # A run that passes at the very last step has passed; it is no censored one.
    assert escape_curve([100, None], last_step=100).at_floor == (0.5,)


def test_log_rank_finds_the_earlier_group_and_no_difference_in_equal_ones() -> None:
    early, late = [20, 20, 40, 40, 40], [80, 100, None, None, None]
    found = compare_times(early, late, last_step=100)
    assert found is not None
    assert found.statistic > 0
    assert found.p_value < 0.01
    same = compare_times(early, early, last_step=100)
    assert same is not None
    assert same.p_value > 0.9
    assert compare_times([None] * 5, [None] * 5, last_step=100) is None

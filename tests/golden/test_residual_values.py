"""Numbers printed in papers, or computed from their formulas, with the source beside each."""

import pytest

from depthscale.plan import DepthPlan, VisitCounts, VisitGroup
from depthscale.residual import (
    deeploop,
    deepnorm,
    exponent_threshold,
    first_order_bound,
    inverse_rounds,
    loop_matched,
    power,
    smelt,
)


@pytest.mark.parametrize(
    ("rounds", "alpha", "beta"),
    # Source: alpha = (2N)^(1/2), beta = (8N)^(-1/2) of arXiv 2607.13491 at K = 12 (small) and 24 (medium, N = 168).
    [(1, 4.899, 0.1021), (3, 8.485, 0.0589), (7, 12.96, 0.0386), (14, 18.33, 0.0273)],
)
def test_deeploop(rounds: int, alpha: float, beta: float) -> None:
    scales = deeploop(DepthPlan.looped(12, rounds).counts()).groups[0]
    assert scales.skip == pytest.approx(alpha, rel=5e-4)
    assert scales.gain == pytest.approx(beta, rel=2e-3)
    assert scales.branch == scales.lr_multiplier == 1.0


def test_deepnorm() -> None:
    # Source: alpha = (2N)^(1/4), beta = (8N)^(-1/4), arXiv 2203.00555, at N = 12.
    scales = deepnorm(DepthPlan.stacked(12).counts()).groups[0]
    assert scales.skip == pytest.approx(2.213, rel=5e-4)
    assert scales.gain == pytest.approx(0.319, rel=2e-3)


@pytest.mark.parametrize("n", [1, 12, 36, 84])
def test_ratio_of_beta_to_alpha(n: int) -> None:
    # Source: arXiv 2607.13491: 1/(4N) at p = 1/2 and 1/(2 sqrt(N)) at p = 1/4.
    counts = DepthPlan.stacked(n).counts()
    assert power(counts, 0.5).groups[0].relative_branch == pytest.approx(1 / (4 * n))
    assert power(counts, 0.25).groups[0].relative_branch == pytest.approx(1 / (2 * n**0.5))


@pytest.mark.parametrize("rounds", [1, 2, 8, 64])
def test_aligned_bounds(rounds: int) -> None:
    # Source: arXiv 2607.13491: aligned and p = 1/2 gives 1/(8K); untied DeepNorm gives 1/2. loop_matched is ours.
    looped = DepthPlan.looped(12, rounds).counts()
    assert first_order_bound(looped, deeploop(looped)) == pytest.approx(1 / (8 * 12))
    assert first_order_bound(looped, loop_matched(looped)) == pytest.approx(0.5)
    untied = DepthPlan.stacked(12 * rounds).counts()
    assert first_order_bound(untied, deepnorm(untied)) == pytest.approx(0.5)
    assert first_order_bound(looped, deepnorm(looped)) == pytest.approx(0.5 * rounds)


def test_orthogonal_visits_need_only_deepnorm() -> None:
    counts = DepthPlan.looped(12, 8).counts()
    assert first_order_bound(counts, deepnorm(counts), kappa=[1.0]) == pytest.approx(0.5)


def test_loop_matched_is_deepnorm_without_loops() -> None:
    counts = DepthPlan.stacked(12).counts()
    for ours, theirs in zip(loop_matched(counts).groups, deepnorm(counts).groups, strict=True):
        assert (ours.skip, ours.gain) == pytest.approx((theirs.skip, theirs.gain))


def test_inverse_rounds() -> None:
    # Source: arXiv 2606.18524's code form lambda / R * (K/12)^(-1/2), learning rate x (K/12)^(-1/2).
    group = inverse_rounds(DepthPlan.looped(12, 8).counts()).groups[0]
    assert (group.branch, group.lr_multiplier) == pytest.approx((1 / 8, 1.0))
    group = inverse_rounds(DepthPlan.looped(48, 4).counts()).groups[0]
    assert (group.branch, group.lr_multiplier) == pytest.approx((1 / 8, 0.5))


def test_smelt_halves_writes_in_the_span_only() -> None:
    # Source: SMELT, arXiv 2609.01343: 1/r on every write of the looped span, r = 2.
    branches = [group.branch for group in smelt(DepthPlan.middle_loop(12).counts()).groups]
    assert branches == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(("layers", "first", "last"), [(10, 3, 7), (12, 4, 9), (20, 6, 15), (30, 8, 22)])
def test_smelt_spans(layers: int, first: int, last: int) -> None:
    # Source: SMELT, arXiv 2609.01343, 1-based layers of the looped span.
    before, span, _ = DepthPlan.middle_loop(layers).segments
    assert (before.blocks + 1, before.blocks + span.blocks) == (first, last)
    assert DepthPlan.middle_loop(layers).num_blocks == layers


def test_thresholds() -> None:
    # Source: arXiv 2607.13491: gamma 0 -> 1/4, 1 -> 1/2; the independent measurement gamma = 0.50 -> 0.375.
    assert [exponent_threshold(gamma) for gamma in (0.0, 0.5, 1.0)] == [0.25, 0.375, 0.5]


def test_hierarchical_reasoner_uses_gradient_visits() -> None:
    # Source: arXiv 2607.13491: N = M_g / 2 = K_H + C_L * K_L under one-step truncation.
    counts = VisitCounts((VisitGroup("slow", 4, 2, 1), VisitGroup("fast", 4, 6, 3)))
    assert deeploop(counts).groups[0].skip == pytest.approx((2 * 16) ** 0.5)

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthscale.errors import PlanError
from depthscale.plan import DepthPlan
from depthscale.residual import (
    RULES,
    GroupScales,
    apply_rule,
    exponent_threshold,
    first_order_bound,
    require_placement,
)

COUNTS = DepthPlan.looped(4, 3, prelude=1).counts()
ARGUMENTS = {"power": {"p": 0.4}}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_gives_one_entry_per_group_and_fits_a_placement(name: str) -> None:
    scales = apply_rule(name, COUNTS, ARGUMENTS.get(name))
    assert scales.rule == name
    assert len(scales.groups) == len(COUNTS.groups)
    assert _placements(scales) != []


def _placements(scales: object) -> list[str]:
    fitting = []
    for placement in ("post", "sandwich", "pre"):
        try:
            require_placement(scales, placement)  # type: ignore[arg-type]
        except PlanError:
            continue
        fitting.append(placement)
    return fitting


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ("unscaled", ["post", "sandwich", "pre"]),
        ("deeploop", ["post", "sandwich"]),
        ("alpha_only", ["post", "sandwich"]),
        ("beta_only", ["post", "sandwich", "pre"]),
        ("inverse_rounds", ["pre"]),
        ("smelt", ["pre"]),
    ],
)
def test_a_scale_that_the_placement_ignores_is_refused(rule: str, fits: list[str]) -> None:
    assert _placements(apply_rule(rule, COUNTS)) == fits


def test_refusals_name_the_rule_that_would_do() -> None:
    with pytest.raises(PlanError, match="inverse_rounds"):
        require_placement(apply_rule("deeploop", COUNTS), "pre")
    with pytest.raises(PlanError, match="deeploop"):
        require_placement(apply_rule("smelt", COUNTS), "post")
    with pytest.raises(PlanError, match="did you mean 'post'"):
        require_placement(apply_rule("deeploop", COUNTS), "pots")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("deeplop", {}, "did you mean 'deeploop'"),
        ("power", {}, "needs p"),
        ("power", {"q": 1.0}, "argument of rule 'power'"),
        ("power", {"p": "half"}, "expected a number"),
        ("power", {"p": math.nan}, "finite"),
        ("power", {"p": 0.5, "c": 0.0}, "positive"),
        ("deeploop", {"p": 0.5}, "takes no arguments"),
        ("inverse_rounds", {"scale": -1.0}, "positive"),
    ],
)
def test_bad_rules_are_refused_in_one_line(name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        apply_rule(name, COUNTS, arguments)
    assert "\n" not in str(caught.value)


def test_scales_must_be_positive_and_finite() -> None:
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PlanError, match="skip came out"):
            GroupScales(skip=value)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_gamma_out_of_range(gamma: float) -> None:
    with pytest.raises(PlanError, match="gamma came as"):
        exponent_threshold(gamma)


def test_kappa_out_of_range() -> None:
    with pytest.raises(PlanError, match="kappa of group"):
        first_order_bound(COUNTS, apply_rule("deeploop", COUNTS), kappa=[1.0, 3.5])
    with pytest.raises(PlanError, match="expected one each"):
        first_order_bound(COUNTS, apply_rule("deeploop", COUNTS), kappa=[1.0])


@given(st.integers(1, 24), st.integers(1, 16), st.floats(0.05, 0.95))
def test_bound_grows_in_rounds_exactly_above_the_threshold(blocks: int, rounds: int, p: float) -> None:
    """With kappa = R (gamma = 1) the bound goes as R^(1 + 1 - 4p), for any K."""
    small = DepthPlan.looped(blocks, rounds).counts()
    large = DepthPlan.looped(blocks, 2 * rounds).counts()
    growth = first_order_bound(large, apply_rule("power", large, {"p": p})) / first_order_bound(
        small, apply_rule("power", small, {"p": p})
    )
    assert growth == pytest.approx(2 ** (2 - 4 * p), rel=1e-9)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 4), st.integers(0, 4))
def test_aligned_bound_of_deeploop_stays_below_its_longest_loop(k: int, r: int, before: int, after: int) -> None:
    """Unequal visits: at most R_max / (8 N), as the docstring of ``power`` says."""
    plan = DepthPlan.looped(k, r, prelude=before, coda=after)
    bound = first_order_bound(plan.counts(), apply_rule("deeploop", plan.counts()))
    assert bound <= plan.num_rounds / (8 * plan.unrolled_depth) * (1 + 1e-12)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 4), st.integers(0, 4))
def test_loop_matched_is_one_half_for_any_mixture_of_visits(k: int, r: int, before: int, after: int) -> None:
    counts = DepthPlan.looped(k, r, prelude=before, coda=after).counts()
    assert first_order_bound(counts, apply_rule("loop_matched", counts)) == pytest.approx(0.5)

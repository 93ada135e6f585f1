import pytest

from depthscale.errors import PlanError
from depthscale.plan import DepthPlan, Segment, VisitCounts, VisitGroup


def test_looped_visits_the_whole_stack_round_by_round() -> None:
    assert DepthPlan.looped(3, 2).schedule == (0, 1, 2, 0, 1, 2)
    assert DepthPlan.each_repeated(3, 2).schedule == (0, 0, 1, 1, 2, 2)
    assert DepthPlan.looped(1, 3, prelude=1, coda=1).schedule == (0, 1, 1, 1, 2)


def test_truncation_stops_gradient_before_the_last_rounds_and_in_the_prelude() -> None:
    plan = DepthPlan.looped(1, 3, prelude=1, coda=1, grad_rounds=1)
    assert [visit.carries_gradient for visit in plan.visits] == [False, False, False, True, True]
    assert [group.num_gradient_visits for group in plan.counts().groups] == [0, 1, 1]


def test_injection_brings_gradient_back_to_the_prelude() -> None:
    plan = DepthPlan.looped(1, 3, prelude=1, inject=True, grad_rounds=1)
    assert [visit.carries_gradient for visit in plan.visits] == [True, False, False, True]


def test_hierarchical_reasoner_counts() -> None:
    # Source: DeepLoop, arXiv 2607.13491: M_g = 2 (K_H + C_L * K_L) under one-step truncation.
    counts = VisitCounts((VisitGroup("slow", 4, 2, 1), VisitGroup("fast", 4, 6, 3)))
    assert counts.num_gradient_sublayer_visits == 2 * (4 + 3 * 4)
    assert counts.unrolled_depth == 4 * 2 + 4 * 6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Segment(0), "blocks came as 0"),
        (lambda: Segment(2, rounds=0), "rounds came as 0"),
        (lambda: Segment(2, rounds=True), "rounds came as True"),
        (lambda: Segment(2, grad_rounds=0), "grad_rounds came as 0"),
        (lambda: DepthPlan(()), "without segments"),
        (lambda: DepthPlan.middle_loop(2), "at least 3"),
        (lambda: DepthPlan((Segment(2, fixed=True),)).with_rounds(3), "fixed"),
        (lambda: VisitCounts(()), "without groups"),
        (lambda: VisitCounts((VisitGroup("a", 1, 1, 0),)), "no visit carries gradient"),
        (lambda: VisitGroup("a", 1, 1, 2), "2 gradient visits"),
        (lambda: DepthPlan.from_json("{"), "not JSON"),
        (lambda: DepthPlan.from_json("[]"), "expected an object"),
        (lambda: DepthPlan.from_dict({"segment": []}), "did you mean 'segments'"),
        (lambda: DepthPlan.from_dict({"segments": 3}), "list of segments"),
        (lambda: DepthPlan.from_dict({"segments": [{"block": 3}]}), "did you mean 'blocks'"),
        (lambda: DepthPlan.from_dict({"segments": [{"rounds": 3}]}), "no 'blocks'"),
        (lambda: DepthPlan.from_dict({"segments": [3]}), "expected a table"),
    ],
)
def test_bad_plans_are_refused_in_one_line(make: object, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)

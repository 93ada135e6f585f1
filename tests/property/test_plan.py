"""What holds of every plan."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from depthscale.plan import DepthPlan, Segment

counts = st.integers(min_value=1, max_value=6)
segments = st.builds(
    Segment,
    blocks=counts,
    rounds=counts,
    inject=st.booleans(),
    grad_rounds=st.none() | counts,
    fixed=st.booleans(),
)
plans = st.lists(segments, min_size=1, max_size=4).map(tuple).map(DepthPlan)


@given(plans)
def test_json_round_trip(plan: DepthPlan) -> None:
    assert DepthPlan.from_json(plan.to_json()) == plan


@given(plans)
def test_schedule_visits_every_block_as_often_as_its_segment_says(plan: DepthPlan) -> None:
    assert len(plan.schedule) == plan.unrolled_depth == plan.num_sublayer_visits // 2
    assert sorted(set(plan.schedule)) == list(range(plan.num_blocks))
    block = 0
    for segment in plan.segments:
        for _ in range(segment.blocks):
            assert plan.schedule.count(block) == segment.rounds
            block += 1


@given(plans)
def test_rounds_of_a_block_count_up_from_zero(plan: DepthPlan) -> None:
    for block in range(plan.num_blocks):
        rounds = [visit.round for visit in plan.visits if visit.block == block]
        assert rounds == list(range(len(rounds)))


@given(plans)
def test_last_visit_carries_gradient_and_a_block_keeps_it_once_it_has_it(plan: DepthPlan) -> None:
    assert plan.visits[-1].carries_gradient
    for block in range(plan.num_blocks):
        carries = [visit.carries_gradient for visit in plan.visits if visit.block == block]
        assert carries == sorted(carries)


@given(plans)
def test_counts_agree_with_visits(plan: DepthPlan) -> None:
    counts = plan.counts()
    assert counts.num_blocks == plan.num_blocks
    assert counts.unrolled_depth == plan.unrolled_depth
    assert counts.gradient_depth == sum(visit.carries_gradient for visit in plan.visits)
    assert counts.num_gradient_sublayer_visits == 2 * counts.gradient_depth


@given(plans, counts, counts)
def test_with_rounds_forgets_the_rounds_before(plan: DepthPlan, first: int, second: int) -> None:
    free = DepthPlan(tuple(dataclasses.replace(segment, fixed=False) for segment in plan.segments))
    assert free.with_rounds(first).with_rounds(second) == free.with_rounds(second)
    assert free.with_rounds(first).num_rounds == first
    assert free.with_rounds(first).num_blocks == plan.num_blocks


@given(counts, counts, st.integers(0, 3), st.integers(0, 3), counts)
def test_prelude_and_coda_keep_their_one_visit(blocks: int, rounds: int, prelude: int, coda: int, other: int) -> None:
    plan = DepthPlan.looped(blocks, rounds, prelude=prelude, coda=coda).with_rounds(other)
    assert plan == DepthPlan.looped(blocks, other, prelude=prelude, coda=coda)
    assert plan.unrolled_depth == prelude + blocks * other + coda


@given(counts, counts)
def test_one_round_is_a_stack_in_any_arrangement(blocks: int, rounds: int) -> None:
    assert DepthPlan.looped(blocks, 1).schedule == DepthPlan.stacked(blocks).schedule
    assert DepthPlan.each_repeated(blocks, 1).schedule == DepthPlan.stacked(blocks).schedule
    looped, repeated = DepthPlan.looped(blocks, rounds), DepthPlan.each_repeated(blocks, rounds)
    assert sorted(looped.schedule) == list(repeated.schedule)

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from depthscale.budget import (
    ModelShape,
    activation_memory,
    count_parameters,
    flops_per_token,
    kv_cache_bytes_per_token,
    match_width,
    training_state_bytes,
)
from depthscale.errors import PlanError
from depthscale.plan import DepthPlan, Segment


def shape(plan: DepthPlan | None = None, **changes: Any) -> ModelShape:
    tiny = ModelShape(
        plan=plan or DepthPlan.looped(2, 3),
        vocab_size=97,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
    )
    return dataclasses.replace(tiny, **changes)


class TestShape:
    @pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"])
    @pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
    def test_sizes_are_whole_numbers(self, name: str, value: object) -> None:
        with pytest.raises(PlanError, match=f"{name} came as .*expected a whole number of at least 1"):
            shape(**{name: value})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"mlp": "swiglo"}, "did you mean 'swiglu'"),
            ({"norm_placement": "sandwitch"}, "did you mean 'sandwich'"),
            ({"num_key_value_heads": 3}, "expected a divisor of the attention heads"),
            ({"head_dim": 7}, "expected an even number"),
            ({"plan": 12}, "expected a DepthPlan"),
        ],
    )
    def test_bad_values_are_named(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(PlanError, match=message):
            shape(**changes)

    def test_final_norm_follows_the_placement(self) -> None:
        assert shape(norm_placement="pre").has_final_norm
        assert not shape(norm_placement="post").has_final_norm
        assert shape(norm_placement="post", final_norm=True).has_final_norm
        assert not shape(norm_placement="pre", final_norm=False).has_final_norm

    def test_reads_a_model_config(self) -> None:
        config = {
            "model_type": "looped_lm",
            "plan": [{"blocks": 2, "rounds": 3}],
            "vocab_size": 97,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": None,
            "head_dim": None,
            "intermediate_size": 48,
            "mlp": "gelu",
            "norm_placement": "pre",
        }
        assert ModelShape.from_config(config) == shape(
            mlp="gelu", norm_placement="pre", num_key_value_heads=4, head_dim=8
        )
        with pytest.raises(PlanError, match="model config has no plan, mlp"):
            ModelShape.from_config({k: v for k, v in config.items() if k not in ("plan", "mlp")})
        with pytest.raises(PlanError, match="hidden_size 30 is not divisible by 4 heads"):
            ModelShape.from_config({**config, "hidden_size": 30})


class TestParameters:
    def test_parts_by_hand(self) -> None:
        count = count_parameters(shape(norm_placement="sandwich", qk_norm=True, tie_word_embeddings=False))
        assert count.block_attention == 32 * 32 + 2 * 32 * 16 + 32 * 32
        assert count.block_mlp == 3 * 32 * 48
        assert count.block_norms == 4 * 32 + 2 * 8
        assert (count.embedding, count.head, count.outer_norms) == (97 * 32, 97 * 32, 32)
        assert count.non_embedding == 2 * count.block + 32
        assert count.total == count.non_embedding + 2 * 97 * 32

    def test_rounds_cost_nothing(self) -> None:
        assert count_parameters(shape(DepthPlan.looped(2, 1))) == count_parameters(shape(DepthPlan.looped(2, 9)))


class TestFlops:
    def test_parts_by_hand(self) -> None:
        flops = flops_per_token(shape(DepthPlan.looped(2, 3)), 16)
        assert flops.attention_projections == 6 * 2 * (2 * 32 * 32 + 2 * 32 * 16)
        assert flops.attention_scores == 6 * 4 * 16 * 32
        assert flops.mlp == 6 * 2 * 3 * 32 * 48
        assert flops.head == 2 * 97 * 32
        assert flops.training == 3 * flops.forward
        assert flops.head_share == pytest.approx(flops.head / flops.forward)

    def test_causal_scores_by_enumeration(self) -> None:
        context, heads_times_dim, visits = 16, 32, 6
        pairs = sum(1 for query in range(context) for key in range(context) if key <= query)
        per_token = visits * 4 * heads_times_dim * pairs / context
        flops = flops_per_token(shape(), context)
        assert flops.attention_scores_causal == per_token
        assert flops.forward - flops.forward_causal == flops.attention_scores - per_token

    def test_looping_costs_as_much_as_unshared_blocks(self) -> None:
        assert flops_per_token(shape(DepthPlan.looped(2, 3)), 64) == flops_per_token(shape(DepthPlan.stacked(6)), 64)

    def test_visits_without_gradient_cost_their_forward_only(self) -> None:
        full = flops_per_token(shape(DepthPlan.looped(2, 4), norm_placement="pre"), 16)
        cut = flops_per_token(shape(DepthPlan.looped(2, 4, grad_rounds=1), norm_placement="pre"), 16)
        assert cut.forward == full.forward
        assert full.backward - cut.backward == 2 * 3 * (full.forward - full.head) // 4

    def test_post_needs_no_input_gradient_after_a_detached_stream(self) -> None:
        plan = DepthPlan.looped(2, 4, grad_rounds=1)
        saved = (
            flops_per_token(shape(plan, norm_placement="sandwich"), 16).backward
            - flops_per_token(shape(plan, norm_placement="post"), 16).backward
        )
        assert saved == 2 * 32 * (32 + 16 + 16)  # inputs of q, k and v of one visit
        injected = DepthPlan.looped(2, 4, grad_rounds=1, inject=True)
        assert (
            flops_per_token(shape(injected, norm_placement="post"), 16).backward
            == flops_per_token(shape(injected, norm_placement="sandwich"), 16).backward
        )

    def test_checkpointing_repeats_the_visits_but_not_the_head(self) -> None:
        plain = flops_per_token(shape(norm_placement="post"), 16)
        again = flops_per_token(shape(norm_placement="post"), 16, checkpoint_visits=True)
        assert again.training - plain.training == plain.forward - plain.head
        # Only a sum follows the down projection of `pre`, so torch does not repeat it.
        pre = flops_per_token(shape(norm_placement="pre"), 16, checkpoint_visits=True)
        assert again.recomputed - pre.recomputed == 6 * 2 * 32 * 48

    def test_context_length_is_checked(self) -> None:
        with pytest.raises(PlanError, match="context_length came as 0"):
            flops_per_token(shape(), 0)


def test_kv_cache_has_one_slot_a_visit() -> None:
    assert kv_cache_bytes_per_token(shape(DepthPlan.looped(2, 3))) == 2 * 2 * 8 * 6 * 2
    assert kv_cache_bytes_per_token(shape(DepthPlan.middle_loop(4)), bytes_per_element=4) == 2 * 2 * 8 * 6 * 4


class TestMatchWidth:
    def test_the_reference_matches_itself(self) -> None:
        match = match_width(shape(), shape().plan, budgets=["flops", "parameters", "kv"], context_length=64)
        assert match.shape == shape()
        assert match.worst == 0

    def test_kv_heads_meet_the_cache(self) -> None:
        reference = shape(
            DepthPlan.stacked(3), num_attention_heads=4, num_key_value_heads=4, hidden_size=256, head_dim=64
        )
        match = match_width(reference, DepthPlan.looped(3, 2), budgets=["kv"], context_length=64)
        assert match.shape.key_value_width == reference.key_value_width // 2
        assert match.worst == 0

    def test_no_other_candidate_is_better(self) -> None:
        reference, plan = shape(DepthPlan.stacked(6)), DepthPlan.looped(2, 9)
        match = match_width(reference, plan, budgets=["flops"], context_length=64, hidden_step=8)
        target = flops_per_token(reference, 64).forward
        for width in range(8, 65, 8):
            other = dataclasses.replace(
                reference,
                plan=plan,
                hidden_size=width,
                head_dim=width // 4,
                intermediate_size=8 * round(1.5 * width / 8),
            )
            assert abs(flops_per_token(other, 64).forward / target - 1) >= match.worst

    def test_dense_looping_cannot_meet_flops_and_parameters(self) -> None:
        reference = shape(DepthPlan.stacked(6), hidden_size=256, head_dim=64, intermediate_size=512)
        match = match_width(reference, DepthPlan.looped(6, 4), budgets=["flops", "parameters"])
        assert match.mismatches["flops"] > 0.2
        assert match.mismatches["parameters"] < -0.2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"budgets": []}, "budgets came empty"),
            ({"budgets": ["flop"]}, "did you mean 'flops'"),
            ({"hidden_step": 12}, "expected a multiple of 8"),
            ({"hidden_step": 800}, "expected at most 64"),
            ({"intermediate_ratios": [0.0]}, "expected positive numbers"),
            ({"key_value_heads": [3], "budgets": ["kv"]}, "expected a divisor of the attention heads"),
        ],
    )
    def test_bad_grids_are_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(PlanError, match=message):
            match_width(shape(), DepthPlan.looped(2, 2), **arguments)


def test_several_truncated_segments() -> None:
    # The second truncated segment cuts the stream, so nothing before it carries gradient.
    plan = DepthPlan((Segment(1, 3, grad_rounds=1), Segment(1, 3, grad_rounds=2)))
    flops = flops_per_token(shape(plan, norm_placement="pre"), 16)
    visit = (flops.forward - flops.head) // 6
    assert flops.backward == 2 * (2 * visit + flops.head)


class TestMemory:
    def test_parts_by_hand(self) -> None:
        # post, swiglu: 2 sublayer inputs and, per norm, input and normalized input of 32; q, k, v and the heads'
        # output of 32 + 16 + 16 + 32; four of 48; a scale per norm and a denominator per head.
        memory = activation_memory(shape(DepthPlan.looped(2, 3)), 16, 2)
        tokens = 32
        assert memory.visits == 4 * tokens * 6 * (6 * 32 + 96 + 4 * 48 + 2 + 4)
        assert memory.loss == 4 * tokens * 3 * 97
        assert memory.outer == 4 * (tokens * 3 * 32 + 2 * 16 * 8)
        assert memory.recomputed == 0
        assert memory.peak == memory.outer + memory.visits + memory.loss

    def test_checkpointing_keeps_one_state_a_visit(self) -> None:
        plain = activation_memory(shape(DepthPlan.looped(2, 3)), 16, 2)
        saved = activation_memory(shape(DepthPlan.looped(2, 3)), 16, 2, checkpoint_visits=True)
        assert saved.visits == 4 * 32 * 6 * 32
        assert saved.recomputed + 4 * 32 * 32 == plain.visits // 6
        assert saved.peak < plain.peak

    def test_visits_without_gradient_keep_nothing(self) -> None:
        cut = activation_memory(shape(DepthPlan.looped(2, 9, grad_rounds=2)), 16, 2)
        assert cut == activation_memory(shape(DepthPlan.looped(2, 2)), 16, 2)

    def test_rows_scale_everything_but_the_rotary_tables(self) -> None:
        one, three = (activation_memory(shape(), 16, rows) for rows in (1, 3))
        rotary = 4 * 2 * 16 * 8
        assert three.peak - rotary == 3 * (one.peak - rotary)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0, 1), "context_length came as 0"),
            ((16, 0), "batch_rows came as 0"),
            ((16, 1, 8), r"expected 4 \(float32\) or 2 \(autocast to bfloat16\)"),
        ],
    )
    def test_bad_values_are_named(self, arguments: tuple[int, ...], message: str) -> None:
        with pytest.raises(PlanError, match=message):
            activation_memory(shape(), *arguments)

    def test_training_state_is_sixteen_bytes_a_parameter(self) -> None:
        parameters = count_parameters(shape()).total
        state = training_state_bytes(shape())
        assert (state.weights, state.gradients, state.moments) == (4 * parameters, 4 * parameters, 8 * parameters)
        assert state.total == 16 * parameters
        assert training_state_bytes(shape(), weight_bytes=2).total == 14 * parameters

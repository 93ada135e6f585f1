"""Predicted FLOPs and parameters against the real model, counted by torch on the meta device.

On the CPU FlopCounterMode counts fused attention as zero; on the meta device attention is plain products at full
T^2, in the backward pass too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from depthscale.budget import ModelShape, count_parameters, flops_per_token
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan, Segment

BATCH, CONTEXT = 2, 48


def build(shape: ModelShape, device: str = "meta") -> LoopedLMForCausalLM:
    values = {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
    values["plan"] = shape.plan.to_dict()["segments"]
    with torch.device(device):
        return LoopedLMForCausalLM(LoopedLMConfig(**values))


def measure(shape: ModelShape, checkpoint_visits: bool = False) -> tuple[float, float]:
    """Forward and training FLOPs per token of the real model."""
    model = build(shape).train()
    if checkpoint_visits:
        model.gradient_checkpointing_enable()
    ids = torch.zeros(BATCH, CONTEXT, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        loss = model(ids, labels=ids).loss
        forward = counter.get_total_flops()
        loss.backward()
    return forward / ids.numel(), counter.get_total_flops() / ids.numel()


def shape(plan: DepthPlan, **changes: Any) -> ModelShape:
    small = ModelShape(plan, 97, 32, 4, 4, 8, 85)
    return dataclasses.replace(small, **changes)


SHAPES = {
    "stacked": shape(DepthPlan.stacked(3)),
    "looped": shape(DepthPlan.looped(2, 3)),
    "prelude and coda": shape(DepthPlan.looped(2, 3, prelude=1, coda=2)),
    "each repeated": shape(DepthPlan.each_repeated(2, 2), norm_placement="pre"),
    "injected": shape(DepthPlan.looped(2, 3, prelude=1, inject=True), norm_placement="sandwich"),
    "grouped queries": shape(DepthPlan.looped(2, 3), num_key_value_heads=2),
    "one key head, wide heads": shape(DepthPlan.looped(2, 2), num_key_value_heads=1, head_dim=16),
    "gelu": shape(DepthPlan.looped(2, 3), mlp="gelu", intermediate_size=128),
    "sandwich, qk norm": shape(DepthPlan.looped(2, 3), norm_placement="sandwich", qk_norm=True),
    "pre, untied": shape(DepthPlan.looped(2, 3), norm_placement="pre", tie_word_embeddings=False),
    "bare": shape(DepthPlan.looped(2, 3), embedding_norm=False),
    "large vocabulary": shape(DepthPlan.looped(1, 2), vocab_size=5000),
}
CUTS = {
    "last round": DepthPlan.looped(1, 3, grad_rounds=1),
    "injected": DepthPlan.looped(1, 4, grad_rounds=2, prelude=1, coda=1, inject=True),
    "prelude cut off": DepthPlan.looped(2, 2, grad_rounds=1, prelude=1),
    "two cuts": DepthPlan((Segment(1, 3, grad_rounds=1), Segment(2, 2, grad_rounds=1))),
    "cut, then injected cut": DepthPlan((Segment(1, 2, grad_rounds=1), Segment(1, 3, inject=True, grad_rounds=1))),
}
SHAPES |= {f"post, {name}": shape(plan) for name, plan in CUTS.items()}
SHAPES |= {
    f"{placement}, {name}": shape(CUTS[name], norm_placement=placement)
    for placement in ("sandwich", "pre")
    for name in ("last round", "injected")
}
CHECKPOINTED = ["looped", "gelu", "sandwich, qk norm", "pre, untied", "post, prelude cut off", "pre, injected"]


@pytest.mark.parametrize("name", SHAPES)
def test_flops_are_those_torch_counts(name: str) -> None:
    model_shape = SHAPES[name]
    predicted = flops_per_token(model_shape, CONTEXT)
    # Both count the same products, so the numbers are equal, not merely within 2 %.
    assert (predicted.forward, predicted.training) == measure(model_shape)


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpointed_flops_are_those_torch_counts(name: str) -> None:
    model_shape = SHAPES[name]
    predicted = flops_per_token(model_shape, CONTEXT, checkpoint_visits=True)
    assert (predicted.forward, predicted.training) == measure(model_shape, checkpoint_visits=True)


def test_looped_model_costs_the_flops_of_unshared_blocks_and_the_parameters_of_its_own() -> None:
    looped, stacked = shape(DepthPlan.looped(2, 3)), shape(DepthPlan.stacked(6))
    assert measure(looped) == measure(stacked)
    assert 3 * count_parameters(looped).block * 2 == count_parameters(stacked).block * 6
    assert sum(p.numel() for p in build(looped).parameters()) == count_parameters(looped).total
    assert sum(p.numel() for p in build(stacked).parameters()) == count_parameters(stacked).total


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_shape_is_read_back_from_the_model_config(name: str) -> None:
    model_shape = SHAPES[name]
    read = ModelShape.from_config(build(model_shape).config.to_dict())
    assert read == dataclasses.replace(model_shape, final_norm=model_shape.has_final_norm)


segments = st.builds(
    Segment, blocks=st.integers(1, 2), rounds=st.integers(1, 3), grad_rounds=st.none() | st.integers(1, 2)
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads = draw(st.integers(1, 3))
    return ModelShape(
        plan=DepthPlan(tuple(draw(st.lists(segments, min_size=1, max_size=2)))),
        vocab_size=draw(st.integers(2, 200)),
        hidden_size=draw(st.integers(1, 40)),
        num_attention_heads=kv_heads * draw(st.integers(1, 3)),
        num_key_value_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 60)),
        mlp=draw(st.sampled_from(["swiglu", "gelu"])),
        norm_placement=draw(st.sampled_from(["post", "sandwich", "pre"])),
        qk_norm=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        final_norm=draw(st.sampled_from([None, True, False])),
        tie_word_embeddings=draw(st.booleans()),
    )


@given(model_shape=shapes())
@settings(max_examples=25)
def test_parameters_are_exact_for_any_shape(model_shape: ModelShape) -> None:
    model = build(model_shape)
    count = count_parameters(model_shape)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    assert count.embedding == model.model.embed_tokens.weight.numel()
    assert count.block == sum(parameter.numel() for parameter in model.model.blocks[0].parameters())


@given(model_shape=shapes())
@settings(max_examples=8)
def test_flops_are_exact_for_any_shape(model_shape: ModelShape) -> None:
    flops = flops_per_token(model_shape, CONTEXT)
    assert (flops.forward, flops.training) == measure(model_shape)


@given(model_shape=shapes(), rounds=st.integers(1, 6), context=st.integers(1, 4096))
@settings(max_examples=100)
def test_budgets_grow_with_every_size(model_shape: ModelShape, rounds: int, context: int) -> None:
    flops = flops_per_token(model_shape, context)
    assert flops_per_token(model_shape, context + 1).training > flops.training
    assert flops.forward_causal <= flops.forward < flops.training <= 3 * flops.forward
    more_rounds = dataclasses.replace(model_shape, plan=model_shape.plan.with_rounds(rounds + 1))
    fewer_rounds = dataclasses.replace(model_shape, plan=model_shape.plan.with_rounds(rounds))
    assert flops_per_token(more_rounds, context).forward > flops_per_token(fewer_rounds, context).forward
    assert count_parameters(more_rounds) == count_parameters(fewer_rounds)
    for name in ("vocab_size", "hidden_size", "intermediate_size"):
        larger = dataclasses.replace(model_shape, **{name: getattr(model_shape, name) + 1})
        assert flops_per_token(larger, context).forward > flops.forward
        assert count_parameters(larger).total > count_parameters(model_shape).total

"""Cached against uncached logits, at every position, for every placement and kind of plan, in float32.

The reference is the same model without a cache: one forward pass over the whole text, or over each row alone where
the batch is padded. Measured with these models: at most 1.4e-6 where logits have a standard deviation of 0.6.
The bound of 1e-5 holds at ordinary logit scale (standard deviation below 1); rounding grows with the logits, so larger
ones differ by proportionally more.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.cache import CACHE_FIELD

torch.set_num_threads(1)

LENGTH = 13
TOLERANCE = 1e-5
PLACEMENTS = ("post", "sandwich", "pre")
PLANS: dict[str, list[dict[str, Any]]] = {
    "stacked": [{"blocks": 3}],
    "looped": [{"blocks": 2, "rounds": 3}],
    "prelude and coda": [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 3}, {"blocks": 1, "fixed": True}],
    "injected": [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 3, "inject": True}],
    "truncated": [{"blocks": 2, "rounds": 3, "inject": True, "grad_rounds": 1}, {"blocks": 1}],
    "each repeated": [{"blocks": 1, "rounds": 3}, {"blocks": 1, "rounds": 3}],
}
EVERY_MODEL = [
    pytest.param(placement, plan, heads, id=f"{placement}-{plan}{'-grouped' if heads else ''}")
    for placement in PLACEMENTS
    for plan in PLANS
    for heads in ({}, {"num_key_value_heads": 2, "qk_norm": True, "mlp": "gelu"})
    if not heads or plan == "injected"
]


def build(placement: str, plan: list[dict[str, Any]], **more: Any) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    scale = {"branch": 0.5} if placement == "pre" else {"skip": 2.0}
    config = LoopedLMConfig(
        vocab_size=97,
        hidden_size=32,
        norm_placement=placement,
        plan=plan,
        residual_scales=[scale for _ in plan],
        embedding_initializer_range=0.1,
        **more,
    )
    return LoopedLMForCausalLM(config).eval()


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def in_chunks(model: LoopedLMForCausalLM, ids: torch.Tensor, sizes: list[int], **arguments: Any) -> torch.Tensor:
    """Logits of ``ids``, fed through one cache in chunks of the given sizes."""
    cache, mask = DynamicCache(), arguments.pop("attention_mask", None)
    logits, start = [], 0
    for size in sizes:
        end = start + size
        output = model(
            ids[:, start:end],
            past_key_values=cache,
            attention_mask=None if mask is None else mask[:, :end],
            **arguments,
        )
        assert output[CACHE_FIELD] is cache
        assert cache.get_seq_length() == end
        logits.append(output.logits)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, dim=1)


def close(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("placement", "plan", "heads"), EVERY_MODEL)
def test_every_position_whatever_the_chunks_and_rounds(placement: str, plan: str, heads: dict[str, Any]) -> None:
    """Public fault: later visits of a shared block overwrite earlier keys and values."""
    model, ids = build(placement, PLANS[plan], **heads), tokens()
    for rounds in (None, 1, 5):
        with torch.no_grad():
            whole = model(ids, rounds=rounds).logits
        assert whole.std() > 0.1
        for sizes in ([1] * LENGTH, [3] * 4 + [1], [LENGTH], [6] + [1] * (LENGTH - 6)):
            close(in_chunks(model, ids, sizes, rounds=rounds), whole)


@pytest.mark.parametrize(("placement", "plan", "heads"), EVERY_MODEL)
def test_a_left_padded_batch_equals_its_rows_alone(placement: str, plan: str, heads: dict[str, Any]) -> None:
    model, ids = build(placement, PLANS[plan], **heads), tokens(3)
    lengths = (4, 8, LENGTH)
    mask = torch.stack([torch.arange(LENGTH) >= LENGTH - length for length in lengths]).long()
    for sizes in ([1] * LENGTH, [6] + [1] * (LENGTH - 6), [3] * 4 + [1]):
        together = in_chunks(model, ids, sizes, attention_mask=mask)
        assert together.isfinite().all()
        for row, length in enumerate(lengths):
            with torch.no_grad():
                alone = model(ids[row : row + 1, LENGTH - length :]).logits
            close(together[row : row + 1, LENGTH - length :], alone)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_states_of_every_visit(placement: str) -> None:
    model, ids = build(placement, PLANS["injected"]), tokens()
    with torch.no_grad():
        whole = model(ids, output_hidden_states=True).hidden_states
        cache = DynamicCache()
        model(ids[:, :-1], past_key_values=cache)
        last = model(ids[:, -1:], past_key_values=cache, output_hidden_states=True).hidden_states
    assert len(last) == len(whole) == 1 + 7
    for mine, theirs in zip(last, whole, strict=True):
        close(mine[:, 0], theirs[:, -1])

"""A cache slot whose memory doubles: what it holds equals transformers' own slot, whatever is done to it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer

from depthscale.nn.growing_slot import SMALLEST_ROOM, GrowingSlot

torch.set_num_threads(1)


def states(tokens: int, seed: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, batch, 3, tokens, 4, generator=generator)
    return keys, values


def equal(slot: DynamicLayer, peer: DynamicLayer) -> bool:
    return torch.equal(slot.keys, peer.keys) and torch.equal(slot.values, peer.values)


#: What generate, beam search and assisted decoding do to a slot between two tokens.
CHANGES: dict[str, Callable[[DynamicLayer], object]] = {
    "nothing": lambda slot: None,
    "crop": lambda slot: slot.crop(-1),
    "reorder": lambda slot: slot.reorder_cache(torch.tensor([1, 0])),
    "repeat": lambda slot: slot.batch_repeat_interleave(1),
    "select": lambda slot: slot.batch_select_indices(torch.tensor([0, 1])),
    "reset": lambda slot: slot.reset(),
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 90), st.sampled_from(sorted(CHANGES))), min_size=1, max_size=8))
def test_it_holds_what_a_concatenating_slot_holds(steps: list[tuple[int, str]]) -> None:
    slot, peer = GrowingSlot(), DynamicLayer()
    for seed, (tokens, change) in enumerate(steps):
        if tokens == 1 and change == "crop":
            change = "nothing"
        for one in (slot, peer):
            one.update(*states(tokens, seed))
        assert equal(slot, peer)
        assert slot.get_seq_length() == peer.get_seq_length()
        for one in (slot, peer):
            CHANGES[change](one)
    for one in (slot, peer):
        one.update(*states(2, 99))
    assert equal(slot, peer)


@torch.no_grad()
def test_memory_moves_a_logarithmic_number_of_times() -> None:
    slot = GrowingSlot()
    places = set()
    slot.update(*states(8, 0))
    for step in range(1000):
        slot.update(*states(1, step))
        places.add(slot.keys.data_ptr())
    # 8 + 64 tokens at first, then 144, 288, 576 and 1,152.
    assert len(places) <= 5
    assert slot.buffers is not None
    assert slot.buffers[0].shape[-2] <= 2 * 1008
    assert SMALLEST_ROOM == 64


@torch.no_grad()
def test_a_fork_and_a_deep_copy_go_their_own_ways() -> None:
    slot = GrowingSlot()
    slot.update(*states(5, 0))
    fork, deep = slot.fork(), copy.deepcopy(slot)
    for seed, one in enumerate((slot, fork, deep), start=1):
        one.update(*states(1, seed))
    for seed, one in enumerate((slot, fork, deep), start=1):
        peer = DynamicLayer()
        peer.update(*states(5, 0))
        peer.update(*states(1, seed))
        assert equal(one, peer)


def test_with_gradient_it_concatenates_and_can_be_written_to_afterwards() -> None:
    slot, peer = GrowingSlot(), DynamicLayer()
    with torch.no_grad():
        slot.update(*states(5, 0))
        peer.update(*states(5, 0))
    keys, values = states(1, 1)
    keys.requires_grad_()
    held, _ = slot.update(keys, values)
    peer.update(*states(1, 1))
    with torch.no_grad():
        slot.update(*states(1, 2))
        peer.update(*states(1, 2))
    held.sum().backward()
    assert keys.grad is not None
    assert torch.equal(keys.grad, torch.ones_like(keys))
    assert equal(slot, peer)


@pytest.mark.parametrize("batch", [1, 4])
@torch.no_grad()
def test_other_rows_put_in_place_are_moved_to_a_buffer_of_their_own(batch: int) -> None:
    slot = GrowingSlot()
    slot.update(*states(5, 0))
    # A view of the buffer's own first row has its address and its strides.
    slot.keys, slot.values = (
        torch.cat([held[:1]] * batch) if batch > 1 else held[:1] for held in (slot.keys, slot.values)
    )
    before = slot.keys.clone()
    slot.update(*states(1, 1, batch))
    assert torch.equal(slot.keys[..., :5, :], before)
    assert torch.equal(slot.keys[..., 5:, :], states(1, 1, batch)[0])

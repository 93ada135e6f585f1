"""The key-value cache of a looped model: transformers' ``Cache`` with one slot per visit.

A block that is visited again writes other keys and values each time, so what transformers calls a layer of the
cache is here a visit: slot v holds what visit v has seen. The number of slots is the number of visits, which
``rounds`` changes; a cache that was filled by another number of visits, or by other blocks, holds nothing that this
forward pass could go on from and is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from .growing_slot import GrowingSlot

#: Where outputs carry the cache and ``generate`` looks for it: transformers 5.24 renamed "past_key_values" to "cache".
CACHE_FIELD = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"

#: What a cache is marked with by the pass that first fills it; caches themselves know lengths but no blocks.
_SCHEDULE = "looped_lm_schedule"


def choose_cache(past_key_values: Cache | None, cache: Cache | None, use_cache: bool | None) -> Cache | None:
    """The cache that a forward pass reads and extends.

    Args:
        past_key_values: transformers' name of the argument before 5.24.
        cache: its name since.
        use_cache: True makes an empty cache when none came. None uses a cache exactly where one came, so that
            training and evaluation never build one. False reads the one that came but leaves it as it was.

    Raises:
        ValueError: a cache came under both names, or what came is no growing ``Cache``.
    """
    if past_key_values is not None and cache is not None:
        raise ValueError("a cache came both as past_key_values and as cache; expected one of them")
    given = cache if past_key_values is None else past_key_values
    if given is None:
        return DynamicCache() if use_cache else None
    if not isinstance(given, Cache) or given.is_compileable or any(given.is_sliding):
        raise ValueError(
            f"the cache came as {type(given).__name__}; expected transformers' DynamicCache(), which keeps every token"
            " and grows with the text"
        )
    if use_cache is False:
        # A dynamic slot replaces its tensors instead of writing into them, so copies of the slots protect the original.
        given = copy.copy(given)
        given.layers = [slot.fork() if isinstance(slot, GrowingSlot) else copy.copy(slot) for slot in given.layers]
    return given


def open_cache(cache: Cache, schedule: Sequence[int], batch: int) -> int:
    """Tokens that ``cache`` already holds, after checking that this forward pass can go on from them.

    Args:
        cache: what :func:`choose_cache` gave.
        schedule: the block of each visit.
        batch: rows of the input.

    Raises:
        ValueError: the cache was filled by other visits or another batch, or has too few slots.
    """
    num_visits = len(schedule)
    lengths = [slot.get_seq_length() for slot in cache.layers]
    num_filled = sum(length > 0 for length in lengths)
    if num_filled == 0:
        if cache.layer_class_to_replicate is None and len(lengths) < num_visits:
            raise ValueError(
                f"the cache has {len(lengths)} slots for {num_visits} visits; expected one each:"
                " DynamicCache() without a config grows as needed"
            )
        setattr(cache, _SCHEDULE, tuple(schedule))
        if not lengths and cache.layer_class_to_replicate is DynamicLayer:
            cache.layer_class_to_replicate = GrowingSlot
        return 0
    if num_filled != num_visits or min(lengths[:num_visits]) != max(lengths):
        held = f"{num_filled} filled slots of {_words(lengths)} tokens"
        raise ValueError(
            f"the cache holds {held}, but this pass makes {num_visits} visits; expected a cache filled by the same"
            " plan and rounds, or an empty one"
        )
    # A cache put together elsewhere carries no mark; its slots are all there is to check.
    filled_by = getattr(cache, _SCHEDULE, None)
    if filled_by is not None and filled_by != tuple(schedule):
        raise ValueError(
            f"the cache was filled by visits to blocks {_words(filled_by)}, but this pass visits"
            f" {_words(schedule)}; expected a cache of the same plan, or an empty one"
        )
    keys = cache.layers[0].keys
    if isinstance(keys, torch.Tensor) and keys.shape[0] != batch:
        raise ValueError(f"the cache holds {keys.shape[0]} rows, but {batch} came; expected one row for each")
    return lengths[0]


def _words(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"{shown}, ..." if len(numbers) > 8 else shown

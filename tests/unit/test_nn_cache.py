"""The key-value cache: one slot per visit, what is refused, and what is left untouched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.cache import CACHE_FIELD
from depthscale.nn.masking import continued_attention_pattern, default_position_ids

torch.set_num_threads(1)

NAMES = ("past_key_values", "cache")
LOOP = [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 3, "inject": True}]


def build(plan: Any = LOOP, **more: Any) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    scales = [{"skip": 2.0} for _ in plan]
    config = LoopedLMConfig(
        vocab_size=97, hidden_size=32, norm_placement="post", plan=plan, residual_scales=scales, **more
    )
    return LoopedLMForCausalLM(config).eval()


def tokens(batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def filled(model: LoopedLMForCausalLM, rounds: int | None = None, batch: int = 2) -> DynamicCache:
    cache = DynamicCache()
    model(tokens(batch)[:, :6], cache=cache, rounds=rounds)
    return cache


def contents(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(slot.keys.clone(), slot.values.clone()) for slot in cache.layers]


def same(cache: DynamicCache, before: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return len(cache.layers) == len(before) and all(
        torch.equal(slot.keys, keys) and torch.equal(slot.values, values)
        for slot, (keys, values) in zip(cache.layers, before, strict=True)
    )


# -- slots --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [None, 1, 5])
def test_every_visit_has_a_slot_of_its_own(rounds: int | None) -> None:
    model = build()
    cache = filled(model, rounds)
    assert len(cache.layers) == 1 + 2 * (rounds or 3)
    for slot in cache.layers:
        assert slot.keys.shape == slot.values.shape == (2, 4, 6, 8)
    keys = [slot.keys for slot in cache.layers]
    assert not any(torch.equal(keys[i], keys[j]) for i in range(len(keys)) for j in range(i))


def test_grouped_heads_keep_only_their_own_keys() -> None:
    cache = filled(build(num_key_value_heads=2))
    assert cache.layers[0].keys.shape == (2, 2, 6, 8)


def test_the_cache_grows_by_what_came() -> None:
    """Public fault: the prefix is fed again although it is cached."""
    model = build()
    cache = filled(model)
    for step in range(3):
        with torch.no_grad():
            model(tokens()[:, 6 + step : 7 + step], cache=cache)
        assert [slot.get_seq_length() for slot in cache.layers] == [7 + step] * 7


def test_positions_go_on_after_the_cache_and_skip_padding_on_the_left() -> None:
    cpu = torch.device("cpu")
    assert default_position_ids(None, 2, cpu, 5).tolist() == [[5, 6]]
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert default_position_ids(mask, 2, cpu, 3).tolist() == [[1, 2], [3, 4]]


def test_a_pattern_is_built_only_where_one_is_needed() -> None:
    cpu, ones = torch.device("cpu"), torch.ones(2, 5)
    assert continued_attention_pattern(None, 1, cpu, 4) is None
    assert continued_attention_pattern(ones, 1, cpu, 4) is None
    assert continued_attention_pattern(None, 2, cpu, 3).int().tolist() == [[[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]]
    ones[0, :4] = 0
    pattern = continued_attention_pattern(ones, 2, cpu, 3).int()
    # Row 0 is padded up to its last token; the padded new token sees itself alone.
    assert pattern[0, 0].tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert pattern[1, 0].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


# -- names and use_cache --------------------------------------------------------------------------------------


def test_both_names_mean_the_same_and_both_at_once_are_refused() -> None:
    model, ids = build(), tokens()
    outputs = []
    for name in NAMES:
        cache = filled(model)
        with torch.no_grad():
            outputs.append(model(ids[:, 6:], **{name: cache}))
        assert outputs[-1][CACHE_FIELD] is cache
    assert torch.equal(outputs[0].logits, outputs[1].logits)
    with pytest.raises(ValueError, match="both as past_key_values and as cache"):
        model(ids, past_key_values=DynamicCache(), cache=DynamicCache())


def test_a_cache_is_built_only_when_asked_for() -> None:
    model, ids = build(), tokens()
    assert CACHE_FIELD not in model(ids)
    made = model(ids, use_cache=True)[CACHE_FIELD]
    assert isinstance(made, DynamicCache)
    assert made.get_seq_length() == 9
    assert torch.equal(model(ids, use_cache=True).logits, model(ids).logits)
    assert CACHE_FIELD not in model.train()(ids, labels=ids)


@pytest.mark.parametrize("name", NAMES)
def test_use_cache_false_reads_a_cache_and_leaves_it_untouched(name: str) -> None:
    """Public fault: use_cache=False still changes a passed cache."""
    model, ids = build(), tokens()
    cache = filled(model)
    before = contents(cache)
    with torch.no_grad():
        for _ in range(2):
            output = model(ids[:, 6:], use_cache=False, **{name: cache})
            assert CACHE_FIELD not in output
            assert same(cache, before)
        torch.testing.assert_close(output.logits, model(ids).logits[:, 6:], rtol=0, atol=1e-5)
        empty = DynamicCache()
        model(ids, use_cache=False, **{name: empty})
    assert len(empty.layers) == 0


def test_the_model_without_a_head_takes_a_cache() -> None:
    model, ids = build().model, tokens()
    with torch.no_grad():
        first = model(ids[:, :6], use_cache=True)
        second = model(ids[:, 6:], cache=first[CACHE_FIELD])
        whole = model(ids).last_hidden_state
    torch.testing.assert_close(second.last_hidden_state, whole[:, 6:], rtol=0, atol=1e-5)


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("filled_at", "asked"), [(3, 2), (3, 5), (1, None), (5, None)])
def test_a_cache_of_other_rounds_is_refused_and_kept(filled_at: int, asked: int | None) -> None:
    model = build()
    cache = filled(model, filled_at)
    before = contents(cache)
    words = f"holds {1 + 2 * filled_at} filled slots .* this pass makes {1 + 2 * (asked or 3)} visits"
    with pytest.raises(ValueError, match=words) as caught:
        model(tokens()[:, 6:], cache=cache, rounds=asked)
    assert "\n" not in str(caught.value)
    assert same(cache, before)


def test_a_cache_of_another_plan_with_as_many_visits_is_refused() -> None:
    cache = filled(build([{"blocks": 2, "rounds": 3}]))
    with pytest.raises(ValueError, match=r"filled by visits to blocks 0, 1, 0, 1, 0, 1, .* visits 0, 1, 2, 0, 1, 2"):
        build([{"blocks": 3, "rounds": 2}])(tokens()[:, 6:], cache=cache)
    # A copy keeps what it was filled by; a cache that was put together elsewhere is judged by its slots alone.
    with pytest.raises(ValueError, match="filled by visits to blocks"):
        build([{"blocks": 3, "rounds": 2}])(tokens()[:, 6:], cache=copy.deepcopy(cache))
    rebuilt = DynamicCache([(slot.keys, slot.values) for slot in cache.layers])
    model = build([{"blocks": 2, "rounds": 3}])
    with torch.no_grad():
        output = model(tokens()[:, 6:], cache=rebuilt)
        torch.testing.assert_close(output.logits, model(tokens()).logits[:, 6:], rtol=0, atol=1e-5)


def test_slots_of_unequal_length_are_refused() -> None:
    model = build()
    cache = filled(model)
    cache.layers[2].update(torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8))
    with pytest.raises(ValueError, match="slots of 6, 6, 7, 6, 6, 6, 6 tokens"):
        model(tokens()[:, 6:], cache=cache)


def test_a_cache_of_another_batch_is_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match="the cache holds 3 rows, but 2 came"):
        model(tokens()[:, 6:], cache=filled(model, batch=3))


def test_a_cache_with_a_fixed_number_of_slots_works_where_they_suffice() -> None:
    model, ids = build(), tokens()
    for rounds in (None, 2):
        cache = DynamicCache(config=model.config)
        assert len(cache.layers) == 7
        with torch.no_grad():
            model(ids[:, :6], cache=cache, rounds=rounds)
            last = model(ids[:, 6:], cache=cache, rounds=rounds).logits
            torch.testing.assert_close(last, model(ids, rounds=rounds).logits[:, 6:], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"7 slots for 9 visits; .* DynamicCache\(\) without a config grows"):
        model(ids, cache=DynamicCache(config=model.config), rounds=4)


def test_other_kinds_of_cache_are_refused() -> None:
    model = build()
    static = StaticCache(config=model.config, max_cache_len=20)
    for kind, name in ((static, "StaticCache"), (((tokens(), tokens()),), "tuple")):
        with pytest.raises(ValueError, match=f"the cache came as {name}; expected transformers' DynamicCache"):
            model(tokens(), past_key_values=kind)


def test_documents_and_masks_that_do_not_fit_a_cache_are_refused() -> None:
    model, ids = build(), tokens()
    with pytest.raises(ValueError, match="document_ids came with a cache"):
        model(ids, document_ids=torch.zeros_like(ids), use_cache=True)
    for columns in (3, 10):
        with pytest.raises(ValueError, match=rf"attention_mask came with shape \(2, {columns}\); expected \(2, 9\)"):
            model(ids[:, 6:], attention_mask=torch.ones(2, columns), cache=filled(model))


def test_checkpointing_in_training_refuses_a_cache() -> None:
    model = build().train()
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="in training with checkpointing"):
        model(tokens(), use_cache=True)
    model.eval()(tokens(), use_cache=True)


@pytest.mark.parametrize("cached", [False, True])
def test_an_input_without_tokens_is_refused(cached: bool) -> None:
    with pytest.raises(ValueError, match="the input came without tokens"):
        build()(tokens()[:, :0], use_cache=cached)


# -- gradients and compilation ----------------------------------------------------------------------------------


def test_gradient_flows_back_through_the_cache() -> None:
    """Two halves through a cache give the gradients of the whole, as a prefix that is tuned needs."""
    whole, halves, ids = build(), build(), tokens()
    whole(ids).logits.square().sum().backward()
    first = halves(ids[:, :6], use_cache=True)
    second = halves(ids[:, 6:], cache=first[CACHE_FIELD])
    (first.logits.square().sum() + second.logits.square().sum()).backward()
    for (name, mine), theirs in zip(halves.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_compiled_blocks_decode_with_a_cache_and_compile_nothing_for_it() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    try:
        model, ids = build(), tokens()
        with torch.no_grad():
            whole = model(ids).logits
            model.compile_blocks(backend=backend)  # type: ignore[arg-type]
            cache = DynamicCache()
            steps = [model(ids[:, step : step + 1], cache=cache).logits for step in range(9)]
            torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-5)
            assert graphs == []
            model(ids)
        assert graphs
    finally:
        torch._dynamo.reset()

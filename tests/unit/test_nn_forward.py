"""What forward promises: states per visit, padding, documents, labels, rounds, truncated gradients, checkpointing."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM, LoopedLMModel
from depthscale.nn.attention import rotary_tables
from depthscale.nn.block import Block
from depthscale.nn.loss import next_token_loss
from depthscale.nn.masking import attention_pattern
from depthscale.plan import DepthPlan

torch.set_num_threads(1)

PLACEMENTS = ("post", "sandwich", "pre")
LOOP = [{"blocks": 2, "rounds": 3}]
MIXED = [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 3, "inject": True}, {"blocks": 1, "fixed": True}]


def build(placement: str = "post", plan: Any = None, **more: Any) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    plan = LOOP if plan is None else plan
    scale = {"branch": 0.5} if placement == "pre" else {"skip": 1.5}
    return LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=97,
            hidden_size=32,
            norm_placement=placement,
            plan=plan,
            residual_scales=[scale for _ in plan],
            initializer_range=0.2,
            **more,
        )
    )


def tokens(batch: int = 2, length: int = 11, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


# -- states per visit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("rounds", [None, 1, 5])
def test_states_are_one_per_visit_and_each_reproducible_by_hand(placement: str, rounds: int | None) -> None:
    model = build(placement, MIXED).eval()
    ids = tokens()
    with torch.no_grad():
        output = model(ids, rounds=rounds, output_hidden_states=True)
        plan = DepthPlan.looped(2, rounds or 3, prelude=1, coda=1, inject=True)
        assert len(output.hidden_states) == 1 + plan.unrolled_depth
        assert torch.equal(output.hidden_states[0], model.model.embedding_norm(model.model.embed_tokens(ids)))
        rotary = rotary_tables(torch.arange(11)[None], model.config.head_dim, model.config.rope_theta)
        for index, visit in enumerate(plan.visits):
            x = output.hidden_states[index]
            if visit.block == 1 and visit.round > 0:
                x = functional.rms_norm(x + output.hidden_states[1], (32,), eps=1e-5)
            again = model.model.blocks[visit.block](x, rotary, None, index)
            assert torch.equal(again, output.hidden_states[index + 1]), index
        x = output.hidden_states[-1]
        x = model.model.final_norm(x) if placement == "pre" else x
        assert torch.equal(model.lm_head(x), output.logits)


def test_hooks_on_a_block_see_every_visit_apart() -> None:
    model = build().eval()
    seen: list[int] = []
    handle = model.model.blocks[1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[3]))
    model(tokens())
    handle.remove()
    model(tokens())
    assert seen == [1, 3, 5]


def test_states_come_only_when_asked_for() -> None:
    model = build().eval()
    assert model(tokens()).hidden_states is None
    model.config.output_hidden_states = True
    assert len(model(tokens()).hidden_states) == 7
    assert model(tokens(), output_hidden_states=False).hidden_states is None


def test_states_that_nobody_asked_for_are_freed_at_once() -> None:
    """Without gradient the memory of a forward pass must not grow with the rounds."""
    model = build().eval()
    alive: list[int] = []
    outputs: list[weakref.ref[torch.Tensor]] = []

    def count(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        outputs.append(weakref.ref(output))
        alive.append(sum(reference() is not None for reference in outputs))

    for block in model.model.blocks:
        block.register_forward_hook(count)
    with torch.no_grad():
        model(tokens(), rounds=8)
    # The visit's input (also the stream that the loop still names) and its output.
    assert len(alive) == 16
    assert max(alive) == 2


# -- rounds ---------------------------------------------------------------------------------------------


def test_rounds_change_every_segment_that_is_not_fixed() -> None:
    model = build("post", MIXED).eval()
    for rounds in (1, 2, 6):
        states = model(tokens(), rounds=rounds, output_hidden_states=True).hidden_states
        assert len(states) == 1 + 1 + 2 * rounds + 1
    assert torch.equal(model(tokens(), rounds=3).logits, model(tokens()).logits)
    assert not torch.equal(model(tokens(), rounds=2).logits, model(tokens()).logits)
    assert model.config.num_hidden_layers == 8


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True])
def test_rounds_below_one_are_refused(rounds: Any) -> None:
    with pytest.raises(ValueError, match="rounds came as"):
        build()(tokens(), rounds=rounds)


def test_rounds_of_a_fixed_plan_are_refused() -> None:
    with pytest.raises(ValueError, match="every segment of the plan is fixed"):
        build(plan=[{"blocks": 2, "fixed": True}])(tokens(), rounds=2)


# -- padding, positions, documents ------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("heads", [{}, {"num_key_value_heads": 2, "qk_norm": True}])
def test_a_padded_batch_equals_its_rows_alone(side: str, placement: str, heads: dict) -> None:
    model = build(placement, MIXED, **heads).eval()
    lengths = (4, 7, 11)
    ids, mask = tokens(3), torch.zeros(3, 11, dtype=torch.long)
    place = [slice(11 - n, 11) if side == "left" else slice(0, n) for n in lengths]
    for row, kept in enumerate(place):
        mask[row, kept] = 1
    with torch.no_grad():
        batch = model(ids, attention_mask=mask, output_hidden_states=True)
        assert batch.logits.isfinite().all()
        for row, kept in enumerate(place):
            alone = model(ids[row : row + 1, kept], output_hidden_states=True)
            torch.testing.assert_close(batch.logits[row, kept], alone.logits[0], rtol=1e-5, atol=1e-5)
            for together, single in zip(batch.hidden_states, alone.hidden_states, strict=True):
                torch.testing.assert_close(together[row, kept], single[0], rtol=1e-5, atol=1e-5)
        # What stands in the padding changes nothing.
        other = model(torch.where(mask.bool(), ids, 5), attention_mask=mask).logits
        assert torch.equal(other[mask.bool()], batch.logits[mask.bool()])


def test_a_row_of_nothing_but_padding_stays_finite() -> None:
    model = build("post")
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0] = 0
    labels = torch.where(mask.bool(), tokens(), -100)
    output = model(tokens(), attention_mask=mask, labels=labels, output_hidden_states=True)
    output.loss.backward()
    assert all(state.isfinite().all() for state in output.hidden_states)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_documents_in_one_row_equal_separate_runs() -> None:
    model = build("post").eval()
    ids = tokens(2, 12)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4]])
    with torch.no_grad():
        packed = model(ids, document_ids=documents, output_hidden_states=True)
        for row in range(2):
            for document in documents[row].unique():
                kept = documents[row] == document
                alone = model(ids[row : row + 1, kept], output_hidden_states=True)
                # Positions run on through the row; rotary attention sees their differences only, up to rounding.
                torch.testing.assert_close(packed.logits[row, kept], alone.logits[0], rtol=1e-4, atol=1e-4)
                for together, single in zip(packed.hidden_states, alone.hidden_states, strict=True):
                    torch.testing.assert_close(together[row, kept], single[0], rtol=1e-4, atol=1e-4)
        assert (packed.logits - model(ids).logits).abs().max() > 0.01


def test_a_mask_is_built_only_where_one_is_needed() -> None:
    ones, one_document = torch.ones(2, 5), torch.tensor([[3] * 5, [4] * 5])
    assert attention_pattern(None, None) is None
    assert attention_pattern(ones, one_document) is None
    ones[0, 0] = 0
    assert attention_pattern(ones, None) is not None
    one_document[1, 4] = 5
    assert attention_pattern(None, one_document) is not None


def test_position_ids_are_honored() -> None:
    model = build("post").eval()
    shifted = model(tokens(), position_ids=torch.arange(11)[None] + 100).logits
    torch.testing.assert_close(shifted, model(tokens()).logits, rtol=1e-4, atol=1e-4)
    stretched = model(tokens(), position_ids=torch.arange(11)[None] * 3).logits
    assert (stretched - shifted).abs().max() > 0.01


def test_no_token_sees_the_future() -> None:
    model = build("post").eval()
    ids = tokens()
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 97
    assert torch.equal(model(ids).logits[:, :6], model(changed).logits[:, :6])
    assert not torch.equal(model(ids).logits[:, 6:], model(changed).logits[:, 6:])


@pytest.mark.parametrize("name", ["attention_mask", "document_ids", "labels"])
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} came with shape \(2, 10\); expected \(2, 11\)"):
        build()(tokens(), **{name: torch.ones(2, 10, dtype=torch.long)})


def test_embeddings_may_stand_in_for_ids() -> None:
    model = build().eval()
    embedded = model(inputs_embeds=model.get_input_embeddings()(tokens())).logits
    assert torch.equal(embedded, model(tokens()).logits)
    for arguments in ({}, {"input_ids": tokens(), "inputs_embeds": torch.zeros(2, 11, 32)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**arguments)


# -- labels and loss --------------------------------------------------------------------------------------


def test_labels_are_shifted_once_and_minus_100_is_ignored() -> None:
    model = build().eval()
    ids = tokens()
    labels = ids.clone()
    labels[0, 4:7] = -100
    labels[1, 0] = -100
    output = model(ids, labels=labels)
    log_probabilities = output.logits.double().log_softmax(-1)
    by_hand = [
        -log_probabilities[row, position - 1, labels[row, position]].item()
        for row in range(2)
        for position in range(1, 11)
        if labels[row, position] != -100
    ]
    assert len(by_hand) == 17
    assert output.loss.item() == pytest.approx(sum(by_hand) / 17, rel=1e-6)
    assert model(ids, labels=labels, num_items_in_batch=17).loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    assert model(ids, labels=labels, num_items_in_batch=torch.tensor(34)).loss.item() == pytest.approx(
        output.loss.item() / 2, rel=1e-6
    )


def test_accumulated_parts_give_the_loss_and_gradients_of_the_whole_batch() -> None:
    ids = tokens(8)
    labels = ids.clone()
    for row in range(8):
        labels[row, : 1 + row] = -100
    count = int((labels[:, 1:] != -100).sum())
    whole = build()
    whole(ids, labels=labels).loss.backward()
    parts = build()
    total = 0.0
    for row in range(8):
        loss = parts(ids[row : row + 1], labels=labels[row : row + 1], num_items_in_batch=count).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole(ids, labels=labels).loss.item(), rel=1e-6)
    for (name, mine), theirs in zip(parts.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)
    # The mean of the parts' means is another number: this is what num_items_in_batch is for.
    means = [whole(ids[row : row + 1], labels=labels[row : row + 1]).loss.item() for row in range(8)]
    assert abs(sum(means) / 8 - total) > 1e-3


def test_the_loss_is_float32_and_copies_no_float32_logits() -> None:
    logits = torch.randn(2, 5, 97, dtype=torch.bfloat16)
    labels = torch.randint(0, 97, (2, 5))
    assert next_token_loss(logits, labels).dtype == torch.float32
    expected = functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(next_token_loss(logits, labels), expected)
    # float32 logits go into the log_softmax as they are: no copy of the model's largest tensor on the way.
    logits = logits.float()
    seen, created = {logits.untyped_storage().data_ptr()}, []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.numel() >= logits[:, 1:].numel():
                storage = result.untyped_storage().data_ptr()
                if storage not in seen:
                    seen.add(storage)
                    created.append(str(function))
            return result

    with Recorder():
        next_token_loss(logits, labels)
    assert created == ["aten._log_softmax.default"]


def test_a_loss_over_no_label_is_not_a_number() -> None:
    assert build()(tokens(), labels=torch.full((2, 11), -100)).loss.isnan()


def test_logits_to_keep() -> None:
    model = build().eval()
    logits = model(tokens()).logits
    torch.testing.assert_close(model(tokens(), logits_to_keep=2).logits, logits[:, -2:])
    torch.testing.assert_close(model(tokens(), logits_to_keep=torch.tensor([0, 4])).logits, logits[:, [0, 4]])
    with pytest.raises(ValueError, match="labels came together with logits_to_keep"):
        model(tokens(), labels=tokens(), logits_to_keep=1)


# -- what is not accepted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cache_position", "token_type_ids", "loss_mask"])
@pytest.mark.parametrize("base", [False, True])
def test_unknown_keyword_arguments_raise_and_are_named(name: str, base: bool) -> None:
    model = build()
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        (model.model if base else model)(tokens(), **{name: None})


def test_a_tuple_comes_when_asked_for() -> None:
    model = build().eval()
    loss, logits = model(tokens(), labels=tokens(), return_dict=False)
    assert torch.equal(logits, model(tokens()).logits)
    assert loss.ndim == 0


# -- truncated backpropagation ------------------------------------------------------------------------------


def by_hand_with_detach(model: LoopedLMForCausalLM, ids: torch.Tensor, inject: bool, grad_rounds: int) -> torch.Tensor:
    """Three rounds of two blocks between a prelude and a coda, the early rounds cut off with detach()."""
    inner = model.model
    rotary = rotary_tables(torch.arange(ids.shape[1])[None], model.config.head_dim, model.config.rope_theta)
    x = inner.blocks[0](inner.embedding_norm(inner.embed_tokens(ids)), rotary, None, 0)
    entered = x
    for round_ in range(3):
        if inject and round_ > 0:
            x = functional.rms_norm(x + entered, (32,), eps=1e-5)
        x = inner.blocks[2](inner.blocks[1](x, rotary, None, 0), rotary, None, 0)
        if round_ < 3 - grad_rounds:
            x = x.detach()
    x = inner.blocks[3](x, rotary, None, 0)
    return model.lm_head(x if inner.final_norm is None else inner.final_norm(x))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("inject", [False, True])
@pytest.mark.parametrize("grad_rounds", [1, 2, 3, 9])
def test_only_the_last_rounds_carry_gradient(placement: str, inject: bool, grad_rounds: int) -> None:
    plan = [{"blocks": 1}, {"blocks": 2, "rounds": 3, "inject": inject, "grad_rounds": grad_rounds}, {"blocks": 1}]
    model, reference = build(placement, plan), build(placement, plan)
    ids = tokens()
    output = model(ids, labels=ids)
    logits = by_hand_with_detach(reference, ids, inject, min(grad_rounds, 3))
    assert torch.equal(output.logits, logits)
    output.loss.backward()
    next_token_loss(logits, ids).backward()
    counts = DepthPlan.looped(2, 3, prelude=1, coda=1, inject=inject, grad_rounds=grad_rounds).visits
    for index, (mine, theirs) in enumerate(zip(model.model.blocks, reference.model.blocks, strict=True)):
        reached = any(visit.block == index and visit.carries_gradient for visit in counts)
        for parameter, expected in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert (parameter.grad is not None) == reached
            if reached:
                torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_rounds_without_gradient_leave_the_others_theirs_under_autocast(checkpointing: bool) -> None:
    """A weight cast to bfloat16 without gradient must not be the one that later rounds use."""
    model = build("post", [{"blocks": 2, "rounds": 3, "grad_rounds": 1}]).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens(), labels=tokens()).loss
    loss.backward()
    assert loss.dtype == torch.float32
    for name, parameter in model.named_parameters():
        if name == "model.embedding_norm.weight":
            assert parameter.grad is None, "the first two rounds cut it off"
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_nothing_is_kept_without_gradient() -> None:
    model = build(plan=[{"blocks": 2, "rounds": 3, "grad_rounds": 1}])
    with torch.no_grad():
        assert not model(tokens()).logits.requires_grad
    assert torch.is_grad_enabled()


# -- checkpointing and compilation ----------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_neither_loss_nor_gradients(placement: str, reentrant: bool) -> None:
    plain, saving = build(placement, MIXED).train(), build(placement, MIXED).train()
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    calls: list[int] = []
    handle = saving.model.blocks[1].attention.register_forward_hook(lambda module, inputs, output: calls.append(1))
    losses = []
    for model in (plain, saving):
        loss = model(tokens(), labels=tokens()).loss
        loss.backward()
        losses.append(loss)
    handle.remove()
    assert torch.equal(*losses)
    for (name, mine), theirs in zip(plain.named_parameters(), saving.parameters(), strict=True):
        if reentrant:
            # It sums the visits' gradients in another order: measured 7e-7 of the largest entry.
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5 * mine.grad.abs().max().item())
        else:
            assert torch.equal(mine.grad, theirs.grad), name
    # Three visits, each run a second time in the backward pass.
    assert len(calls) == 6
    saving.gradient_checkpointing_disable()
    assert not saving.is_gradient_checkpointing


def test_each_block_is_compiled_once_whatever_the_rounds() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    try:
        plain, compiled = build(), build()
        compiled.compile_blocks(backend=backend)  # type: ignore[arg-type]
        for step in range(50):
            rounds = 1 + step % 8
            if step < 8:
                mine = compiled(tokens(), labels=tokens(), rounds=rounds)
                theirs = plain(tokens(), labels=tokens(), rounds=rounds)
                torch.testing.assert_close(mine.logits, theirs.logits, rtol=1e-5, atol=1e-5)
            else:
                compiled(tokens(), rounds=rounds)
        # At most two more than one graph per distinct block.
        assert len(graphs) <= len(compiled.model.blocks) + 2
        assert not any("_orig_mod" in key for key in compiled.state_dict())
    finally:
        torch._dynamo.reset()


def test_the_model_without_a_head() -> None:
    model = build("pre").eval()
    base = LoopedLMModel(model.config).eval()
    base.load_state_dict(model.model.state_dict(), strict=True)
    output = base(tokens(), output_hidden_states=True)
    assert torch.equal(model.lm_head(output.last_hidden_state), model(tokens()).logits)
    assert torch.equal(base.final_norm(output.hidden_states[-1]), output.last_hidden_state)
    assert sum(isinstance(module, Block) for module in base.modules()) == 2

"""Model properties over random masks, documents, splits and plans."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.loss import next_token_loss
from depthscale.nn.masking import attention_pattern, default_position_ids
from depthscale.nn.placement import PostNormResidual
from depthscale.plan import DepthPlan, Segment

torch.set_num_threads(1)

rows = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3)
documents = st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=3, max_size=3)


@given(mask=rows, ids=documents, with_mask=st.booleans(), with_documents=st.booleans())
def test_the_pattern_is_what_its_words_say(
    mask: list[list[bool]], ids: list[list[int]], with_mask: bool, with_documents: bool
) -> None:
    ids = ids[: len(mask)]
    pattern = attention_pattern(
        torch.tensor(mask, dtype=torch.long) if with_mask else None, torch.tensor(ids) if with_documents else None
    )
    for row in range(len(mask)):
        for query in range(6):
            for key in range(6):
                seen = key <= query
                seen &= not with_mask or mask[row][key]
                seen &= not with_documents or ids[row][key] == ids[row][query]
                seen |= key == query
                found = key <= query if pattern is None else bool(pattern[row, 0, query, key])
                assert found == seen


@given(mask=rows)
def test_real_tokens_are_numbered_from_zero_whatever_the_padding(mask: list[list[bool]]) -> None:
    positions = default_position_ids(torch.tensor(mask, dtype=torch.long), 6, torch.device("cpu"))
    for row, kept in zip(positions, mask, strict=True):
        assert row[torch.tensor(kept)].tolist() == list(range(sum(kept)))
        assert row.min() >= 0


@given(data=st.data())
def test_losses_of_any_split_add_up_to_the_whole(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    logits = torch.randn(batch, 5, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 7, (batch, 5), generator=generator)
    labels[torch.rand(batch, 5, generator=generator) < data.draw(st.floats(0, 0.7))] = -100
    labels[0, 1] = 3
    count = int((labels[:, 1:] != -100).sum())
    cuts = sorted(data.draw(st.sets(st.integers(1, batch), max_size=batch)) | {0, batch})
    parts = [next_token_loss(logits[start:stop], labels[start:stop], count) for start, stop in itertools.pairwise(cuts)]
    torch.testing.assert_close(sum(parts), next_token_loss(logits, labels), rtol=1e-5, atol=1e-6)


@given(alpha=st.floats(0.1, 100), seed=st.integers(0, 99), size=st.floats(0, 10))
def test_a_post_norm_stream_has_rms_one_at_any_skip_scale(alpha: float, seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    z = size * torch.randn(4, 16, generator=generator, dtype=torch.float64)
    out = PostNormResidual(16, 1e-5, alpha).double()(x, lambda _: z)
    # RMS^2 = s / (s + eps) with s the mean square before the norm.
    before = (alpha * x + z).pow(2).mean(-1)
    torch.testing.assert_close(out.pow(2).mean(-1), before / (before + 1e-5))


segments = st.builds(
    Segment,
    blocks=st.integers(1, 2),
    rounds=st.integers(1, 3),
    inject=st.booleans(),
    grad_rounds=st.none() | st.integers(1, 3),
    fixed=st.booleans(),
)


@given(plan=st.builds(DepthPlan, st.lists(segments, min_size=1, max_size=3).map(tuple)), rounds=st.integers(1, 4))
@settings(max_examples=40)
def test_the_model_makes_the_visits_of_its_plan(plan: DepthPlan, rounds: int) -> None:
    """Blocks are called in the plan's order, with gradient exactly where the plan says a visit carries one."""
    torch.manual_seed(0)
    model = LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=11,
            hidden_size=8,
            num_attention_heads=2,
            norm_placement="post",
            plan=[dataclasses.asdict(segment) for segment in plan.segments],
        )
    )
    if not all(segment.fixed for segment in plan.segments):
        plan = plan.with_rounds(rounds)
        arguments = {"rounds": rounds}
    else:
        arguments = {}
    outputs: list[tuple[int, torch.Tensor]] = []
    for index, block in enumerate(model.model.blocks):
        block.register_forward_hook(lambda module, inputs, output, index=index: outputs.append((index, output)))
    ids = torch.randint(0, 11, (1, 4))
    loss = model(ids, labels=ids, **arguments).loss
    assert tuple(index for index, _ in outputs) == plan.schedule
    assert len(outputs) == plan.unrolled_depth
    tracked = [output for _, output in outputs if output.requires_grad]
    gradients = iter(torch.autograd.grad(loss, tracked, allow_unused=True) if tracked else [])
    reached = [output.requires_grad and next(gradients) is not None for _, output in outputs]
    assert reached == [visit.carries_gradient for visit in plan.visits]

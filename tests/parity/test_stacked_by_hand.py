"""A looped plan is the same weights stacked by hand: equal logits to the last bit, summed gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM

torch.set_num_threads(1)

PLACEMENTS = ("post", "sandwich", "pre")
PLANS = {
    "loop": [{"blocks": 2, "rounds": 3}],
    "prelude and coda": [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 3}, {"blocks": 1, "fixed": True}],
    "each repeated": [{"blocks": 1, "rounds": 2}, {"blocks": 1, "rounds": 2}],
    "injected": [{"blocks": 1}, {"blocks": 2, "rounds": 3, "inject": True}, {"blocks": 1}],
}


def scales(placement: str, index: int) -> dict[str, float]:
    if placement == "pre":
        return {"branch": 0.4 + 0.2 * index, "gain": 0.8}
    return {"skip": 1.7 + 0.3 * index, "gain": 0.8}


def looped(placement: str, plan: list[dict]) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    model = LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=97,
            hidden_size=32,
            num_attention_heads=4,
            num_key_value_heads=2,
            qk_norm=True,
            norm_placement=placement,
            plan=plan,
            residual_scales=[scales(placement, index) for index in range(len(plan))],
            initializer_range=0.2,
        )
    )
    with torch.no_grad():
        for name, gain in model.named_parameters():
            if "norm" in name:
                gain.uniform_(0.5, 1.5)
    return model.eval()


def schedule(plan: list[dict]) -> list[tuple[int, int, int]]:
    """(block, segment, round) of each visit, counted out here rather than taken from the product."""
    visits, first = [], 0
    for index, segment in enumerate(plan):
        for round_ in range(segment.get("rounds", 1)):
            visits += [(first + offset, index, round_) for offset in range(segment["blocks"])]
        first += segment["blocks"]
    return visits


def stacked(model: LoopedLMForCausalLM, plan: list[dict]) -> LoopedLMForCausalLM:
    """One block of its own per visit, holding a copy of the weights of the block that the loop visits."""
    visits = schedule(plan)
    config = LoopedLMConfig(
        **{
            **{key: value for key, value in model.config.to_dict().items() if key not in ("plan", "residual_scales")},
            "plan": [{"blocks": 1} for _ in visits],
            "residual_scales": [model.config.residual_scales[segment] for _, segment, _ in visits],
        }
    )
    unrolled = LoopedLMForCausalLM(config).eval()
    weights = {key: value for key, value in model.state_dict().items() if ".blocks." not in key}
    for visit, (block, _, _) in enumerate(visits):
        for key, value in model.model.blocks[block].state_dict().items():
            weights[f"model.blocks.{visit}.{key}"] = value.clone()
    unrolled.load_state_dict(weights, strict=True)
    return unrolled


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("plan_name", ["loop", "prelude and coda", "each repeated"])
def test_looped_equals_stacked_copies_exactly(placement: str, plan_name: str) -> None:
    plan = PLANS[plan_name]
    model = looped(placement, plan)
    unrolled = stacked(model, plan)
    ids = torch.randint(0, 97, (2, 17))
    mine = model(ids, labels=ids, output_hidden_states=True)
    theirs = unrolled(ids, labels=ids, output_hidden_states=True)
    assert torch.equal(mine.logits, theirs.logits)
    assert len(mine.hidden_states) == len(theirs.hidden_states) == 1 + len(schedule(plan))
    assert all(torch.equal(a, b) for a, b in zip(mine.hidden_states, theirs.hidden_states, strict=True))

    mine.loss.backward()
    theirs.loss.backward()
    copies = dict(unrolled.named_parameters())
    for block in range(len(model.model.blocks)):
        visits = [visit for visit, (visited, _, _) in enumerate(schedule(plan)) if visited == block]
        for key, parameter in model.model.blocks[block].named_parameters():
            summed = sum(copies[f"model.blocks.{visit}.{key}"].grad for visit in visits)
            torch.testing.assert_close(parameter.grad, summed, rtol=1e-4, atol=1e-6)


def reference_block(weights: dict[str, torch.Tensor], placement: str, number: dict, x: torch.Tensor) -> torch.Tensor:
    """One visit written out in elementary operations: no fused norm, no fused attention, no module of the product."""

    def norm(value: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return value / (value.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    def turn(heads: torch.Tensor) -> torch.Tensor:
        half = heads.shape[-1] // 2
        position = torch.arange(heads.shape[-2], dtype=heads.dtype)[:, None]
        angle = position * 10000.0 ** (-torch.arange(half, dtype=heads.dtype) / half)
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat(
            (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), dim=-1
        )

    def attention(value: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = value.shape

        def heads(name: str) -> torch.Tensor:
            return (value @ weights[f"attention.{name}.weight"].T).view(batch, tokens, -1, 8).transpose(1, 2)

        query = turn(norm(heads("q_proj"), weights["attention.q_norm.weight"]))
        key = turn(norm(heads("k_proj"), weights["attention.k_norm.weight"])).repeat_interleave(2, dim=1)
        values = heads("v_proj").repeat_interleave(2, dim=1)
        scores = query @ key.transpose(-1, -2) / 8**0.5
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ values
        return mixed.transpose(1, 2).reshape(batch, tokens, -1) @ weights["attention.o_proj.weight"].T

    def mlp(value: torch.Tensor) -> torch.Tensor:
        gate = value @ weights["mlp.gate_proj.weight"].T
        up = value @ weights["mlp.up_proj.weight"].T
        return (gate * torch.sigmoid(gate) * up) @ weights["mlp.down_proj.weight"].T

    for name, sublayer in (("attention_residual", attention), ("mlp_residual", mlp)):
        gain = weights[f"{name}.norm.weight"]
        if placement == "post":
            x = norm(number["skip"] * x + sublayer(x), gain)
        elif placement == "sandwich":
            x = norm(number["skip"] * x + sublayer(norm(x, weights[f"{name}.inner_norm.weight"])), gain)
        else:
            x = x + number["branch"] * sublayer(norm(x, gain))
    return x


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("plan_name", list(PLANS))
def test_every_state_equals_elementary_operations(placement: str, plan_name: str) -> None:
    plan = PLANS[plan_name]
    model = looped(placement, plan).double()
    ids = torch.randint(0, 97, (2, 17))
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
        x = functional.embedding(ids, model.model.embed_tokens.weight)
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * model.model.embedding_norm.weight
        states, segment_input, last_segment = [x], x, 0
        for visit, (block, segment, round_) in enumerate(schedule(plan)):
            begins_round = visit == 0 or schedule(plan)[visit - 1][1:] != (segment, round_)
            if segment != last_segment:
                segment_input, last_segment = x, segment
            if plan[segment].get("inject") and round_ > 0 and begins_round:
                x = x + segment_input
                x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
            weights = model.model.blocks[block].state_dict()
            x = reference_block(weights, placement, model.config.residual_scales[segment], x)
            states.append(x)
        assert len(output.hidden_states) == len(states)
        for state, expected in zip(output.hidden_states, states, strict=True):
            # The rotation is float32 also in a float64 model, which bounds the agreement.
            torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-5)
        if placement == "pre":
            x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * model.model.final_norm.weight
        torch.testing.assert_close(output.logits, x @ model.lm_head.weight.T, rtol=1e-5, atol=1e-5)

"""Initialization, measured: which matrices beta scales, and how large stream and branches are under each rule."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.placement import SandwichNormResidual
from depthscale.plan import DepthPlan
from depthscale.residual import GroupScales, apply_rule

torch.set_num_threads(1)

BETA = 0.0589  # DeepLoop at N = 36, facts of arXiv 2607.13491
GAIN = {"q_proj": 1.0, "k_proj": 1.0, "v_proj": BETA, "o_proj": BETA, "gate_proj": BETA, "up_proj": BETA}
GAIN["down_proj"] = BETA


def build(
    placement: str, rounds: int, scales: GroupScales, mlp: str = "swiglu", blocks: int = 2
) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    return LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=256,
            hidden_size=64,
            num_attention_heads=4,
            mlp=mlp,
            norm_placement=placement,
            plan=[{"blocks": 2, "rounds": rounds}],
            residual_scales=[dataclasses.asdict(scales)],
        )
    ).eval()


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(1))


def rms(x: torch.Tensor) -> float:
    return x.pow(2).mean().sqrt().item()


def states(model: LoopedLMForCausalLM) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return model(tokens(), output_hidden_states=True).hidden_states


# -- weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("initializer_range", [None, 0.02])
def test_measured_deviations(mlp: str, initializer_range: float | None) -> None:
    torch.manual_seed(0)
    model = LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=512,
            hidden_size=128,
            num_attention_heads=8,
            num_key_value_heads=2,
            mlp=mlp,
            norm_placement="post",
            plan=[{"blocks": 2, "rounds": 3}],
            residual_scales=[{"skip": 8.485, "gain": BETA}],
            initializer_range=initializer_range,
            qk_norm=True,
        )
    )
    seen = set()
    for name, weight in model.named_parameters():
        matrix = name.split(".")[-2]
        if matrix in GAIN:
            seen.add(matrix)
            # DeepNorm's reference code: xavier_normal_ with gain beta.
            base = math.sqrt(2 / sum(weight.shape)) if initializer_range is None else initializer_range
            # The deviation of n draws is known to 1 / sqrt(2 n): four of those, 5 % at the smallest matrix.
            tolerance = 4 / math.sqrt(2 * weight.numel())
            assert weight.std().item() == pytest.approx(GAIN[matrix] * base, rel=tolerance), name
            assert abs(weight.mean().item()) < 4 * GAIN[matrix] * base / math.sqrt(weight.numel()), name
        elif "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight)), name
        else:
            assert name == "model.embed_tokens.weight"
            assert weight.std().item() == pytest.approx(0.02, rel=4 / math.sqrt(2 * weight.numel()))
    assert seen == set(GAIN) - ({"gate_proj"} if mlp == "gelu" else set())


def test_each_segment_has_its_own_gain_and_an_untied_head_is_an_embedding() -> None:
    torch.manual_seed(0)
    model = LoopedLMForCausalLM(
        LoopedLMConfig(
            hidden_size=128,
            norm_placement="post",
            plan=[{"blocks": 1, "fixed": True}, {"blocks": 1, "rounds": 3}],
            residual_scales=[{"gain": 0.5}, {"gain": 0.1}],
            tie_word_embeddings=False,
            embedding_initializer_range=0.03,
        )
    )
    xavier = math.sqrt(2 / 256)
    for block, gain in zip(model.model.blocks, (0.5, 0.1), strict=True):
        assert block.attention.q_proj.weight.std().item() == pytest.approx(xavier, rel=0.05)
        assert block.attention.o_proj.weight.std().item() == pytest.approx(gain * xavier, rel=0.05)
    assert model.lm_head.weight.std().item() == pytest.approx(0.03, rel=0.05)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


# -- pre-norm: the stream grows ---------------------------------------------------------------------------

# Epsilon as a function of R.
PRE_RULES = {
    "unscaled": lambda rounds: 1.0,
    "inverse rounds": lambda rounds: 1 / rounds,
    "inverse root": lambda rounds: rounds**-0.5,
}


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("rule", list(PRE_RULES))
def test_pre_norm_stream_grows_as_visits_adding_up_coherently(rule: str, mlp: str) -> None:
    """RMS of the stream after R rounds = sqrt(1 + (epsilon R u)^2), u the RMS of one round's whole branch.

    A block's branch reads the normalized stream, so its size does not depend on the stream's; visits of the same
    blocks are aligned at initialization, so R of them add up to R u at right angles to the embedding. (Visits
    in random directions would give sqrt(1 + R (epsilon u)^2): 6.4 instead of 51 for the unscaled rule at R = 64.)
    The band is wide upward since a large sum turns toward the directions that the blocks amplify. At R = 64 the
    facts of arXiv 2606.18524 say about 1 under 1/R, 8 under 1/sqrt(R) and 60 unscaled.
    """
    epsilon = PRE_RULES[rule]
    one_round = states(build("pre", 1, GroupScales(), mlp))
    update = rms(one_round[-1] - one_round[0])
    assert rms(one_round[0]) == pytest.approx(1, abs=0.02)
    measured = {}
    for rounds in (1, 4, 16, 64):
        measured[rounds] = rms(states(build("pre", rounds, GroupScales(branch=epsilon(rounds)), mlp))[-1])
        predicted = math.sqrt(1 + (epsilon(rounds) * rounds * update) ** 2)
        assert 0.9 * predicted < measured[rounds] < 1.8 * predicted, rounds
    growth = measured[64] / measured[16]
    if rule == "unscaled":
        assert growth == pytest.approx(4, rel=0.25)
        assert 50 < measured[64] < 100
    elif rule == "inverse root":
        assert growth == pytest.approx(2, rel=0.25)
        assert 6 < measured[64] < 12
    else:
        assert growth == pytest.approx(1, rel=0.02)
        assert 1 < measured[64] < 1.5


@pytest.mark.parametrize("rule", ["inverse_rounds", "smelt"])
def test_the_rules_for_pre_norm_loops_keep_the_stream_flat(rule: str) -> None:
    """inverse_rounds and smelt are epsilon = c / R, so the predicted RMS is the same at every R."""
    one_round = states(build("pre", 1, GroupScales()))
    update = rms(one_round[-1] - one_round[0])
    for rounds in (1, 4, 16, 64):
        scales = apply_rule(rule, DepthPlan.looped(2, rounds).counts()).groups[0]
        predicted = math.sqrt(1 + (scales.branch * rounds * update) ** 2)
        assert rms(states(build("pre", rounds, scales))[-1]) == pytest.approx(predicted, rel=0.12)


# -- post and sandwich: the stream is normalized, so the branch is what to measure ---------------------------

POST_RULES = ("unscaled", "deepnorm", "deeploop", "loop_matched")


def rule_scales(rule: str, rounds: int) -> GroupScales:
    return apply_rule(rule, DepthPlan.looped(2, rounds).counts()).groups[0]


def branch_to_skip(model: LoopedLMForCausalLM, sublayer: str, skip: float) -> float:
    """RMS of the first visit's branch over that of its scaled skip."""
    block, found = model.model.blocks[0], []
    residual = block.get_submodule(f"{sublayer}_residual")
    handles = [
        block.get_submodule(sublayer).register_forward_hook(lambda module, inputs, output: found.append(rms(output))),
        residual.register_forward_hook(lambda module, inputs, output: found.append(skip * rms(inputs[0]))),
    ]
    states(model)
    for handle in handles:
        handle.remove()
    return found[0] / found[1]


@pytest.mark.parametrize("placement", ["post", "sandwich"])
@pytest.mark.parametrize("rounds", [1, 4, 16])
@pytest.mark.parametrize("rule", POST_RULES[1:])
def test_branch_over_skip_shrinks_as_beta_squared_over_alpha(placement: str, rounds: int, rule: str) -> None:
    """Attention is linear in its two beta-scaled matrices, so the ratio between rules is exactly that of beta^2/alpha.

    An MLP is not: with GELU (two matrices) it goes from 0.48 to 0.40 beta^2, since gelu(x) is x / 2 for small x; with
    SwiGLU (three) it shrinks as beta^3 once silu(x) is x / 2.
    """
    scales = rule_scales(rule, rounds)
    gain, skip = scales.gain, scales.skip
    for mlp, power, band in (("gelu", 2, (0.75, 1.02)), ("swiglu", 3, (0.85, 1.02))):
        plain, scaled = build(placement, rounds, GroupScales(), mlp), build(placement, rounds, scales, mlp)
        attention = branch_to_skip(scaled, "attention", skip) / branch_to_skip(plain, "attention", 1.0)
        assert attention == pytest.approx(gain**2 / skip, rel=1e-3)
        inner = branch_to_skip(scaled, "mlp", skip) / branch_to_skip(plain, "mlp", 1.0)
        assert band[0] < inner / (gain**power / skip) < band[1]


def mean_angle(x: torch.Tensor, y: torch.Tensor) -> float:
    """Mean angle between rows, by chords: arccos loses angles of 1e-4 to rounding."""
    x, y = (torch.nn.functional.normalize(value.double(), dim=-1) for value in (x, y))
    return (2 * torch.asin((x - y).norm(dim=-1) / 2)).mean().item()


@pytest.mark.parametrize("placement", ["post", "sandwich"])
def test_the_stack_starts_nearer_the_identity_the_stronger_the_rule(placement: str) -> None:
    """The stream keeps RMS 1, so what moves is its direction: R aligned rounds turn it R times as far as one."""
    cosines = {}
    for rule in POST_RULES:
        for rounds in (1, 4, 16):
            found = states(build(placement, rounds, rule_scales(rule, rounds)))
            for state in found:
                assert rms(state) == pytest.approx(1, abs=0.02)
            angle = mean_angle(found[0], found[-1])
            cosines[rule, rounds] = math.cos(angle)
            if rule != "unscaled":
                assert angle == pytest.approx(rounds * mean_angle(found[0], found[2]), rel=0.05)
    for rounds in (4, 16):
        ordered = [cosines[rule, rounds] for rule in POST_RULES[:2]] + [cosines["deeploop", rounds]]
        assert ordered == sorted(ordered)
    # x_N has left x_0 altogether in the unscaled arm, and has hardly moved under DeepLoop.
    assert cosines["unscaled", 16] < 0.1
    assert cosines["deeploop", 16] > 0.9999
    assert 0.95 < cosines["deepnorm", 16] < 0.99


def test_the_inner_norm_of_a_sandwich_starts_as_the_identity() -> None:
    """On a stream of RMS 1, so post and sandwich with the same weights differ only by eps at initialization."""
    post = build("post", 4, rule_scales("deeploop", 4))
    sandwich = build("sandwich", 4, rule_scales("deeploop", 4))
    assert sum(isinstance(module, SandwichNormResidual) for module in sandwich.modules()) == 4
    for mine, theirs in zip(states(post)[1:], states(sandwich)[1:], strict=True):
        assert mean_angle(mine, theirs) < 1e-3

"""Visit counts of modules that are no plan, and rules brought to them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.retrofit import ScaledResidual, apply_init_gain
from depthscale.alignment.tracing import trace_blocks, trace_visits
from depthscale.errors import PlanError
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.placement import PostNormResidual, PreNormResidual, SandwichNormResidual
from depthscale.plan import DepthPlan, Segment, VisitGroup

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH = 6


class Module(nn.Module):
    """A stack of layers, as one module of a hierarchical reasoner."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Reasoner(nn.Module):
    """A fast module visited several times inside a slow one, with one-step gradient truncation.

    Everything before the last cycle runs without gradient; in the last, the slow module is visited once and the fast
    module ``fast_visits`` times with gradient.
    """

    def __init__(self, slow_layers: int, fast_layers: int, cycles: int, fast_visits: int) -> None:
        super().__init__()
        self.slow, self.fast = Module(slow_layers), Module(fast_layers)
        self.cycles, self.fast_visits = cycles, fast_visits

    def cycle(self, slow: Tensor, fast: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(self.fast_visits):
            fast = self.fast(fast + slow + x)
        return self.slow(slow + fast), fast

    def forward(self, x: Tensor) -> Tensor:
        slow, fast = torch.zeros_like(x), torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(self.cycles - 1):
                slow, fast = self.cycle(slow, fast, x)
        return self.cycle(slow, fast, x)[0]


def test_a_hierarchical_reasoner() -> None:
    """Source: arXiv 2607.13491: M_g = 2 (K_H + C_L K_L) under one-step truncation."""
    counts = trace_visits(Reasoner(slow_layers=4, fast_layers=3, cycles=2, fast_visits=5), torch.randn(2, WIDTH))
    assert counts.groups == (
        VisitGroup("slow.layers", 4, 2, 1),
        VisitGroup("fast.layers", 3, 10, 5),
    )
    assert counts.num_gradient_sublayer_visits == 2 * (4 + 5 * 3)


def test_a_state_that_is_detached_cuts_the_visits_before_it() -> None:
    """Their outputs require gradient, but none comes back to them."""

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

        def forward(self, x: Tensor) -> Tensor:
            for round_ in range(4):
                x = self.layers[0](x.detach() if round_ == 2 else x)
            return x

    (block,) = trace_blocks(Detached(), torch.randn(2, WIDTH))
    assert (block.num_visits, block.gradient_calls) == (4, (2, 3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_visits_count_once(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = checkpoint(self.layers[0], x, use_reentrant=reentrant)  # type: ignore[assignment]
            return x

    counts = trace_visits(Checkpointed(), torch.randn(2, WIDTH, requires_grad=True))
    assert counts.groups == (VisitGroup("layers", 1, 3, 3),)


@pytest.mark.parametrize(
    "plan",
    [
        DepthPlan.looped(2, 3),
        DepthPlan.looped(2, 4, prelude=1, coda=1, inject=True, grad_rounds=2),
        DepthPlan.looped(2, 4, prelude=1, grad_rounds=1),
        DepthPlan((Segment(1, 2), Segment(2, 3, grad_rounds=1))),
        DepthPlan.stacked(3),
    ],
)
def test_a_looped_model_is_traced_as_its_plan_counts(plan: DepthPlan) -> None:
    config = LoopedLMConfig(
        vocab_size=17, hidden_size=8, num_attention_heads=2, plan=plan.to_dict()["segments"], norm_placement="post"
    )
    ids = torch.randint(17, (1, 4), generator=torch.Generator().manual_seed(0))
    traced = trace_blocks(LoopedLMForCausalLM(config), ids)
    expected: dict[int, list[bool]] = {}
    for visit in plan.visits:
        expected.setdefault(visit.block, []).append(visit.carries_gradient)
    for index, block in enumerate(traced):
        assert block.num_visits == len(expected[index])
        assert block.gradient_calls == tuple(call for call, carries in enumerate(expected[index]) if carries)


def test_tracing_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ModuleList([nn.Linear(WIDTH, WIDTH)])[0])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        trace_visits(module, torch.randn(4, WIDTH), blocks=["1"])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in module.parameters())


def test_bad_input_is_named() -> None:
    x = torch.randn(2, WIDTH)
    with pytest.raises(AlignmentError, match=r"blocks=\[...\]"):
        trace_visits(nn.Linear(WIDTH, WIDTH), x)
    with pytest.raises(AlignmentError, match=r"unknown module 'layer.0'"):
        trace_visits(Module(2), x, blocks=["layer.0"])
    module = Module(2)
    module.layers[1].requires_grad_(False)
    with pytest.raises(AlignmentError, match="no trainable parameter"):
        trace_visits(module, x)

    class Unused(Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layers[0](x)
            return result

    with pytest.raises(AlignmentError, match=r"'layers.1' was never visited"):
        trace_visits(Unused(2), x)

    class Cut(Module):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach() + torch.ones(1, requires_grad=True)

    with pytest.raises(PlanError, match="no visit carries gradient"):
        trace_visits(Cut(2), x)
    with pytest.raises(AlignmentError, match="no output"):
        trace_visits(Module(2).requires_grad_(False), x)


def test_init_gain_scales_whole_matrices_and_slices_of_fused_ones() -> None:
    torch.manual_seed(0)
    module = nn.ModuleDict({"fused": nn.Linear(4, 12, bias=False), "out": nn.Linear(4, 4)})
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    apply_init_gain(module, ["out.weight", ("fused.weight", slice(8, 12))], 0.25)
    assert torch.equal(module["out"].weight, before["out.weight"] * 0.25)
    assert torch.equal(module["out"].bias, before["out.bias"])
    assert torch.equal(module["fused"].weight[:8], before["fused.weight"][:8])
    assert torch.equal(module["fused"].weight[8:], before["fused.weight"][8:] * 0.25)
    apply_init_gain(module, [("fused.weight", slice(0, 4)), ("fused.weight", slice(4, 8))], 2.0)  # apart: no overlap
    assert torch.equal(module["fused"].weight[:8], before["fused.weight"][:8] * 2)


def test_init_gain_refuses_what_would_scale_twice_and_touches_nothing() -> None:
    module = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    module["b"].weight = module["a"].weight
    before = module["a"].weight.detach().clone()
    bad: list[tuple[list[Any], float, str]] = [
        (["a.weight", "b.weight"], 0.5, "tied"),
        (["a.weight", ("a.weight", slice(2, 4))], 0.5, "came twice"),
        ([("a.weight", slice(4, 8))], 0.5, "is empty"),
        (["a.weights"], 0.5, "did you mean 'a.weight'"),
        (["a.weight"], 0.0, "positive"),
    ]
    for names, gain, message in bad:
        with pytest.raises(AlignmentError, match=message):
            apply_init_gain(module, names, gain)
        assert torch.equal(module["a"].weight, before)


def test_scaled_residuals_are_the_three_placements() -> None:
    torch.manual_seed(0)
    x, f = torch.randn(2, 3, WIDTH), nn.Linear(WIDTH, WIDTH)
    post = PostNormResidual(WIDTH, 1e-5, 1.7)
    torch.testing.assert_close(ScaledResidual(f, skip=1.7, after=post.norm)(x), post(x, f))
    sandwich = SandwichNormResidual(WIDTH, 1e-5, 1.7)
    ours = ScaledResidual(f, skip=1.7, before=sandwich.inner_norm, after=sandwich.norm)
    torch.testing.assert_close(ours(x), sandwich(x, f))
    pre = PreNormResidual(WIDTH, 1e-5, 0.3)
    torch.testing.assert_close(ScaledResidual(f, branch=0.3, before=pre.norm)(x), pre(x, f))
    with pytest.raises(AlignmentError, match="skip came as 0"):
        ScaledResidual(f, skip=0)


def test_the_example_of_a_plain_loop() -> None:
    example = runpy.run_path(str(EXAMPLES / "plain_loop.py"))
    assert example["measure"](4, scaled=True).kappa == pytest.approx(4, rel=0.02)
    assert example["measure"](4, scaled=False).kappa < 3


def test_the_example_of_looped_gpt2_blocks() -> None:
    example = runpy.run_path(str(EXAMPLES / "looped_gpt2.py"))
    model, counts, scales = example["build"](3, "deeploop")
    assert counts.groups == (VisitGroup("blocks", 2, 3, 3),)
    # Source: arXiv 2607.13491, (2N)^(1/2) at N = 6.
    assert scales.groups[0].skip == pytest.approx(12**0.5)
    plain, *_ = example["build"](3, "unscaled")
    width, gain = example["WIDTH"], scales.groups[0].gain
    fused, unscaled = (m.blocks[0][0].sublayer.attention.c_attn.weight for m in (model, plain))
    assert torch.equal(fused[:, : 2 * width], unscaled[:, : 2 * width])
    torch.testing.assert_close(fused[:, 2 * width :], unscaled[:, 2 * width :] * gain)
    # Causal: the last token does not change what comes before it.
    ids = example["token_ids"]()
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % example["VOCABULARY"]
    torch.testing.assert_close(model(ids)[:, :-1], model(changed)[:, :-1])
    assert example["measure"](model, scales).kappa == pytest.approx(3, rel=0.02)

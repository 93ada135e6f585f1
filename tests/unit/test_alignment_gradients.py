"""Gradients kept apart by visit: they add up to autograd's, and the module is left as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import VisitGradients, per_visit_gradients
from depthscale.alignment.recording import VisitRecorder
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM


class Cell(nn.Module):
    """Parameters at two levels, one of them used by no child."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.scale = nn.Parameter(torch.full((width,), 0.7))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.inner(x)


class Loop(nn.Module):
    """Two cells in a loop, optionally under a checkpoint that holds one cell, one round, or everything."""

    def __init__(self, rounds: int = 3, checkpoint_over: str = "", reentrant: bool = False) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Cell(), Cell()])
        self.rounds, self.checkpoint_over, self.reentrant = rounds, checkpoint_over, reentrant

    def _run(self, over: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if over in self.checkpoint_over.split("+"):
            result: Tensor = checkpoint(function, x, use_reentrant=self.reentrant)
            return result
        return function(x)

    def _round(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = self._run("cell", cell, x)
        return x

    def _everything(self, x: Tensor) -> Tensor:
        for _ in range(self.rounds):
            x = self._run("round", self._round, x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self._run("all", self._everything, x)


def make_loop(rounds: int = 3, checkpoint_over: str = "", reentrant: bool = False) -> Loop:
    torch.manual_seed(0)
    return Loop(rounds, checkpoint_over, reentrant)


def inputs(requires_grad: bool = False) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_(requires_grad)


def assert_sums_match(module: nn.Module, objective: Callable[[], Tensor], found: VisitGradients) -> float:
    """Largest error of a sum relative to the gradient's own size; at most 1e-6."""
    module.zero_grad(set_to_none=True)
    objective().backward()
    worst = 0.0
    for name, parameter in module.named_parameters():
        total = found.total(name)
        if parameter.grad is None:
            assert total is None
            continue
        assert total is not None
        worst = max(worst, ((total - parameter.grad).norm() / parameter.grad.norm()).item())
    module.zero_grad(set_to_none=True)
    assert worst < 1e-6
    return worst


def tiny_model(rounds: int = 3, **fields: object) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    plan = [{"blocks": 2, "rounds": rounds, **fields.pop("segment", {})}]  # type: ignore[dict-item]
    return LoopedLMForCausalLM(
        LoopedLMConfig(vocab_size=97, hidden_size=32, num_attention_heads=2, plan=plan, **fields)  # type: ignore[arg-type]
    )


def tokens(batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(97, (batch, length), generator=torch.Generator().manual_seed(2))


def model_loss(model: LoopedLMForCausalLM) -> Callable[[], Tensor]:
    ids = tokens()

    def loss() -> Tensor:
        value: Tensor = model(ids, labels=ids).loss
        return value

    return loss


def test_each_visit_gets_its_own_gradient_and_the_sum_is_autograds() -> None:
    module, x = make_loop(), inputs()
    found = per_visit_gradients(module, lambda: module(x).square().sum())
    for name, parameter in module.named_parameters():
        assert len(found.of(name)) == 3
        assert not torch.equal(found.of(name)[0], found.of(name)[1])
        assert found.of(name)[0].shape == parameter.shape
    assert not found.outside
    assert_sums_match(module, lambda: module(x).square().sum(), found)


def test_a_visits_gradient_is_what_an_unshared_copy_would_get() -> None:
    """The stacked twin: every visit a module of its own with the same weights."""
    module, x = make_loop(rounds=3), inputs()
    found = per_visit_gradients(module, lambda: module(x).square().sum())
    twin = Loop(rounds=1)
    twin.cells = nn.ModuleList([Cell() for _ in range(6)])
    for index, cell in enumerate(twin.cells):
        cell.load_state_dict(module.cells[index % 2].state_dict())
    twin(x).square().sum().backward()
    for index, cell in enumerate(twin.cells):
        for name, parameter in cell.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(found.of(f"cells.{index % 2}.{name}")[index // 2], parameter.grad)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("over", ["cell", "round", "all", "cell+round", "all+round+cell"])
def test_checkpointed_calls_are_the_visits_they_recompute(over: str, reentrant: bool) -> None:
    plain = make_loop()
    module = make_loop(checkpoint_over=over, reentrant=reentrant)
    x = inputs(requires_grad=True)  # reentrant checkpoints carry gradient only where an input does
    expected = per_visit_gradients(plain, lambda: plain(x).square().sum())
    found = per_visit_gradients(module, lambda: module(x).square().sum())
    assert found.visits == expected.visits
    assert not found.outside
    for name in expected.visits:
        for one, other in zip(found.of(name), expected.of(name), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_inside_the_owners_own_call(reentrant: bool) -> None:
    """The recomputed part uses the owner's parameter, but the owner is not called again."""

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(6) * 0.9)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(lambda y: torch.tanh(y @ self.weight), x, use_reentrant=reentrant)
            return result

    owner, x = Owner(), inputs(requires_grad=True)
    found = per_visit_gradients(owner, lambda: owner(owner(x)).sum())
    assert len(found.of("weight")) == 2
    assert not found.outside
    assert_sums_match(owner, lambda: owner(owner(x)).sum(), found)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_looped_language_model(reentrant: bool | None) -> None:
    """Tied embedding and head, norms, attention and MLP, with and without checkpointing."""
    model = tiny_model()
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.train()
    loss = model_loss(model)
    found = per_visit_gradients(model, loss)
    assert len(found.of("model.blocks.0.attention.q_proj.weight")) == 3
    # The tied matrix is visited once as the embedding and once as the head.
    assert [visit.module for visit in found.visits["model.embed_tokens.weight"]] == ["model.embed_tokens", "lm_head"]
    assert len(found.of("model.embed_tokens.weight")) == 2
    assert_sums_match(model, loss, found)


def test_truncated_rounds_are_visits_without_gradient() -> None:
    model = tiny_model(rounds=4, segment={"grad_rounds": 1})
    found = per_visit_gradients(model, model_loss(model))
    name = "model.blocks.1.mlp.down_proj.weight"
    assert len(found.visits[name]) == 4
    assert [visit.call for visit in found.gradients[name]] == [3]
    assert_sums_match(model, model_loss(model), found)


def test_one_parameter_in_two_modules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.down.weight = self.up.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.tanh(self.up(self.up(x))))  # type: ignore[no-any-return]

    module, x = Tied(), inputs()
    found = per_visit_gradients(module, lambda: module(x).sum())
    assert [tuple(visit) for visit in found.visits["up.weight"]] == [("up", 0), ("up", 1), ("down", 0)]
    assert len(found.of("up.weight")) == 3
    assert_sums_match(module, lambda: module(x).sum(), found)


def test_modules_of_torch_that_use_the_parameters_of_their_parts() -> None:
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(6, 2), inputs()[None]

    def twice() -> Tensor:
        once = attention(x, x, x)[0]
        value: Tensor = attention(once, x, x)[0].square().sum()
        return value

    found = per_visit_gradients(attention, twice)
    assert not found.outside
    assert {len(found.of(name)) for name in found.visits} == {2}
    assert_sums_match(attention, twice, found)


def test_recurrent_modules_and_parametrized_weights() -> None:
    torch.manual_seed(0)
    for module in (nn.GRU(6, 6), nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))):

        def twice(module: nn.Module = module) -> Tensor:
            x = inputs()[None]
            for _ in range(2):
                x = module(x)
                x = x[0] if isinstance(x, tuple) else x
            return x.square().sum()

        found = per_visit_gradients(module, twice)
        assert {len(found.of(name)) for name in found.visits} == {2}
        assert not found.outside
        assert_sums_match(module, twice, found)


def test_gradient_outside_every_call_is_kept_apart_and_still_counts() -> None:
    module, x = nn.Linear(6, 6, bias=False), inputs()

    def objective() -> Tensor:
        return functional.linear(module(x), module.weight).sum()

    found = per_visit_gradients(module, objective)
    assert len(found.of("weight")) == 1
    assert_sums_match(module, objective, found)
    with pytest.raises(AlignmentError, match=r"whole=\["):
        found.vectors(["weight"])


def test_whole_blocks_are_one_visit_with_everything_in_them() -> None:
    module, x = make_loop(), inputs()
    found = per_visit_gradients(module, lambda: module(x).sum(), whole=["cells.0", "cells.1"])
    assert {visit.module for visit in found.visits["cells.0.inner.0.weight"]} == {"cells.0"}
    apart = per_visit_gradients(module, lambda: module(x).sum())
    for name in found.visits:
        for one, other in zip(found.of(name), apart.of(name), strict=True):
            torch.testing.assert_close(one, other)


def snapshot(module: nn.Module) -> list[object]:
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in module.modules()]
    tensors = [(name, id(p), p._version, p.requires_grad) for name, p in module.named_parameters()]
    buffers = [(name, id(b), b.clone().tolist()) for name, b in module.named_buffers()]
    grads = [None if p.grad is None else (id(p.grad), p.grad.clone().tolist()) for p in module.parameters()]
    return [hooks, tensors, buffers, grads, list(module.state_dict())]


class Failing(Loop):
    def _round(self, x: Tensor) -> Tensor:
        x = self.cells[0](x)
        raise ZeroDivisionError("in the middle of a call")


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_left_as_it_was(fails: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(6), (Failing if fails else Loop)())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = snapshot(module)
    if fails:
        with pytest.raises(ZeroDivisionError):
            per_visit_gradients(module, lambda: module(inputs()).sum())
    else:
        per_visit_gradients(module, lambda: module(inputs()).sum())
    assert snapshot(module) == before


def test_an_exception_in_one_call_does_not_shift_the_next() -> None:
    """A call that fails and is caught is a visit without gradient; what runs after it uses the module's own state."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor, fail: bool) -> Tensor:
            if fail:
                raise ZeroDivisionError
            return self.weight * x

    module = Sometimes()

    def objective() -> Tensor:
        with pytest.raises(ZeroDivisionError):
            module(torch.tensor(1.0), True)
        assert isinstance(module.weight, nn.Parameter)
        value: Tensor = module(torch.tensor(3.0), False)
        return value

    found = per_visit_gradients(module, objective)
    assert [gradient.item() for gradient in found.of("weight")] == [3.0]
    assert len(found.visits["weight"]) == 2


def test_cosines_between_visits() -> None:
    module = nn.Linear(2, 1, bias=False)
    directions = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0]), torch.tensor([1.0, 1.0])]
    found = per_visit_gradients(module, lambda: sum((module(d).sum() for d in directions), torch.zeros(())))
    half = 0.5**0.5
    expected = torch.tensor([[1.0, 0.0, half], [0.0, 1.0, half], [half, half, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(found.cosine_matrix(["weight"]), expected)


def test_bad_input_is_named() -> None:
    module, x = make_loop(), inputs()
    with pytest.raises(AlignmentError, match="expected one number"):
        per_visit_gradients(module, lambda: module(x))
    with pytest.raises(AlignmentError, match=r"did you mean 'cells.0.scale'"):
        per_visit_gradients(module, lambda: module(x).sum(), only=["cells.0.scales"])
    with pytest.raises(AlignmentError, match="unknown module"):
        per_visit_gradients(module, lambda: module(x).sum(), whole=["cell"])
    with pytest.raises(AlignmentError, match="carries no gradient"), torch.no_grad():
        per_visit_gradients(module, lambda: module(x).sum())
    with pytest.raises(AlignmentError, match="finite loss"):
        per_visit_gradients(module, lambda: module(x).sum() * torch.inf)
    with pytest.raises(AlignmentError, match=r"bfloat16.*dtype=torch.float32"):
        per_visit_gradients(make_loop().to(torch.bfloat16), lambda: module(x).sum())
    with pytest.raises(AlignmentError, match="scripted"):
        VisitRecorder(torch.jit.script(nn.Linear(2, 2)))


def test_a_module_that_swaps_its_parameters_is_refused() -> None:
    module, x = nn.Sequential(nn.Linear(6, 6)), inputs()
    doubled = {name: 2 * parameter for name, parameter in module.named_parameters()}
    with pytest.raises(AlignmentError, match="swap their parameters"):
        per_visit_gradients(module, lambda: torch.func.functional_call(module, doubled, (x,)).sum())


def test_backward_past_the_recorder_is_refused() -> None:
    module = nn.Linear(6, 6)
    with VisitRecorder(module):
        loss = module(inputs()).sum()
    with pytest.raises(AlignmentError, match="call the recorder's backward"):
        loss.backward()


def test_a_module_that_is_never_visited_and_a_frozen_parameter() -> None:
    module = make_loop()
    module.register_module("unused", nn.Linear(6, 6))
    module.cells[0].scale.requires_grad_(False)
    found = per_visit_gradients(module, lambda: module(inputs()).sum())
    assert found.visits["unused.weight"] == ()
    assert found.total("unused.weight") is None
    assert len(found.visits["cells.0.scale"]) == 3
    assert found.of("cells.0.scale") == []
    with pytest.raises(AlignmentError, match=r"'unused.weight' 0"):
        found.vectors(["unused.weight", "cells.0.inner.0.weight"])


def test_compiled_blocks_run_eagerly_while_they_are_recorded() -> None:
    """Compiled code would go on reading the parameters that it was traced with."""
    plain, model = tiny_model(), tiny_model()
    model.compile_blocks(backend="eager")
    expected = per_visit_gradients(plain, model_loss(plain))
    model_loss(model)().backward()  # compiles
    found = per_visit_gradients(model, model_loss(model))
    assert not found.outside
    for name in expected.visits:
        for one, other in zip(found.of(name), expected.of(name), strict=True):
            torch.testing.assert_close(one, other)

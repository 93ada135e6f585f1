"""The hand-written reverse pass against autograd, and replicates that do not depend on each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from depthscale.toy.config import LossConfig, LossKind, TeacherConfig, TrainConfig
from depthscale.toy.losses import Objective, Targets, make_targets
from depthscale.toy.residual_pass import ResidualPass, StackWeights, rms_norm
from depthscale.toy.shapes import StudentShape
from depthscale.toy.students import StudentGroup
from depthscale.toy.teachers import make_teachers

WIDTH, HIDDEN, BATCH = 8, 16, 12
SHAPES = (
    StudentShape(blocks=3),
    StudentShape(blocks=3, order=2),
    StudentShape(blocks=2, rounds=3, rule="smelt"),
    StudentShape(blocks=2, rounds=2, order=2, rule="inverse_rounds"),
)


def random_weights(shape: StudentShape, replicates: int, dtype: torch.dtype = torch.float64) -> StackWeights:
    torch.manual_seed(0)
    m = shape.num_mlps
    sizes = ((m, replicates, WIDTH + 1, HIDDEN), (m, replicates, HIDDEN, WIDTH))
    return StackWeights(*(torch.randn(*size, dtype=dtype) * 0.3 for size in sizes))


def by_definition(shape: StudentShape, weights: StackWeights, inputs: Tensor) -> Tensor:
    """The formula of the module's docstring, in plain operations."""

    def mlp(k: int, x: Tensor) -> Tensor:
        return torch.relu(rms_norm(x) @ weights.up[k] + weights.bias[k]).square() @ weights.down[k]

    x, epsilon = inputs.expand(weights.up.shape[1], -1, -1), shape.scales.branch
    for block in shape.schedule:
        if shape.order == 1:
            x = x + epsilon * mlp(block, x)
        else:
            x = x + epsilon * mlp(2 * block + 1, x + epsilon * mlp(2 * block, x) / 2)
    return x


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_reverse_pass_are_those_of_autograd(shape: StudentShape) -> None:
    weights, inputs = random_weights(shape, 2), rms_norm(torch.randn(1, BATCH, WIDTH, dtype=torch.float64))
    upstream = torch.randn(2, BATCH, WIDTH, dtype=torch.float64)
    memory = ResidualPass(shape, 2, BATCH, WIDTH, HIDDEN, for_training=True, dtype=torch.float64)
    state = memory.forward(weights, inputs).clone()
    gradient = weights.zeros_like()
    for tensor in gradient.tensors:
        tensor.fill_(torch.nan)  # what a step before it left behind is written over
    memory.backward(weights, upstream.clone(), gradient)

    leaves = StackWeights(*(tensor.clone().requires_grad_() for tensor in weights.tensors))
    expected = by_definition(shape, leaves, inputs)
    expected.backward(upstream)
    torch.testing.assert_close(state, expected.detach(), rtol=1e-12, atol=1e-12)
    for mine, leaf in zip(gradient.tensors, leaves.tensors, strict=True):
        torch.testing.assert_close(mine, leaf.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["mse", "kl_own_head", "kl_teacher_head"])
def test_losses_and_their_derivatives_are_those_of_autograd(kind: LossKind) -> None:
    torch.manual_seed(1)
    loss = LossConfig(kind=kind) if kind == "mse" else LossConfig(kind=kind, temperatures=(0.1, 1.0))
    temperatures = torch.tensor(loss.temperatures)
    count, classes = len(temperatures), 5
    teacher_states = rms_norm(torch.randn(1, BATCH, WIDTH))
    heads = torch.randn(1, WIDTH, classes)
    targets = make_targets(loss, 1, heads, teacher_states)
    objective = Objective(kind, temperatures, heads.expand(count, -1, -1))
    state = torch.randn(count, BATCH, WIDTH)
    head = torch.randn(count, WIDTH, classes) if kind == "kl_own_head" else None

    leaf = state.clone().requires_grad_()
    leaf_head = None if head is None else head.clone().requires_grad_()
    used = heads if leaf_head is None else leaf_head
    if kind == "mse":
        expected = (rms_norm(leaf) - teacher_states).square().mean(dim=(1, 2))
    else:
        cooling = temperatures[:, None, None] if kind == "kl_teacher_head" else 1.0
        student = torch.log_softmax(rms_norm(leaf) @ used / cooling, dim=-1)
        teacher = torch.log_softmax(teacher_states @ heads / temperatures[:, None, None], dim=-1)
        each = torch.nn.functional.kl_div(student, teacher, reduction="none", log_target=True)
        expected = each.sum(dim=-1).mean(dim=-1)
    expected.sum().backward()

    value, by_state, by_head = objective.value_and_gradient(state.clone(), targets, head)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(objective.value(state, targets, head), value)
    torch.testing.assert_close(by_state, leaf.grad, rtol=1e-4, atol=1e-6)
    assert (by_head is None) == (head is None)
    if by_head is not None and leaf_head is not None:
        torch.testing.assert_close(by_head, leaf_head.grad, rtol=1e-4, atol=1e-6)


def trained(teacher_seeds: tuple[int, ...], temperatures: tuple[float, ...], steps: int = 5) -> StudentGroup:
    """Students at the paper's width on a small teacher."""
    teacher = TeacherConfig(rho=0.0, blocks=4, seeds=teacher_seeds)
    loss = LossConfig(kind="kl_own_head", temperatures=temperatures)
    train = TrainConfig(steps=steps, batch=32, rate=1e-2)
    teachers = make_teachers(teacher, fixed_head=False)
    group = StudentGroup(StudentShape(3), 1.0, teachers, loss, train)
    memory = teachers.make_pass(train.batch)
    for step in range(steps):
        inputs = torch.randn(train.batch, teacher.width, generator=torch.Generator().manual_seed(step))
        targets = make_targets(loss, 1, teachers.heads, teachers.outputs(memory, inputs))
        group.step(rms_norm(inputs)[None], targets, train.rate, step)
    return group


def test_a_replicate_is_bit_for_bit_the_same_in_any_company() -> None:
    together = trained((0, 1, 2), (0.1, 0.5, 1.0))
    for teacher_seed in (0, 2):
        for temperature in (0.1, 1.0):
            alone = trained((teacher_seed,), (temperature,))
            index = together.replicates.index(alone.replicates[0])
            for many, one in zip(together.weights.tensors, alone.weights.tensors, strict=True):
                assert torch.equal(many[:, index], one[:, 0])
            assert together.head is not None
            assert alone.head is not None
            assert torch.equal(together.head[index], alone.head[0])


def test_a_replicate_that_is_not_finite_leaves_the_others_bit_for_bit_alone() -> None:
    teachers = make_teachers(TeacherConfig(rho=0.0, blocks=4, seeds=(0, 1)), fixed_head=False)
    loss, train = LossConfig(kind="mse"), TrainConfig(steps=4, batch=32, rate=1e-2)
    groups = [StudentGroup(StudentShape(2), 1.0, teachers, loss, train) for _ in range(2)]
    groups[0].weights.down[:, 1] = torch.inf
    memory = teachers.make_pass(train.batch)
    for step in range(train.steps):
        inputs = torch.randn(train.batch, 32)
        targets: Targets = make_targets(loss, 1, teachers.heads, teachers.outputs(memory, inputs))
        for group in groups:
            group.step(rms_norm(inputs)[None], targets, train.rate, step)
    assert groups[0].diverged_at.tolist() == [-1, 0]
    assert groups[1].diverged_at.tolist() == [-1, -1]
    for broken, sound in zip(groups[0].weights.tensors, groups[1].weights.tensors, strict=True):
        assert torch.equal(broken[:, 0], sound[:, 0])

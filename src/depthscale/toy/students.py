"""A group of students of one shape, trained together: teachers x temperatures x seeds along the leading dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from depthscale.toy.config import LossConfig, TeacherConfig, TrainConfig
from depthscale.toy.losses import Objective, Targets
from depthscale.toy.randomness import correlated_uniform, generator
from depthscale.toy.residual_pass import ResidualPass, StackWeights
from depthscale.toy.shapes import StudentShape
from depthscale.toy.teachers import Teachers

#: Inputs times replicates of one pass: more would no longer stay in a core's cache.
ROWS_PER_PASS = 512

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Replicate:
    """Which teacher, temperature and initialization a student has."""

    teacher: int
    temperature: float
    seed: int


def replicates(teacher: TeacherConfig, loss: LossConfig, train: TrainConfig) -> list[Replicate]:
    """In the order of the leading dimension."""
    return [
        Replicate(teacher_seed, temperature, seed)
        for teacher_seed in teacher.seeds
        for temperature in loss.temperatures
        for seed in train.seeds
    ]


class StudentGroup:
    """S students of one shape with their optimizer.

    W1 and b1 start as PyTorch's default Linear (times the rule's gain), W2 and the student's own head at zero: an
    untrained student is the identity.

    Args:
        shape: of all of them.
        rate_factor: on the learning rate.
        teachers: whose sizes and heads they have.
        loss: kind and temperatures.
        train: seeds, rate and batch.

    Attributes:
        weights: of the blocks.
        head: [S, width, classes] for ``kl_own_head``, else None.
        diverged_at: [S], the step whose loss was not finite, or -1.
    """

    def __init__(
        self, shape: StudentShape, rate_factor: float, teachers: Teachers, loss: LossConfig, train: TrainConfig
    ) -> None:
        config = teachers.config
        self.shape, self.rate_factor, self._config, self._train = shape, rate_factor, config, train
        self.replicates = replicates(config, loss, train)
        self.weights = _initial_weights(shape, config, [each.seed for each in self.replicates])
        count = len(self.replicates)
        owns_head = loss.kind == "kl_own_head"
        self.head = torch.zeros(count, config.width, config.classes) if owns_head else None
        self.diverged_at = torch.full((count,), -1, dtype=torch.int64)
        whole_gradient = self.weights.zeros_like()
        size = _largest_divisor(count, max(1, ROWS_PER_PASS // train.batch))
        self._memory = ResidualPass(shape, size, train.batch, config.width, config.hidden, for_training=True)
        self._test_memory: ResidualPass | None = None
        self._parts = [slice(start, start + size) for start in range(0, count, size)]
        self._part_weights = [self.weights.take(part) for part in self._parts]
        self._part_gradients = [whole_gradient.take(part) for part in self._parts]
        temperatures = torch.tensor([each.temperature for each in self.replicates])
        heads = teachers.heads[[config.seeds.index(each.teacher) for each in self.replicates]]
        self._objectives = [Objective(loss.kind, temperatures[part], heads[part]) for part in self._parts]
        for parameter, gradient in zip(self.weights.tensors, whole_gradient.tensors, strict=True):
            parameter.grad = gradient
        groups = [{"params": list(self.weights.tensors)}]
        if self.head is not None:
            self.head.grad = torch.zeros_like(self.head)
            groups.append({"params": [self.head]})
        self._adam = torch.optim.Adam(groups, lr=0.0, fused=True)

    def step(
        self, inputs: Float[Tensor, "1 batch width"], targets: Targets, rate: float, number: int
    ) -> Float[Tensor, " replicates"]:
        """One update of every replicate; the losses before it.

        Args:
            inputs: h_0, normed.
            targets: of all replicates.
            rate: before factors of depth and rule.
            number: of the step, for the record of divergence.
        """
        losses = []
        for part, objective, weights, gradient in zip(
            self._parts, self._objectives, self._part_weights, self._part_gradients, strict=True
        ):
            state = self._memory.forward(weights, inputs)
            head = None if self.head is None else self.head[part]
            loss, by_state, by_head = objective.value_and_gradient(state, targets.take(part), head)
            self._memory.backward(weights, by_state, gradient)
            if self.head is not None and self.head.grad is not None and by_head is not None:
                self.head.grad[part] = by_head
            losses.append(loss)
        found = torch.cat(losses)
        self.diverged_at[(self.diverged_at < 0) & ~found.isfinite()] = number
        depth_factor = self.shape.depth**-self._train.rate_exponent
        self._adam.param_groups[0]["lr"] = rate * self.rate_factor * depth_factor * self.shape.scales.lr_multiplier
        if self.head is not None:
            self._adam.param_groups[1]["lr"] = rate * self.rate_factor
        self._adam.step()
        return found

    def losses(
        self,
        inputs: Float[Tensor, "1 batch width"],
        targets: Targets,
        schedule: Sequence[int] | None = None,
    ) -> Float[Tensor, " replicates"]:
        """Loss of every replicate on ``train.test_batch`` inputs, with another schedule of visits if one is given."""
        size = self._parts[0].stop
        if self._test_memory is None:
            width, hidden = self._config.width, self._config.hidden
            self._test_memory = ResidualPass(self.shape, size, self._train.test_batch, width, hidden, False)
        found = []
        for part, objective, weights in zip(self._parts, self._objectives, self._part_weights, strict=True):
            state = self._test_memory.forward(weights, inputs, schedule)
            head = None if self.head is None else self.head[part]
            found.append(objective.value(state, targets.take(part), head))
        return torch.cat(found)

    def states(self, inputs: Float[Tensor, "1 batch width"], replicate: int) -> list[Float[Tensor, "1 batch width"]]:
        """Every state of one replicate in float64, h_0 first."""
        wide = self.weights.take(slice(replicate, replicate + 1)).double()
        width, hidden = self._config.width, self._config.hidden
        memory = ResidualPass(self.shape, 1, inputs.shape[1], width, hidden, False, dtype=torch.float64)
        trace: list[Tensor] = []
        memory.forward(wide, inputs.double(), trace=trace)
        return trace

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of everything that training changes."""
        found = {"diverged_at": self.diverged_at.clone()}
        for name, parameter in self._named().items():
            found[name] = parameter.detach().clone()
            moments = self._adam.state.get(parameter, {})
            found.update({f"{name}.{moment}": moments[moment].clone() for moment in _MOMENTS if moment in moments})
        return found

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Take :meth:`snapshot` back."""
        self.diverged_at.copy_(saved["diverged_at"])
        for name, parameter in self._named().items():
            parameter.copy_(saved[name])
            if f"{name}.step" in saved:
                self._adam.state[parameter] = {moment: saved[f"{name}.{moment}"].clone() for moment in _MOMENTS}
            else:
                self._adam.state.pop(parameter, None)

    def _named(self) -> dict[str, Tensor]:
        named = {"up_with_bias": self.weights.up_with_bias, "down": self.weights.down}
        return named if self.head is None else {**named, "head": self.head}


def _initial_weights(shape: StudentShape, config: TeacherConfig, seeds: Sequence[int]) -> StackWeights:
    width, hidden, mlps, gain = config.width, config.hidden, shape.num_mlps, shape.scales.gain

    def drawn(name: str, size: tuple[int, ...]) -> Tensor:
        draws = [correlated_uniform(generator(s, f"student {name}"), width**-0.5, mlps, size, 0.0) for s in seeds]
        return torch.stack(draws, dim=1)

    up = torch.cat([drawn("up", (width, hidden)) * gain, drawn("bias", (1, hidden))], dim=2)
    return StackWeights(up, torch.zeros(mlps, len(seeds), hidden, width))


def _largest_divisor(number: int, most: int) -> int:
    return next(size for size in range(min(number, most), 0, -1) if number % size == 0)

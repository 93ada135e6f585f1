"""Models whose regime is known by construction, as subjects of the probe: what its verdict is checked on.

    independent      residual MLPs with draws of their own in every block: updates uncorrelated       averaging
    tied             the same block throughout: Euler steps of one smooth flow                       smooth
    correlated rho   neighbors correlated by rho: in between, where no regime is the right answer
    stopping         every token carries the depth at which it stops; blocks after it leave it alone   compositional

Inputs are rows of independent normed vectors; the targets are the model's own output distribution, so that its excess
loss is a divergence. The null of an untrained configuration is another draw, judged by the same targets.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from depthscale.probing.subject import Passage, Subject, clean_pass
from depthscale.toy.config import TeacherConfig
from depthscale.toy.randomness import generator
from depthscale.toy.residual_pass import rms_norm
from depthscale.toy.teachers import make_teachers

Stopping = Literal["none", "uniform"]
#: The first share of the depth after which a token may stop.
EARLIEST_STOP = 0.1


class TeacherBlock(nn.Module):
    """x <- x + [depth of x > l / L] W2 relu(W1 RMSNorm(x) + b1)^2, the gate only for tokens that carry a depth.

    Args:
        up, bias, down: of the MLP.
        gate: l / L, or None for a block that acts on every token; then the state has no depth in it.
    """

    def __init__(self, up: Tensor, bias: Tensor, down: Tensor, gate: float | None) -> None:
        super().__init__()
        self.up, self.bias, self.down, self.gate = up, bias, down, gate

    def forward(self, state: Tensor) -> Tensor:
        """States ``[rows, tokens, width]``, or ``width + 1`` with the token's depth last."""
        if self.gate is None:
            return state + self._branch(state)
        x, depth = state[..., :-1], state[..., -1:]
        return torch.cat([x + self._branch(x) * (depth > self.gate), depth], dim=-1)

    def _branch(self, x: Tensor) -> Tensor:
        return torch.relu(rms_norm(x) @ self.up + self.bias).square() @ self.down


class Teacher(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: list[TeacherBlock]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, state: Tensor) -> Tensor:
        """h_0 to h_L."""
        for block in self.blocks:
            state = block(state)
        return state


def teacher_subject(config: TeacherConfig, seed: int, stopping: Stopping = "none") -> Subject:
    """One teacher as a subject.

    Args:
        config: sizes and correlation; its seeds are not read.
        seed: of the weights.
        stopping: whether tokens carry a depth at which they stop.
    """
    drawn = make_teachers(config.model_copy(update={"seeds": (seed,)}), fixed_head=True)
    weights, head = drawn.weights, drawn.heads[0]
    gates = [None if stopping == "none" else block / config.blocks for block in range(config.blocks)]
    teacher = Teacher(
        [
            TeacherBlock(weights.up[block, 0], weights.bias[block, 0], weights.down[block, 0], gate)
            for block, gate in enumerate(gates)
        ]
    )
    return Subject(tuple(teacher.blocks), teacher, lambda states: rms_norm(states[:, : config.width]) @ head)


def teacher_passage(
    subject: Subject, config: TeacherConfig, seed: int, stopping: Stopping = "none", rows: int = 8, tokens: int = 64
) -> Passage:
    """Inputs x ~ N(0, I), normed, with the subject's own output distribution as targets.

    Args:
        subject, config, stopping: the teacher.
        seed: of the inputs.
        rows, tokens: how many; a row is what intervals resample.
    """
    source = generator(seed, "regime inputs")
    state = rms_norm(torch.randn(rows, tokens, config.width, generator=source))
    if stopping == "uniform":
        depth = EARLIEST_STOP + (1 - EARLIEST_STOP) * torch.rand(rows, tokens, 1, generator=source)
        state = torch.cat([state, depth], dim=-1)
    counted = torch.ones(rows, tokens, dtype=torch.bool)
    last = clean_pass(subject, Passage(state, counted, counted.long())).states[-1]
    targets = torch.stack([subject.logits(row).softmax(dim=-1) for row in last])
    return Passage(state, counted, targets)

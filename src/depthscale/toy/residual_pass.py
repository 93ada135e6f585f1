"""Forward and reverse pass of many residual MLPs at once, in memory that is laid out beforehand.

    MLP(x) = W2 relu(W1 RMSNorm(x) + b1)^2            RMSNorm without gain
    order 1   x <- x + epsilon MLP_k(x)
    order 2   x <- x + epsilon MLP_k2(x + epsilon MLP_k1(x) / 2)

Every tensor leads with the replicates, S. The derivative is written out: autograd would allocate what it keeps anew in
every step, which costs more than the arithmetic at this width. Replicates never meet: what one computes does not depend
on the others, and one that is not finite leaves the others alone.

Source: the toy of arXiv 2602.05970 in the form of its public code (width 32, hidden 128, default epsilon of RMSNorm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from depthscale.toy.shapes import StudentShape

#: Of RMSNorm, as ``torch.nn.functional.rms_norm`` has it for float32.
NORM_EPSILON = torch.finfo(torch.float32).eps


class MlpViews(NamedTuple):
    """One MLP's tensors as its passes need them, all views."""

    up_with_bias: Tensor
    up_transposed: Tensor
    down: Tensor
    down_transposed: Tensor


@dataclass(frozen=True)
class StackWeights:
    """Weights of S replicates of M MLPs, or the gradient by them.

    Attributes:
        up_with_bias: W1 and, as its last row, b1 [M, S, width + 1, hidden]: the bias is the weight of an input of 1.
        down: W2 [M, S, hidden, width].
    """

    up_with_bias: Float[Tensor, "mlps replicates inputs hidden"]
    down: Float[Tensor, "mlps replicates hidden width"]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.up_with_bias, self.down

    @property
    def up(self) -> Float[Tensor, "mlps replicates width hidden"]:
        """W1, a view."""
        return self.up_with_bias[:, :, :-1]

    @property
    def bias(self) -> Float[Tensor, "mlps replicates 1 hidden"]:
        """b1, a view."""
        return self.up_with_bias[:, :, -1:]

    @cached_property
    def views(self) -> list[MlpViews]:
        """Of each MLP; made once, as making them takes longer than a small product."""
        return [
            MlpViews(first, first[:, :-1].transpose(1, 2), second, second.transpose(1, 2))
            for first, second in zip(self.up_with_bias, self.down, strict=True)
        ]

    def zeros_like(self) -> StackWeights:
        """The same shapes, filled with zeros."""
        return StackWeights(torch.zeros_like(self.up_with_bias), torch.zeros_like(self.down))

    def take(self, replicates: slice) -> StackWeights:
        """A view of some replicates."""
        return StackWeights(self.up_with_bias[:, replicates], self.down[:, replicates])

    def double(self) -> StackWeights:
        """In float64, for measurements."""
        return StackWeights(self.up_with_bias.double(), self.down.double())


def rms_norm(x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
    """RMSNorm without gain."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=NORM_EPSILON)


class ResidualPass:
    """One forward pass and its reverse, for S replicates of one shape on B inputs each.

    Args:
        shape: order, rule and, unless another is given to :meth:`forward`, the schedule.
        replicates: S.
        batch: B.
        width, hidden: of the MLPs.
        for_training: keep what the reverse pass needs.
        dtype: float64 for measurements.
    """

    def __init__(
        self,
        shape: StudentShape,
        replicates: int,
        batch: int,
        width: int,
        hidden: int,
        for_training: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def memory(*sizes: int) -> Tensor:
            return torch.empty(*sizes, dtype=dtype)

        slots = shape.depth * shape.order if for_training else 1
        self.shape, self.keeps = shape, for_training
        self._schedule = shape.schedule
        # The last column stays 1: what the bias is multiplied by.
        self._inputs = memory(slots, replicates, batch, width + 1).fill_(1.0).unbind()
        self._inputs_transposed = [each.transpose(1, 2) for each in self._inputs]
        self._normed = [each[..., :width] for each in self._inputs]
        self._inverse_rms = memory(slots, replicates, batch, 1).unbind()
        # Made anew in the reverse pass: keeping it for every visit would spill out of a core's cache.
        self._hidden = memory(replicates, batch, hidden)
        self._squares = memory(replicates, batch, hidden)
        self._squares_transposed = self._squares.transpose(1, 2)
        self._norm_epsilon = torch.tensor(NORM_EPSILON, dtype=dtype)
        self._state = memory(replicates, batch, width)
        self._middle = memory(replicates, batch, width)
        self._pulled = memory(replicates, batch, width)
        self._product = memory(replicates, batch, width)
        self._dot = memory(replicates, batch, 1)
        self._written: set[int] = set()

    def forward(
        self,
        weights: StackWeights,
        inputs: Float[Tensor, "#replicates batch width"],
        schedule: Sequence[int] | None = None,
        trace: list[Tensor] | None = None,
    ) -> Float[Tensor, "replicates batch width"]:
        """The last state, before the final norm, in memory that the next pass writes over.

        Args:
            weights: of the S replicates.
            inputs: h_0, already normed.
            schedule: block of each visit; None takes the shape's.
            trace: takes a copy of every state, h_0 first.
        """
        state, epsilon = self._state, self.shape.scales.branch
        state.copy_(inputs.expand_as(state))
        if trace is not None:
            trace.append(state.clone())
        self._schedule = self.shape.schedule if schedule is None else tuple(schedule)
        slot = 0
        for block in self._schedule:
            if self.shape.order == 1:
                self._add_branch(weights, slot, block, state, state, epsilon)
            else:
                self._middle.copy_(state)
                self._add_branch(weights, slot, 2 * block, state, self._middle, epsilon / 2)
                slot += self.keeps
                self._add_branch(weights, slot, 2 * block + 1, self._middle, state, epsilon)
            slot += self.keeps
            if trace is not None:
                trace.append(state.clone())
        return state

    def backward(
        self, weights: StackWeights, gradient: Float[Tensor, "replicates batch width"], into: StackWeights
    ) -> None:
        """Write the derivative by the weights of the pass just made.

        Args:
            weights: the same as in :meth:`forward`.
            gradient: of the loss by the last state; written over.
            into: gradients of every MLP that was visited are written here.
        """
        epsilon = self.shape.scales.branch
        self._written.clear()
        slot = len(self._schedule) * self.shape.order - 1
        for block in reversed(self._schedule):
            if self.shape.order == 1:
                self._pull_branch(weights, slot, block, gradient, gradient, epsilon, into)
            else:
                self._middle.zero_()
                self._pull_branch(weights, slot, 2 * block + 1, gradient, self._middle, epsilon, into)
                gradient.add_(self._middle)
                slot -= 1
                self._pull_branch(weights, slot, 2 * block, self._middle, gradient, epsilon / 2, into)
            slot -= 1

    def _add_branch(self, weights: StackWeights, slot: int, mlp: int, x: Tensor, target: Tensor, scale: float) -> None:
        """target <- target + scale MLP(x)."""
        normed, inverse, hidden = self._normed[slot], self._inverse_rms[slot], self._hidden
        torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=inverse)
        torch.addcmul(self._norm_epsilon, inverse, inverse, value=1 / x.shape[-1], out=inverse).rsqrt_()
        torch.mul(x, inverse, out=normed)
        views = weights.views[mlp]
        torch.bmm(self._inputs[slot], views.up_with_bias, out=hidden).relu_()
        torch.mul(hidden, hidden, out=self._squares)
        target.baddbmm_(self._squares, views.down, alpha=scale)

    def _pull_branch(
        self,
        weights: StackWeights,
        slot: int,
        mlp: int,
        upstream: Tensor,
        target: Tensor,
        scale: float,
        into: StackWeights,
    ) -> None:
        """target <- target + (d scale MLP / d x)^T upstream, and the weights' gradients."""
        normed, hidden, squares, pulled = self._normed[slot], self._hidden, self._squares, self._pulled
        views, gradients = weights.views[mlp], into.views[mlp]
        # The first of an MLP's visits writes, the others add; 0 times what was there before is not even read.
        kept = 1.0 if mlp in self._written else 0.0
        self._written.add(mlp)
        torch.bmm(self._inputs[slot], views.up_with_bias, out=hidden).relu_()
        torch.mul(hidden, hidden, out=squares)
        gradients.down.baddbmm_(self._squares_transposed, upstream, beta=kept, alpha=scale)
        # d relu(a)^2 / d a = 2 relu(a); the 2 and the scale go into the small factors below.
        torch.bmm(upstream, views.down_transposed, out=squares)
        squares.mul_(hidden)
        gradients.up_with_bias.baddbmm_(self._inputs_transposed[slot], squares, beta=kept, alpha=2 * scale)
        torch.bmm(squares, views.up_transposed, out=pulled)
        # RMSNorm: d n / d x = (1 - n n^T / width) / rms.
        torch.mul(pulled, normed, out=self._product)
        torch.sum(self._product, dim=-1, keepdim=True, out=self._dot)
        pulled.addcmul_(normed, self._dot, value=-1 / normed.shape[-1])
        target.addcmul_(pulled, self._inverse_rms[slot], value=2 * scale)

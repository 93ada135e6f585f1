"""How far students are from their teacher, and the derivative of it by the last state.

    mse               mean over inputs and width of (RMSNorm(h) - RMSNorm(h_teacher))^2
    kl_own_head       KL(teacher at T || student at 1), the student's head is trained
    kl_teacher_head   KL(teacher at T || student at T), the student has the teacher's head

in nats per input for the two KLs. A loss is a mean over inputs for each replicate; replicates never mix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from depthscale.toy.config import LossConfig, LossKind
from depthscale.toy.residual_pass import NORM_EPSILON


@dataclass(frozen=True)
class Distribution:
    """The teacher's, at each replicate's temperature, both [S, B, classes]."""

    log_probabilities: Float[Tensor, "replicates batch classes"]
    probabilities: Float[Tensor, "replicates batch classes"]

    def divergence(self, log_probabilities: Float[Tensor, "replicates batch classes"]) -> Float[Tensor, " replicates"]:
        """KL of the student's distribution from it."""
        # Term by term: the difference of entropies would lose a small divergence in float32.
        each = (self.log_probabilities - log_probabilities).mul_(self.probabilities)
        return each.sum(dim=-1).mean(dim=-1)


@dataclass(frozen=True)
class Targets:
    """What S replicates are asked to match on one batch; views of what was made once for all students.

    Attributes:
        states: RMSNorm(h_L) of each replicate's teacher: for ``mse``.
        distribution: for the KLs, else None.
    """

    states: Float[Tensor, "replicates batch width"]
    distribution: Distribution | None

    def take(self, replicates: slice) -> Targets:
        """Of some replicates."""
        whole = self.distribution
        part = None
        if whole is not None:
            part = Distribution(whole.log_probabilities[replicates], whole.probabilities[replicates])
        return Targets(self.states[replicates], part)


def make_targets(
    loss: LossConfig, num_seeds: int, heads: Tensor, states: Float[Tensor, "teachers batch width"]
) -> Targets:
    """Targets of every replicate, ordered teacher, temperature, seed, the last fastest."""

    def replicated(values: Tensor) -> Tensor:
        return values[:, :, None].expand(-1, -1, num_seeds, -1, -1).flatten(0, 2)

    count = len(loss.temperatures)
    spread = replicated(states[:, None].expand(-1, count, -1, -1))
    if loss.kind == "mse":
        return Targets(spread, None)
    cooled = torch.bmm(states, heads)[:, None] / torch.tensor(loss.temperatures)[None, :, None, None]
    log_probabilities = torch.log_softmax(cooled, dim=-1)
    return Targets(spread, Distribution(replicated(log_probabilities), replicated(log_probabilities.exp())))


class Objective:
    """One kind of loss for S replicates, with its derivative written out.

    Args:
        kind: which.
        temperatures: of each replicate.
        teacher_heads: [S, width, classes], the head of each replicate's teacher.
    """

    def __init__(self, kind: LossKind, temperatures: Float[Tensor, " replicates"], teacher_heads: Tensor) -> None:
        self._fixed_heads = teacher_heads if kind == "kl_teacher_head" else None
        # Logits are divided by T only where the student is cooled like its teacher.
        self._inverse = (1 / temperatures)[:, None, None] if kind == "kl_teacher_head" else None

    def value(
        self, state: Float[Tensor, "replicates batch width"], targets: Targets, head: Tensor | None
    ) -> Float[Tensor, " replicates"]:
        """The loss of each replicate; ``head`` is the trained one, for ``kl_own_head``."""
        normed, _ = _norm(state)
        if targets.distribution is None:
            return (normed - targets.states).square().mean(dim=(1, 2))
        return targets.distribution.divergence(self._log_probabilities(normed, self._head(head)))

    def value_and_gradient(
        self, state: Float[Tensor, "replicates batch width"], targets: Targets, head: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The loss [S], its derivative by ``state`` [S, B, width], and by a trained head [S, width, classes]."""
        normed, inverse = _norm(state)
        batch, width = state.shape[1:]
        if targets.distribution is None:
            difference = normed - targets.states
            loss = difference.square().mean(dim=(1, 2))
            return loss, _through_norm(difference.mul_(2 / (batch * width)), normed, inverse), None
        used = self._head(head)
        log_probabilities = self._log_probabilities(normed, used)
        loss = targets.distribution.divergence(log_probabilities)
        # d KL / d logits = (student - teacher) / batch.
        by_logits = log_probabilities.exp_().sub_(targets.distribution.probabilities).mul_(1 / batch)
        if self._inverse is not None:
            by_logits.mul_(self._inverse)
        by_head = torch.bmm(normed.transpose(1, 2), by_logits) if self._fixed_heads is None else None
        return loss, _through_norm(torch.bmm(by_logits, used.transpose(1, 2)), normed, inverse), by_head

    def _head(self, trained: Tensor | None) -> Tensor:
        used = trained if self._fixed_heads is None else self._fixed_heads
        assert used is not None, "kl_own_head has a trained head"
        return used

    def _log_probabilities(self, normed: Tensor, head: Tensor) -> Tensor:
        logits = torch.bmm(normed, head)
        if self._inverse is not None:
            logits.mul_(self._inverse)
        return torch.log_softmax(logits, dim=-1)


def _norm(state: Tensor) -> tuple[Tensor, Tensor]:
    inverse = torch.rsqrt(state.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)
    return state * inverse, inverse


def _through_norm(by_normed: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    dot = (by_normed * normed).mean(dim=-1, keepdim=True)
    return by_normed.addcmul_(normed, dot, value=-1).mul_(inverse)

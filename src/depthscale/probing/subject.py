"""What is intervened on: a model as its blocks, one way to run them, and the way from the last state to logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscale.probing.located import LocatedModel
from depthscale.probing.replacing import CleanPass, Replacement, record_clean_pass, replaced
from depthscale.probing.states import TokenBatch, run_base

#: Tokens whose logits exist at a time.
TOKENS_PER_CHUNK = 1024


@dataclass(frozen=True)
class Subject:
    """A model under the knife.

    Attributes:
        blocks: distinct blocks.
        run: inputs of a passage -> one forward pass of everything up to the last block at least.
        logits: raw last states ``[tokens, width]`` -> ``[tokens, classes]``.
    """

    blocks: tuple[nn.Module, ...]
    run: Callable[[Any], object]
    logits: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Passage:
    """Some rows of text.

    Attributes:
        inputs: what ``Subject.run`` takes.
        counted: bool ``[rows, tokens]``, tokens that count.
        targets: next tokens, int64 ``[rows, tokens]``, or probabilities ``[rows, tokens, classes]``.
    """

    inputs: Any
    counted: Tensor
    targets: Tensor


@dataclass(frozen=True)
class RowLosses:
    """Of each row that has a token that counts, float64 [rows].

    Attributes:
        loss: mean cross entropy with the targets, nats.
        divergence: mean KL(unchanged || changed), nats; 0 for the unchanged pass.
    """

    loss: Tensor
    divergence: Tensor


def language_model(located: LocatedModel) -> Subject:
    """A causal language model as a subject; whole logits are never made of more than TOKENS_PER_CHUNK tokens."""
    return Subject(
        located.blocks,
        lambda batch: run_base(located, batch),
        # Some heads and norms expect rows of tokens.
        lambda states: located.logits(states[None])[0],
    )


def passages_of(batches: Sequence[TokenBatch], device: torch.device) -> list[Passage]:
    """Batches of token ids as passages: position t counts when t and t + 1 are real tokens."""
    moved = [batch.to(device) for batch in batches]
    return [Passage(batch, batch.counted, batch.input_ids.roll(-1, dims=1)) for batch in moved]


def clean_pass(subject: Subject, passage: Passage) -> CleanPass:
    """The unchanged pass over a passage, every state kept."""
    return record_clean_pass(subject.blocks, lambda: subject.run(passage.inputs))


def changed_states(subject: Subject, passage: Passage, replacements: Mapping[int, Replacement]) -> list[Tensor]:
    """What each visit hands on when some are replaced."""
    with torch.no_grad(), replaced(subject.blocks, replacements) as handed_on:
        subject.run(passage.inputs)
    return handed_on


def row_losses(subject: Subject, passage: Passage, last: Tensor, unchanged: Tensor | None = None) -> RowLosses:
    """Losses of a passage from its last raw state.

    Args:
        subject: the model.
        passage: its text.
        last: ``[rows, tokens, width]``.
        unchanged: the last raw state of the unchanged pass, which divergences are from.
    """
    counted = passage.counted
    rows = counted.nonzero()[:, 0]
    states, targets = last[counted], passage.targets[counted]
    reference = None if unchanged is None else unchanged[counted]
    loss = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    divergence = torch.zeros_like(loss)
    with torch.no_grad():
        for first in range(0, len(rows), TOKENS_PER_CHUNK):
            part = slice(first, first + TOKENS_PER_CHUNK)
            log_probs = _log_probs(subject, states[part])
            loss[part] = _cross_entropy(log_probs, targets[part])
            if reference is not None:
                own = _log_probs(subject, reference[part])
                divergence[part] = (own.exp() * (own - log_probs)).sum(dim=1).double()
    return RowLosses(_row_means(loss, rows, len(counted)), _row_means(divergence, rows, len(counted)))


def _log_probs(subject: Subject, states: Tensor) -> Tensor:
    return subject.logits(states).float().log_softmax(dim=-1)


def _cross_entropy(log_probs: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim == 1:
        return -log_probs.gather(1, targets[:, None])[:, 0].double()
    return -(targets * log_probs).sum(dim=1).double()


def _row_means(values: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    sums = torch.zeros(num_rows, dtype=torch.float64, device=values.device).index_add_(0, rows, values)
    counts = torch.bincount(rows, minlength=num_rows)
    return (sums / counts.clamp(min=1))[counts > 0]

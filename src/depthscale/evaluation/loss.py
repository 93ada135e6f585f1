"""Mean loss over a data set: total negative log-likelihood over total targets, whatever the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from depthscale.nn.loss import IGNORED_LABEL

Collator = Callable[[list[dict[str, Tensor]]], dict[str, Tensor]]


@dataclass(frozen=True)
class LossResult:
    """A mean and what it was taken over.

    Attributes:
        loss_nats: mean negative log-likelihood per target token, in nats; not finite when the model diverged.
        num_tokens: targets counted (labels of -100 are not).
        unigram_entropy_nats: entropy of those targets' own frequencies. No prediction that ignores context can have a
            lower loss on them, however it was come by.
    """

    loss_nats: float
    num_tokens: int
    unigram_entropy_nats: float


@torch.inference_mode()
def evaluate_loss(
    model: nn.Module,
    dataset: Dataset[dict[str, Tensor]],
    collate: Collator,
    *,
    batch_rows: int,
    max_rows: int | None = None,
    arguments: dict[str, Any] | None = None,
) -> LossResult:
    """Loss of a causal language model over the rows of ``dataset``.

    Sums are kept in float64 and divided once, so that a ragged last batch weighs what it holds.

    Args:
        model: called as ``model(**batch, num_items_in_batch=1)``, which makes its loss a sum.
        dataset: rows with unshifted ``labels``.
        collate: makes a batch of rows.
        batch_rows: rows per forward pass.
        max_rows: use that many rows only, evenly spaced over the data set.
        arguments: further arguments of every forward pass, such as ``{"rounds": 4}``.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    rows = evenly_spaced(len(dataset), max_rows)  # type: ignore[arg-type]
    total = 0.0
    target_counts = torch.zeros(0, dtype=torch.int64)
    try:
        for start in range(0, len(rows), batch_rows):
            batch = collate([dataset[row] for row in rows[start : start + batch_rows]])
            batch = {name: value.to(device) for name, value in batch.items()}
            output = model(**batch, num_items_in_batch=1, **(arguments or {}))
            total += output.loss.double().item()
            targets = batch["labels"][:, 1:]
            counts = torch.bincount(targets[targets != IGNORED_LABEL].cpu(), minlength=len(target_counts))
            counts[: len(target_counts)] += target_counts
            target_counts = counts
    finally:
        model.train(was_training)
    num_tokens = int(target_counts.sum())
    frequencies = target_counts[target_counts > 0].double() / max(num_tokens, 1)
    entropy = -(frequencies * frequencies.log()).sum().item()
    return LossResult(total / max(num_tokens, 1), num_tokens, entropy)


def evenly_spaced(num_rows: int, max_rows: int | None) -> Sequence[int]:
    """Indices of at most ``max_rows`` of ``num_rows`` rows, spread over all of them; None takes every row."""
    if max_rows is None or max_rows >= num_rows:
        return range(num_rows)
    return [index * num_rows // max_rows for index in range(max_rows)]

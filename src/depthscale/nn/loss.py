"""Next-token cross-entropy."""

from __future__ import annotations

import torch
from torch.nn import functional

IGNORED_LABEL = -100


def next_token_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Negative log-likelihood of each token given those before it, in nats.

    Without ``num_items_in_batch`` the mean over the labels that count; with it their sum divided by that number,
    so that the parts of a batch add up to exactly what the whole batch gives, however unevenly it is split.

    Args:
        logits: ``[batch, tokens, vocabulary]``; the last position predicts nothing.
        labels: int64 ``[batch, tokens]``, *unshifted* (usually the input ids); -100 is ignored. The first column
            is never predicted. Padding, and the first token of a packed document, are the caller's to set to -100.
        num_items_in_batch: labels that count over the whole batch, all its parts together.

    Returns:
        float32 scalar; not a number when no label counts, since a mean over nothing is not a loss.
    """
    # Shifting the labels instead of the logits spares a copy of the largest tensor of the model.
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED_LABEL, reduction=reduction
    )
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch

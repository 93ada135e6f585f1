"""The head: a linear map to logits with a constant multiplier."""

from __future__ import annotations

import torch
from torch import nn


class Head(nn.Linear):
    """logits = multiplier * W x, without bias; W may be the embedding.

    Args:
        hidden_size: width of the stream.
        vocab_size: number of token ids.
        multiplier: 1 in the standard parametrization; base width / width in the maximal update parametrization.
    """

    def __init__(self, hidden_size: int, vocab_size: int, multiplier: float = 1.0) -> None:
        super().__init__(hidden_size, vocab_size, bias=False)
        self.multiplier = float(multiplier)

    def forward(self, hidden_state: torch.Tensor) -> torch.Tensor:
        logits = super().forward(hidden_state)
        return logits if self.multiplier == 1 else logits * self.multiplier

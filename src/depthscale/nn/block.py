"""One physical block: attention and MLP, each inside the residual of the norm placement."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import Attention, Rotary
from .config import LoopedLMConfig
from .mlp import MLPS
from .placement import build_residual


class Block(GradientCheckpointingLayer):
    """Attention, then MLP; called once per visit.

    Checkpointing (``gradient_checkpointing_enable``) is by the call, hence by the visit: what is kept between
    forward and backward is one hidden state per visit.

    Args:
        config: shape and placement.
        scales: the segment's finished numbers ``skip``, ``gain`` and ``branch``.
    """

    def __init__(self, config: LoopedLMConfig, scales: Mapping[str, float]) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.attention = Attention(
            width,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.qk_norm,
            eps,
            scales["gain"],
        )
        self.mlp = MLPS[config.mlp](width, config.intermediate_size, scales["gain"])
        residual = (config.norm_placement, width, eps, scales["skip"], scales["branch"])
        self.attention_residual = build_residual(*residual)
        self.mlp_residual = build_residual(*residual)

    def forward(
        self,
        hidden_state: torch.Tensor,
        rotary: Rotary,
        mask: torch.Tensor | None,
        visit: int,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """One visit.

        Args:
            hidden_state: ``[batch, tokens, hidden_size]``.
            rotary: cosines and sines for the tokens' positions.
            mask: as for :class:`Attention`.
            visit: which visit of the forward pass this is, from 0. Keys and values belong to the visit, not to
                the block, so this is the slot of the cache; hooks read it to tell visits apart.
            cache: keys and values of earlier tokens, extended by this visit's.

        Returns:
            The raw output of the visit, of the same shape.
        """
        hidden_state = self.attention_residual(hidden_state, lambda x: self.attention(x, rotary, mask, visit, cache))
        return self.mlp_residual(hidden_state, self.mlp)

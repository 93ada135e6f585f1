"""Causal self-attention with rotary positions, optional grouped-query heads and optional QK norm; no biases."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import Cache

from .init import InitScaledLinear

Rotary = tuple[torch.Tensor, torch.Tensor]


def rotary_tables(position_ids: torch.Tensor, head_dim: int, theta: float) -> Rotary:
    """Cosines and sines of the angles position * theta^(-2i / head_dim), i = 0 ... head_dim / 2 - 1.

    Computed anew in every forward pass, once for all visits: a table kept in a buffer would be lost where weights
    are created on the meta device.

    Args:
        position_ids: int ``[batch or 1, tokens]``.
        head_dim: even size of one head.
        theta: base of the wavelengths.

    Returns:
        Two float32 tensors ``[batch or 1, 1, tokens, head_dim]``, each angle twice (for the two halves of a head).

    Source: RoFormer, arXiv 2104.09864, in the half-split layout of Llama.
    """
    exponents = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=torch.float32) / head_dim
    # An outer product by broadcasting: autocast would do a matmul in bfloat16, which merges neighboring positions.
    angles = position_ids[:, None, :, None].float() * theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Turn each pair (i, i + head_dim / 2) of ``heads`` by its angle; the result is at least float32."""
    cosines, sines = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


class Attention(nn.Module):
    """softmax(q k^T / sqrt(head_dim) + mask) v, through ``scaled_dot_product_attention``.

    Args:
        hidden_size: width of the stream.
        num_heads: query heads.
        num_key_value_heads: key and value heads, a divisor of ``num_heads``; fewer is grouped-query attention.
        head_dim: size of one head.
        qk_norm: RMSNorm with a learned gain on every query and key head, before the rotation.
        eps: of those norms.
        init_gain: beta, on the value and output matrices; never on query and key.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_key_value_heads: int,
        head_dim: int,
        qk_norm: bool,
        eps: float,
        init_gain: float,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.grouped = num_key_value_heads != num_heads
        self.q_proj = InitScaledLinear(hidden_size, num_heads * head_dim)
        self.k_proj = InitScaledLinear(hidden_size, num_key_value_heads * head_dim)
        self.v_proj = InitScaledLinear(hidden_size, num_key_value_heads * head_dim, init_gain)
        self.o_proj = InitScaledLinear(num_heads * head_dim, hidden_size, init_gain)
        self.q_norm = nn.RMSNorm(head_dim, eps=eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim, eps=eps) if qk_norm else None

    def forward(
        self,
        hidden_state: torch.Tensor,
        rotary: Rotary,
        mask: torch.Tensor | None,
        visit: int = 0,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Attend over the tokens, and over those before them that the cache holds.

        Args:
            hidden_state: ``[batch, tokens, hidden_size]``.
            rotary: what :func:`rotary_tables` gives.
            mask: bool ``[batch, 1, tokens, cached + tokens]``, True where a query (row) may see a key (column); None
                is plain causal attention, which needs no mask in memory.
            visit: the slot of the cache.
            cache: gets the new keys and values, and gives all of the slot's.

        Returns:
            ``[batch, tokens, hidden_size]``.
        """
        batch, tokens, _ = hidden_state.shape
        query = self.q_proj(hidden_state).view(batch, tokens, -1, self.head_dim)
        key = self.k_proj(hidden_state).view(batch, tokens, -1, self.head_dim)
        value = self.v_proj(hidden_state).view(batch, tokens, -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            # The casts do nothing unless autocast made the heads narrower than the norms' weights.
            query = self.q_norm(query.to(self.q_norm.weight.dtype))
            key = self.k_norm(key.to(self.k_norm.weight.dtype))
        # Rotation is done in float32 and rounded once, so that long positions stay apart in bfloat16.
        query = rotate(query.transpose(1, 2), rotary).to(value.dtype)
        key = rotate(key.transpose(1, 2), rotary).to(value.dtype)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, visit)
        heads = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            # Without a mask a single token is the last one, which sees everything; the flag would show it one key.
            is_causal=mask is None and tokens > 1,
            enable_gqa=self.grouped,
        )
        return self.o_proj(heads.transpose(1, 2).reshape(batch, tokens, -1))

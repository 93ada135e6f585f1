"""The position-wise MLP sublayer, plain (GELU) or gated (SwiGLU)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .init import InitScaledLinear


class GeluMLP(nn.Module):
    """down(gelu(up(x))) with the exact (erf) GELU.

    Args:
        hidden_size: width of the stream.
        intermediate_size: width between the two matrices, usually 4 * hidden_size.
        init_gain: beta, on both matrices.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, init_gain: float) -> None:
        super().__init__()
        self.up_proj = InitScaledLinear(hidden_size, intermediate_size, init_gain)
        self.down_proj = InitScaledLinear(intermediate_size, hidden_size, init_gain)

    def forward(self, hidden_state: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.gelu(self.up_proj(hidden_state)))


class SwigluMLP(nn.Module):
    """down(silu(gate(x)) * up(x)).

    Args:
        hidden_size: width of the stream.
        intermediate_size: width between the matrices, usually 8/3 * hidden_size.
        init_gain: beta, on all three matrices.

    Source: GLU variants, arXiv 2002.05202.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, init_gain: float) -> None:
        super().__init__()
        self.gate_proj = InitScaledLinear(hidden_size, intermediate_size, init_gain)
        self.up_proj = InitScaledLinear(hidden_size, intermediate_size, init_gain)
        self.down_proj = InitScaledLinear(intermediate_size, hidden_size, init_gain)

    def forward(self, hidden_state: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden_state)) * self.up_proj(hidden_state))


MLPS = {"gelu": GeluMLP, "swiglu": SwigluMLP}

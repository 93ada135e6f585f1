"""Sizes of states and updates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def root_mean_square(x: Float[Tensor, "... width"]) -> Float[Tensor, ...]:
    """sqrt(mean_i x_i^2) over the last axis, in float32 or better.

    Args:
        x: any floating dtype; half precision is reduced in float32.

    Example:
        >>> root_mean_square(torch.tensor([3.0, -3.0])).item()
        3.0
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.square().mean(dim=-1).sqrt()

"""Directions of states and updates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def cosine(x: Float[Tensor, "... width"], y: Float[Tensor, "... width"]) -> Float[Tensor, ...]:
    """<x, y> / (|x| |y|) over the last axis, in float32 or better, clamped to [-1, 1].

    A zero vector has no direction: its cosine is NaN, so that it cannot pass for orthogonal.

    Example:
        >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0])).item()
        1.0
        >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0])).isnan().item()
        True
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(dtype), y.to(dtype)
    return (_unit(x) * _unit(y)).sum(dim=-1).clamp(-1.0, 1.0)


def _unit(x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
    """x / |x|, through its largest entry first, whose square a norm would overflow or underflow."""
    x = x / x.abs().amax(dim=-1, keepdim=True)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def angle(x: Float[Tensor, "... width"], y: Float[Tensor, "... width"]) -> Float[Tensor, ...]:
    """Angle between x and y over the last axis, in radians within [0, pi], in float32 or better.

    2 atan2(|x/|x| - y/|y||, |x/|x| + y/|y||), which is exact to rounding at every angle. An arc cosine is not: in
    float32 it loses everything below 3e-4, and rounding puts its argument above 1. A zero vector has no direction:
    its angle is NaN.

    Source: W. Kahan, How futile are mindless assessments of roundoff in floating-point computation?, section 12.

    Example:
        >>> angle(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.0])).item()
        0.0
        >>> round(angle(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-6])).item(), 9)
        1e-06
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = _unit(x.to(dtype)), _unit(y.to(dtype))
    apart = torch.linalg.vector_norm(x - y, dim=-1)
    together = torch.linalg.vector_norm(x + y, dim=-1)
    return 2 * torch.atan2(apart, together)

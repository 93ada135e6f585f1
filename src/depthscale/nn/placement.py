"""Where the norm sits around a residual sublayer, and what multiplies what: one small module per placement.

    post      x <- Norm(skip * x + f(x))
    sandwich  x <- Norm(skip * x + f(Norm(x)))
    pre       x <- x + branch * f(Norm(x))

x is the residual stream ``[batch, tokens, width]``, f a sublayer (attention or MLP) that keeps that shape, Norm
an RMSNorm with a learned gain that starts at 1. skip (alpha) and branch (epsilon) are plain numbers: they are
neither trained nor stored beside the weights, so that no way of loading weights can lose them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Sublayer = Callable[[torch.Tensor], torch.Tensor]


class PostNormResidual(nn.Module):
    """x <- Norm(skip_scale * x + f(x)); the stream keeps RMS 1 and f = 0 gives Norm(skip_scale * x).

    Args:
        width: size of the stream's last axis.
        eps: added to the mean square inside the norm.
        skip_scale: alpha; exposes the branch at 1 / alpha.

    Source: DeepNet, arXiv 2203.00555; with RMSNorm as in DeepLoop v1, arXiv 2607.13491.
    """

    def __init__(self, width: int, eps: float, skip_scale: float) -> None:
        super().__init__()
        self.skip_scale = float(skip_scale)
        self.norm = nn.RMSNorm(width, eps=eps)

    def forward(self, hidden_state: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
        return self.norm(torch.add(sublayer(hidden_state), hidden_state, alpha=self.skip_scale))


class SandwichNormResidual(nn.Module):
    """x <- Norm(skip_scale * x + f(Norm(x))); the inner norm is the identity on a stream of RMS 1 until it is trained.

    Args:
        width: size of the stream's last axis.
        eps: added to the mean square inside both norms.
        skip_scale: alpha.

    Source: DeepLoop v2, arXiv 2607.13491.
    """

    def __init__(self, width: int, eps: float, skip_scale: float) -> None:
        super().__init__()
        self.skip_scale = float(skip_scale)
        self.inner_norm = nn.RMSNorm(width, eps=eps)
        self.norm = nn.RMSNorm(width, eps=eps)

    def forward(self, hidden_state: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
        branch = sublayer(self.inner_norm(hidden_state))
        return self.norm(torch.add(branch, hidden_state, alpha=self.skip_scale))


class PreNormResidual(nn.Module):
    """x <- x + branch_scale * f(Norm(x)); the stream is never normalized, so a model of this kind ends in a norm.

    Args:
        width: size of the stream's last axis.
        eps: added to the mean square inside the norm.
        branch_scale: epsilon; 1 is the ordinary pre-norm transformer.

    Source: branch scales for loops, arXiv 2606.18524 and SMELT, arXiv 2609.01343.
    """

    def __init__(self, width: int, eps: float, branch_scale: float) -> None:
        super().__init__()
        self.branch_scale = float(branch_scale)
        self.norm = nn.RMSNorm(width, eps=eps)

    def forward(self, hidden_state: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
        return torch.add(hidden_state, sublayer(self.norm(hidden_state)), alpha=self.branch_scale)


def build_residual(placement: str, width: int, eps: float, skip_scale: float, branch_scale: float) -> nn.Module:
    """The residual of a placement; the scale that it does not have must be 1.

    Raises:
        ValueError: unknown placement, or a scale that the placement would ignore.
    """
    if placement == "pre":
        if skip_scale != 1:
            raise ValueError(f"skip scale came as {skip_scale!r} for a pre-norm block, which ignores it; expected 1")
        return PreNormResidual(width, eps, branch_scale)
    if placement not in ("post", "sandwich"):
        raise ValueError(f"unknown norm placement {placement!r}; expected post, sandwich or pre")
    if branch_scale != 1:
        raise ValueError(
            f"branch scale came as {branch_scale!r} for a {placement}-norm block, which ignores it; expected 1"
        )
    if placement == "post":
        return PostNormResidual(width, eps, skip_scale)
    return SandwichNormResidual(width, eps, skip_scale)

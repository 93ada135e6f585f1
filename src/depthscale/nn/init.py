"""Initial weights: which matrices the gain beta multiplies, and with what standard deviation they are drawn.

    beta     value, attention output, and every matrix of the MLP: up, down, and the gate where there is one
    1        query and key
    (none)   embeddings and an untied head, drawn with a standard deviation of their own; norm gains start at 1

Matrices are kept apart, never fused, so the gain falls on whole matrices and never on a slice of one. The
papers do not say what a gated MLP's third matrix gets; it is scaled too, as in public DeepNorm code, which makes
a SwiGLU branch shrink as beta cubed (up, gate, down) where an attention or GELU branch shrinks as beta squared.

Source: DeepNet, arXiv 2203.00555 (Xavier normal with gain beta); DeepLoop, arXiv 2607.13491.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import initialization


class InitScaledLinear(nn.Linear):
    """A linear map without bias that knows the gain its initial weights are drawn with; the gain acts only then.

    It is a number on the module rather than a mark on the tensor, which sharding and loading would lose.
    """

    def __init__(self, in_features: int, out_features: int, init_gain: float = 1.0) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.init_gain = float(init_gain)


def xavier_std(fan_in: int, fan_out: int) -> float:
    """Standard deviation sqrt(2 / (fan_in + fan_out)) of Xavier's normal initialization.

    Example:
        >>> xavier_std(50, 150)
        0.1
    """
    return math.sqrt(2 / (fan_in + fan_out))


@torch.no_grad()
def initialize_module(module: nn.Module, initializer_range: float | None, embedding_range: float) -> None:
    """Draw the weights that ``module`` itself holds; weights already loaded from a checkpoint are left alone.

    Args:
        module: any submodule of the model; containers hold nothing and are left as they are.
        initializer_range: standard deviation of a gain-1 matrix; None is :func:`xavier_std` of its shape.
        embedding_range: standard deviation of embeddings and of an untied head.
    """
    # transformers.initialization rather than torch.nn.init: it skips weights that a checkpoint already gave.
    if isinstance(module, InitScaledLinear):
        std = xavier_std(module.in_features, module.out_features) if initializer_range is None else initializer_range
        initialization.normal_(module.weight, mean=0.0, std=std * module.init_gain)
    elif isinstance(module, nn.Embedding | nn.Linear):
        initialization.normal_(module.weight, mean=0.0, std=embedding_range)
    elif isinstance(module, nn.RMSNorm):
        initialization.ones_(module.weight)

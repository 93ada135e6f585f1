"""Maximal update parametrization over width: what is tuned at ``train.base_width`` serves at any width.

With m = hidden_size / base_width,

    parameters                         initial deviation    Adam's rate    decay per rate    multiplier
    matrices of the blocks             x 1 / sqrt(m)        x 1 / m        x m
    embedding, tied or untied head     as given             as given       as given          logits x 1 / m
    norm gains                         1                    as given       none

This is the form of table 8, in which the output weight keeps its deviation and rate and has a multiplier instead, so
that it can be tied to the embedding. At m = 1 it is the standard parametrization. Some of it is already there:

- A block matrix without ``initializer_range`` is drawn with Xavier's sqrt(2 / (fan_in + fan_out)), which falls as
  1 / sqrt(width) by itself; only a given ``initializer_range`` is multiplied.
- Attention scores are divided by sqrt(head_dim). Widths are to grow by more heads of the same ``head_dim``, with
  ``intermediate_size`` in proportion; then that is a constant, and the table's 1 / head_dim asks for nothing.
- rate x decay, which is what AdamW applies, is the same at all widths.

Adam's epsilon is not scaled, so it must stay far below the gradients. Depth is not carried over: blocks and rounds are
the residual rule's business.

Source: Tensor Programs V, arXiv 2203.03466, table 8 and appendix B; decay as in the authors' package mup (MuAdamW).
"""

from __future__ import annotations

import math

from depthscale.runs.config import RunConfig


def width_ratio(hidden_size: int, base_width: int | None) -> float:
    """m; 1 without a base width.

    Example:
        >>> width_ratio(768, 256), width_ratio(768, None)
        (3.0, 1.0)
    """
    return 1.0 if base_width is None else hidden_size / base_width


def output_multiplier(config: RunConfig) -> float:
    """The factor of the logits, 1 / m."""
    return 1 / width_ratio(config.model.hidden_size, config.train.base_width)


def initializer_range(config: RunConfig) -> float | None:
    """Deviation of a gain-1 block matrix; None, which is Xavier's, stays None."""
    given = config.model.initializer_range
    return None if given is None else given / math.sqrt(width_ratio(config.model.hidden_size, config.train.base_width))

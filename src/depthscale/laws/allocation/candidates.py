"""Shapes that can be built: whole heads, widths in steps of 64, exact parameters and FLOPs from the budget room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from depthscale.budget import ModelShape, count_parameters, flops_per_token, training_state_bytes
from depthscale.errors import ConfigError
from depthscale.plan import DepthPlan

Array = NDArray[np.float64]
WIDTH_STEP = 64


@dataclass(frozen=True)
class ShapeTemplate:
    """What stays the same when width, depth and rounds are chosen.

    Attributes:
        vocab_size: V.
        context_length: T.
        head_dim: width of a head; widths are multiples of it and of 64.
        queries_per_key_value: query heads that share one key-value head.
        num_key_value_heads: the same number at every width, instead of ``queries_per_key_value``.
        mlp_ratio: inner width over width, rounded to a multiple of 64.
        gated: swiglu (three matrices) or gelu (two).
        embeddings_counted: the law's column ``parameters`` holds embedding and head.
    """

    vocab_size: int
    context_length: int
    head_dim: int = 64
    queries_per_key_value: int = 1
    mlp_ratio: float = 8 / 3
    gated: bool = True
    embeddings_counted: bool = False
    num_key_value_heads: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.mlp_ratio < math.inf:
            raise ConfigError(f"MLP ratio came as {self.mlp_ratio!r}; expected a positive number such as 4")

    @property
    def width_step(self) -> int:
        """Every width is a multiple: of 64 and of whole heads in whole groups."""
        return math.lcm(WIDTH_STEP, self.head_dim * (self.num_key_value_heads or self.queries_per_key_value))

    def key_value_heads(self, width: int) -> int | None:
        """Key-value heads at this width; None where it is no whole number of heads and groups."""
        heads, rest = divmod(width, self.head_dim)
        groups, odd = divmod(heads, self.queries_per_key_value)
        if self.num_key_value_heads is not None:
            groups, odd = self.num_key_value_heads, heads % self.num_key_value_heads
        return None if rest or odd or heads < 1 else groups

    def shape(self, width: int, blocks: int, rounds: int = 1) -> ModelShape:
        """The model of this width with ``blocks`` blocks visited ``rounds`` times.

        Raises:
            ConfigError: the width is not a whole number of heads and key-value groups.
        """
        groups = self.key_value_heads(width)
        if groups is None:
            raise ConfigError(
                f"width {width} is no whole number of heads of {self.head_dim}"
                f" in groups of {self.queries_per_key_value}"
            )
        inner = max(round(self.mlp_ratio * width / WIDTH_STEP), 1) * WIDTH_STEP
        return ModelShape(
            plan=DepthPlan.looped(blocks, rounds),
            vocab_size=self.vocab_size,
            hidden_size=width,
            num_attention_heads=width // self.head_dim,
            num_key_value_heads=groups,
            head_dim=self.head_dim,
            intermediate_size=inner,
            mlp="swiglu" if self.gated else "gelu",
            norm_placement="pre",
        )


@dataclass(frozen=True)
class Candidates:
    """Shapes with their tokens, as columns that laws read; every array is [n].

    Attributes:
        width, blocks, rounds: integers.
        parameters: exact, by the template's convention.
        training_flops: per token.
        tokens: what the budget leaves.
        memory: weights, gradients and moments in bytes.
    """

    width: Array
    blocks: Array
    rounds: Array
    parameters: Array
    training_flops: Array
    tokens: Array
    memory: Array

    @property
    def columns(self) -> dict[str, Array]:
        """Under the names of the library's laws; ``depth`` counts visits."""
        return {
            "width": self.width,
            "blocks": self.blocks,
            "rounds": self.rounds,
            "depth": self.blocks * self.rounds,
            "parameters": self.parameters,
            "unrolled_parameters": self.parameters * self.rounds,
            "flops_per_token": self.training_flops,
            "tokens": self.tokens,
        }

    @property
    def flops(self) -> Array:
        """Training FLOPs of the whole run."""
        return self.training_flops * self.tokens

    def take(self, keep: NDArray[np.bool_]) -> Candidates:
        """Some of them."""
        return Candidates(
            self.width[keep],
            self.blocks[keep],
            self.rounds[keep],
            self.parameters[keep],
            self.training_flops[keep],
            self.tokens[keep],
            self.memory[keep],
        )


@dataclass(frozen=True)
class Limits:
    """The budget; at least one of ``flops`` and ``tokens`` is given, since loss falls without end in tokens.

    Attributes:
        flops: training FLOPs of the run; tokens follow from it unless given.
        tokens: tokens of the run.
        parameters: at most.
        memory: bytes of weights, gradients and moments, at most.
        unrolled_parameters: parameters times rounds, at most.
        unrolled_tokens: tokens of the run times rounds, instead of ``tokens``: what more rounds cost is saved there.
        unique_tokens: tokens that exist; more would be repeated, which no law here describes.
    """

    flops: float | None = None
    tokens: float | None = None
    parameters: float | None = None
    memory: float | None = None
    unique_tokens: float | None = None
    unrolled_parameters: float | None = None
    unrolled_tokens: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ConfigError(f"{field.name} came as {value!r}; expected a positive number")
        sized = any(value is not None for value in (self.parameters, self.memory, self.unrolled_parameters))
        if self.flops is None and not (sized and (self.tokens is not None or self.unrolled_tokens is not None)):
            raise ConfigError("the budget is open; expected flops, or tokens with parameters or memory")


def enumerate_candidates(
    template: ShapeTemplate,
    limits: Limits,
    widths: Sequence[int],
    blocks: Sequence[int],
    rounds: Sequence[int] = (1,),
) -> Candidates:
    """All shapes of the grid that the limits allow, each with the tokens it can have.

    Raises:
        ConfigError: none is allowed.
    """
    rows = []
    for width in widths:
        if template.key_value_heads(width) is None:
            continue
        for count in blocks:
            for turns in rounds:
                shape = template.shape(width, count, turns)
                total = count_parameters(shape)
                counted = total.total if template.embeddings_counted else total.non_embedding
                flops = flops_per_token(shape, template.context_length).training
                rows.append((width, count, turns, counted, flops, training_state_bytes(shape).total))
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    parameters, per_token, memory = table[:, 3], table[:, 4], table[:, 5]
    found = Candidates(table[:, 0], table[:, 1], table[:, 2], parameters, per_token, np.zeros(len(table)), memory)
    return within(found, limits)


def within(candidates: Candidates, limits: Limits) -> Candidates:
    """Those that the limits allow, each with the tokens that these limits leave it.

    Raises:
        ConfigError: none is allowed.
    """
    if limits.tokens is not None:
        tokens = np.full(len(candidates.width), limits.tokens)
    elif limits.unrolled_tokens is not None:
        tokens = limits.unrolled_tokens / candidates.rounds
    else:
        tokens = (limits.flops or 0.0) / np.maximum(candidates.training_flops, 1.0)
    found = replace(candidates, tokens=np.minimum(tokens, limits.unique_tokens or math.inf))
    keep = np.ones(len(tokens), dtype=np.bool_)
    if limits.flops is not None:
        keep &= found.flops <= limits.flops * (1 + 1e-9)
    if limits.parameters is not None:
        keep &= found.parameters <= limits.parameters
    if limits.unrolled_parameters is not None:
        keep &= found.parameters * found.rounds <= limits.unrolled_parameters
    if limits.memory is not None:
        keep &= found.memory <= limits.memory
    if not keep.any():
        raise ConfigError("no shape of the grid fits the budget; expected a larger budget or smaller shapes")
    return found.take(keep)

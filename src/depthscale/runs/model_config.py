"""``[plan]`` and ``[model]``: which block is visited when, and what a block is."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from depthscale.plan import DepthPlan, Segment
from depthscale.residual import NormPlacement, ResidualScales, apply_rule, require_placement
from depthscale.runs.config_part import ConfigPart


class PlanConfig(ConfigPart):
    """``[plan]``: which blocks are visited when.

    Attributes:
        kind: ``looped`` (prelude, looped blocks, coda), ``middle_loop`` (the middle half of ``blocks``),
            ``each_repeated`` (every block in place) or ``stacked`` (blocks * rounds distinct blocks, each once:
            the untied control at the same unrolled depth).
        blocks: K, the blocks that loop (of ``middle_loop``: all layers).
        rounds: R.
        prelude, coda: blocks visited once before and after the loop.
        inject: add the loop's input again before every later round.
        grad_rounds: backpropagate through the last rounds only. With fewer than ``rounds`` and without ``inject``,
            nothing before the loop gets a gradient: a prelude keeps its initial weights (and an untied embedding its
            own) in every step that makes more rounds than these.
    """

    kind: Literal["looped", "middle_loop", "each_repeated", "stacked"] = "looped"
    blocks: PositiveInt
    rounds: PositiveInt = 1
    prelude: int = Field(default=0, ge=0)
    coda: int = Field(default=0, ge=0)
    inject: bool = False
    grad_rounds: PositiveInt | None = None

    @model_validator(mode="after")
    def _refuse_what_the_kind_ignores(self) -> Self:
        if self.kind != "looped":
            given = [name for name in ("prelude", "coda", "inject", "grad_rounds") if getattr(self, name)]
            if given:
                raise ValueError(f"plan kind '{self.kind}' ignores {', '.join(given)}; use kind 'looped'")
        return self

    def build(self) -> DepthPlan:
        """The plan these numbers describe."""
        if self.kind == "looped":
            return DepthPlan.looped(
                self.blocks,
                self.rounds,
                prelude=self.prelude,
                coda=self.coda,
                inject=self.inject,
                grad_rounds=self.grad_rounds,
            )
        if self.kind == "middle_loop":
            return DepthPlan.middle_loop(self.blocks, self.rounds)
        if self.kind == "each_repeated":
            return DepthPlan.each_repeated(self.blocks, self.rounds)
        return DepthPlan((Segment(self.blocks * self.rounds),))


class ModelConfig(ConfigPart):
    """``[model]``: shape of a block and the residual rule, by name.

    Attributes:
        intermediate_size: width of the MLP; default 4 * hidden_size for ``gelu``, floor(8/3 * hidden_size) for
            ``swiglu``, which has a third matrix.
        final_norm: norm before the head; default exactly for ``pre``, whose stream is not normalized.
        initializer_range: standard deviation of the initial matrices; default Xavier normal, as DeepNorm.
        stated_rounds: rounds that the rule is told of; default the largest that ``train.rounds`` can draw, else the
            plan's own.
        vocab_size: rows of the embedding; default as many as the tokenizer has entries, and at least so many. Stated,
            a model can be sized before its tokenizer is at hand.
    """

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    norm_placement: NormPlacement = "pre"
    rule: str = "unscaled"
    rule_arguments: dict[str, float] = Field(default_factory=dict)
    qk_norm: bool = False
    embedding_norm: bool = True
    final_norm: bool | None = None
    tie_word_embeddings: bool = True
    rope_theta: PositiveFloat = 10000.0
    rms_norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat | None = None
    embedding_initializer_range: PositiveFloat = 0.02
    stated_rounds: PositiveInt | None = None
    vocab_size: PositiveInt | None = None

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} does not divide"
                f" hidden_size {self.hidden_size}; choose a divisor or set head_dim"
            )
        if self.resolved_head_dim % 2:
            raise ValueError(
                f"heads are {self.resolved_head_dim} wide; rotary positions need an even width:"
                " change num_attention_heads or head_dim"
            )
        if self.num_attention_heads % self.resolved_key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide"
                f" num_attention_heads {self.num_attention_heads}; choose a divisor"
            )
        return self

    @property
    def resolved_head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def resolved_key_value_heads(self) -> int:
        """Key/value heads; as many as query heads unless given."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def resolved_intermediate_size(self) -> int:
        """Width of the MLP."""
        default = 4 * self.hidden_size if self.mlp == "gelu" else 8 * self.hidden_size // 3
        return self.intermediate_size or default

    @property
    def resolved_final_norm(self) -> bool:
        """Whether a norm stands before the head."""
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm

    def scales(self, plan: DepthPlan) -> ResidualScales:
        """The rule's finished numbers for ``plan``, refused where the placement would ignore them."""
        scales = apply_rule(self.rule, plan.counts(), self.rule_arguments)
        require_placement(scales, self.norm_placement)
        return scales

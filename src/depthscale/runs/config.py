"""What a run is made of: one frozen model per part, each part read by the room that owns it.

A run is ``plan`` (which block is visited when), ``model`` (shape and residual rule), ``data`` (text, tokenizer,
rows) and ``train`` (optimizer, schedule, seeds). Unknown keys are errors.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from depthscale.plan import DepthPlan, Segment
from depthscale.residual import NormPlacement, ResidualScales, apply_rule, require_placement

Fraction = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class ConfigPart(BaseModel):
    """Base of every part: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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


class DataConfig(ConfigPart):
    """``[data]``: text, tokenizer and rows.

    Attributes:
        corpus: ``stdlib`` (the Python standard library's own sources), a text or JSONL file, or a folder.
        tokenizer: ``bytes``, ``bpe:N`` (trained on the training split), or a Hub id or path.
        text_field: field of a JSONL record that holds the text.
        context_length: tokens per row.
        tuning_fraction: share of documents on which learning rates are chosen.
        report_fraction: share of documents on which results are reported; never used to choose anything.
        attend_across_documents: whether a token sees earlier documents of its row.
    """

    corpus: str = "stdlib"
    tokenizer: str = "bpe:1024"
    text_field: str = "text"
    context_length: int = Field(default=128, ge=3)
    tuning_fraction: Fraction = 0.05
    report_fraction: Fraction = 0.05
    split_seed: int = 0
    attend_across_documents: bool = False


class RandomRounds(ConfigPart):
    """``[train] rounds``: each optimizer step makes its own number of rounds R; evaluation makes the plan's.

    Attributes:
        distribution: ``poisson_lognormal``, R = 1 + Poisson(e^t) with t normal, of mean ln(mean - 1) - sigma^2 / 2 and
            standard deviation ``sigma``, so that R has the mean ``mean`` before it is clipped; or ``uniform``, every
            whole number from ``minimum`` to ``maximum`` alike.
        mean: mean of R under ``poisson_lognormal``. The paper's r is mean - 1.
        sigma: spread of ln of the Poisson rate; default 0.5, as in the paper.
        minimum, maximum: R is clipped to these; ``maximum`` is 4 * mean if not given.

    Source: Geiping et al., arXiv 2502.05171, section 3.3 (poisson_lognormal).
    """

    distribution: Literal["poisson_lognormal", "uniform"] = "poisson_lognormal"
    mean: float | None = Field(default=None, gt=1)
    sigma: float | None = Field(default=None, ge=0)
    minimum: PositiveInt = 1
    maximum: PositiveInt | None = None

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.distribution == "uniform":
            given = [name for name in ("mean", "sigma") if getattr(self, name) is not None]
            if given:
                raise ValueError(f"distribution 'uniform' ignores {', '.join(given)}; give minimum and maximum")
            if self.maximum is None:
                raise ValueError("distribution 'uniform' came without maximum; expected the largest number of rounds")
        elif self.mean is None:
            raise ValueError("distribution 'poisson_lognormal' came without mean; expected the mean number of rounds")
        elif not self.minimum <= self.mean <= self.resolved_maximum:
            raise ValueError(
                f"mean {self.mean:g} is outside minimum {self.minimum} to maximum {self.resolved_maximum}; widen them"
            )
        if self.minimum > self.resolved_maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.resolved_maximum}; lower it")
        return self

    @property
    def resolved_sigma(self) -> float:
        """Spread of ln of the Poisson rate."""
        return 0.5 if self.sigma is None else self.sigma

    @property
    def resolved_maximum(self) -> int:
        """The most rounds a step can make."""
        if self.maximum is not None:
            return self.maximum
        return math.ceil(4 * (self.mean or 1.0))


class TrainConfig(ConfigPart):
    """``[train]``: optimizer, schedule, seeds and what is logged.

    Attributes:
        steps: optimizer steps.
        batch_rows: rows per forward pass of one process.
        accumulation: forward passes per optimizer step.
        lr: peak learning rate.
        schedule: ``cosine`` to ``min_lr_ratio``, ``wsd`` (flat, then linear over ``decay_fraction``), ``constant``.
        warmup_steps: linear warm-up from 0.
        seed: initial weights. data_seed: order of the rows, and what is drawn for ``rounds``; the same for all arms
            of a comparison.
        rounds: draw the rounds of every step instead of making the plan's; see :class:`RandomRounds`.
        eval_every: steps between evaluations on the tuning split; the last step is always evaluated.
        eval_rows: rows of each evaluation split that are used; None means all.
        checkpoint_every: steps between checkpoints; None means only at the end.
        log_alignment_every: steps between measurements of the visits' alignment, which leave the run as it is, bit for
            bit; None measures nothing.
        divergence_factor: a run whose training loss exceeds this times its first loss has diverged.
        num_threads: CPU threads; one per worker in a study.
    """

    steps: PositiveInt
    batch_rows: PositiveInt
    accumulation: PositiveInt = 1
    lr: PositiveFloat
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    decay_fraction: Fraction = 0.2
    min_lr_ratio: Probability = 0.1
    weight_decay: float = Field(default=0.1, ge=0)
    beta1: Probability = 0.9
    beta2: Probability = 0.95
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat = 1.0
    seed: int = Field(default=0, ge=0)
    data_seed: int = Field(default=0, ge=0)
    rounds: RandomRounds | None = None
    eval_every: PositiveInt | None = None
    eval_rows: PositiveInt | None = None
    checkpoint_every: PositiveInt | None = None
    log_every: PositiveInt = 10
    log_alignment_every: PositiveInt | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    compile_blocks: bool = False
    checkpoint_visits: bool = False
    divergence_factor: float = Field(default=2.0, gt=1)
    tensorboard: bool = False
    num_threads: PositiveInt | None = None

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} is not below steps {self.steps}; shorten it")
        return self


class StartConfig(ConfigPart):
    """``[start]``: continue an earlier checkpoint instead of fresh weights.

    Attributes:
        checkpoint: its folder.
        rescale: use this configuration's plan and skip and branch scales instead of the checkpoint's.
    """

    checkpoint: str
    rescale: bool = False


class RunConfig(ConfigPart):
    """All of one run; ``config.toml`` of a run directory holds it resolved."""

    plan: PlanConfig
    model: ModelConfig
    data: DataConfig = DataConfig()
    train: TrainConfig
    start: StartConfig | None = None

    @model_validator(mode="after")
    def _start_brings_its_tokenizer(self) -> Self:
        if self.start is not None and self.data.tokenizer != self.start.checkpoint:
            raise ValueError(
                f"data.tokenizer '{self.data.tokenizer}' is not that of start.checkpoint; a continued run keeps its"
                f" checkpoint's: set data.tokenizer to '{self.start.checkpoint}'"
            )
        return self

    @model_validator(mode="after")
    def _rounds_can_change(self) -> Self:
        if self.plan.kind == "stacked":
            for name, given in (("train.rounds", self.train.rounds), ("model.stated_rounds", self.model.stated_rounds)):
                if given is not None:
                    raise ValueError(f"plan kind 'stacked' visits every block once; leave out {name}")
        return self

    @model_validator(mode="after")
    def _rule_fits(self) -> Self:
        self.model.scales(self.stated_plan())
        return self

    @property
    def stated_rounds(self) -> int | None:
        """Rounds that the residual rule is told of; None means the plan's own."""
        if self.model.stated_rounds is not None or self.train.rounds is None:
            return self.model.stated_rounds
        return self.train.rounds.resolved_maximum

    def stated_plan(self) -> DepthPlan:
        """The plan whose visits the residual rule counts: the plan itself, or that at the stated rounds."""
        plan = self.plan.build()
        return plan if self.stated_rounds is None else plan.with_rounds(self.stated_rounds)

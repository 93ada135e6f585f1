"""``[train]``: optimizer, schedule, rounds, seeds."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from depthscale.errors import ConfigError
from depthscale.runs.config_part import ConfigPart

Fraction = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


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

    Weight decay is decoupled: a step multiplies a weight by 1 - rate * ``weight_decay``. It acts on matrices and
    embeddings, not on norm gains, and once per step on a tied weight, however often the weight is visited; the tied
    embedding and head are one weight and decay once.

    Attributes:
        steps: optimizer steps.
        batch_rows: rows per forward pass of one process.
        accumulation: forward passes per optimizer step.
        global_batch_rows: rows of an optimizer step over all processes; ``accumulation`` then follows from it,
            ``batch_rows`` and the number of processes.
        optimizer: ``adamw`` for every weight, or ``muon``: torch's Muon on the matrices of the blocks, AdamW on
            embeddings, an untied head and gains. Muon's updates are scaled to AdamW's size (0.2 * sqrt(larger side)),
            so that ``lr`` and ``weight_decay`` serve both.
        muon_momentum: momentum of ``muon``; default 0.95.
        base_width: maximal update parametrization: ``lr``, initial deviations and ``weight_decay`` are those of a
            model of this width, and are carried over to ``hidden_size``; see :mod:`depthscale.training.base_width`.
            None is the standard parametrization.
        lr: peak learning rate.
        schedule: ``cosine`` to ``min_lr_ratio``, ``wsd`` (flat, then linear over ``decay_fraction``), ``constant``.
        warmup_steps: linear warm-up from 0.
        seed: initial weights. data_seed: order of the rows, and what is drawn for ``rounds``; the same for all arms
            of a comparison.
        rounds: draw the rounds of every step instead of making the plan's; see :class:`RandomRounds`.
        eval_every: steps between evaluations on the tuning split; the last step is always evaluated.
        eval_rows: rows of each evaluation split that are used; None means all.
        checkpoint_every: steps between checkpoints; None means only at the end.
        branch_at: steps of the flat part of a ``wsd`` run at which its training state is kept for other runs to branch
            off; see :class:`BranchConfig`.
        log_alignment_every: steps between measurements of the visits' alignment, which leave the run as it is, bit for
            bit; None measures nothing.
        divergence_factor: a run whose training loss exceeds this times its first loss has diverged.
        num_threads: CPU threads; one per worker in a study.
    """

    steps: PositiveInt
    batch_rows: PositiveInt
    accumulation: PositiveInt = 1
    global_batch_rows: PositiveInt | None = None
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_momentum: Probability | None = None
    base_width: PositiveInt | None = None
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
    branch_at: tuple[PositiveInt, ...] = ()
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

    @property
    def stable_until(self) -> int:
        """The step at which the decay of a ``wsd`` run begins."""
        return self.steps - max(1, round(self.decay_fraction * self.steps))

    @model_validator(mode="after")
    def _branches_leave_the_flat_part(self) -> Self:
        if self.branch_at and self.schedule != "wsd":
            raise ValueError(f"schedule '{self.schedule}' has no flat part to branch off; use 'wsd', or no branch_at")
        off = [step for step in self.branch_at if not self.warmup_steps <= step <= self.stable_until]
        if off:
            raise ValueError(
                f"branch_at {off} is not within the flat part, steps {self.warmup_steps} to {self.stable_until}"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> Self:
        if self.optimizer != "muon" and self.muon_momentum is not None:
            raise ValueError("optimizer 'adamw' ignores muon_momentum; leave it out, or set optimizer to 'muon'")
        if self.optimizer == "muon" and self.base_width is not None:
            raise ValueError(
                "base_width carries Adam's rates over widths, and Muon's updates are scaled by their own rule;"
                " leave one of base_width and optimizer = 'muon' out"
            )
        return self

    @model_validator(mode="after")
    def _batch_is_whole(self) -> Self:
        if self.global_batch_rows is None:
            return self
        if self.accumulation != 1:
            raise ValueError(
                f"global_batch_rows came with accumulation {self.accumulation}, which follows from it; leave one out"
            )
        self.accumulation_over(1)
        return self

    @property
    def resolved_muon_momentum(self) -> float:
        """Momentum of ``muon``."""
        return 0.95 if self.muon_momentum is None else self.muon_momentum

    def accumulation_over(self, num_processes: int) -> int:
        """Forward passes per optimizer step and process.

        Raises:
            ConfigError: the global batch is no multiple of what all processes take at once.

        Example:
            >>> train = TrainConfig(steps=1, lr=1.0, batch_rows=12, global_batch_rows=480)
            >>> train.accumulation_over(1), train.accumulation_over(8)
            (40, 5)
        """
        if self.global_batch_rows is None:
            return self.accumulation
        at_once = self.batch_rows * num_processes
        accumulation, rest = divmod(self.global_batch_rows, at_once)
        if rest or not accumulation:
            processes = "1 process" if num_processes == 1 else f"{num_processes} processes"
            share = self.global_batch_rows // num_processes
            whole = self.global_batch_rows % num_processes == 0
            mend = (
                f"choose batch_rows among the divisors of {share}"
                if whole
                else f"{num_processes} processes cannot share {self.global_batch_rows} rows evenly: take another number"
            )
            raise ConfigError(
                f"global_batch_rows {self.global_batch_rows} is no multiple of batch_rows {self.batch_rows}"
                f" x {processes} = {at_once}; {mend}"
            )
        return accumulation

    def rows_per_step(self, num_processes: int) -> int:
        """Rows of one optimizer step, all processes together."""
        return self.batch_rows * self.accumulation_over(num_processes) * num_processes

"""What a run is made of: one frozen model per part, each part read by the room that owns it.

A run is ``plan`` (which block is visited when), ``model`` (shape and residual rule), ``data`` (text, tokenizer,
rows) and ``train`` (optimizer, schedule, seeds). Unknown keys are errors.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from depthscale.plan import DepthPlan
from depthscale.runs.config_part import ConfigPart
from depthscale.runs.data_config import DataConfig
from depthscale.runs.model_config import ModelConfig, PlanConfig
from depthscale.runs.train_config import TrainConfig


class StartConfig(ConfigPart):
    """``[start]``: continue an earlier checkpoint instead of fresh weights.

    Attributes:
        checkpoint: its folder.
        rescale: use this configuration's plan and skip and branch scales instead of the checkpoint's.
    """

    checkpoint: str
    rescale: bool = False


class BranchConfig(ConfigPart):
    """``[branch]``: a ``wsd`` run goes on from another's training state where its own decay begins.

    The result is that of the run made from its first step, bit for bit: it only saves the steps that both share.

    Attributes:
        run: directory of the longer run, relative to this run's own. It keeps the state by ``train.branch_at``.
    """

    run: str


class RunConfig(ConfigPart):
    """All of one run; ``config.toml`` of a run directory holds it resolved."""

    plan: PlanConfig
    model: ModelConfig
    data: DataConfig = DataConfig()
    train: TrainConfig
    start: StartConfig | None = None
    branch: BranchConfig | None = None

    @model_validator(mode="after")
    def _branch_has_a_decay(self) -> Self:
        if self.branch is not None:
            if self.train.schedule != "wsd":
                raise ValueError(
                    f"a branch decays at its end; set train.schedule to 'wsd', not '{self.train.schedule}'"
                )
            if self.train.stable_until < self.train.warmup_steps:
                raise ValueError(
                    f"the decay would begin at step {self.train.stable_until}, within the warm-up of"
                    f" {self.train.warmup_steps}; shorten train.warmup_steps"
                )
        return self

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

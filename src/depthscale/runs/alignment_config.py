"""What a study of visit alignment is made of: arms over rounds, seeds and training steps, and how each is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from depthscale.errors import ConfigError
from depthscale.runs.base_tables import BaseTables
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import merge, validate
from depthscale.runs.config_part import ConfigPart
from depthscale.runs.study_config import Seed

Step = Annotated[int, Field(ge=0)]

#: Rules of the family alpha = (cN)^p, beta = (dN)^-p, by their exponent; ``power`` carries its own.
_EXPONENTS = {"deepnorm": 0.25, "deeploop": 0.5}


class MeasureConfig(ConfigPart):
    """``[measure]``: where along training the visits' alignment is measured, and on what.

    Attributes:
        steps: optimizer steps after which it is measured, 0 for initialization; training ends at the last.
        rows: batch sizes, in rows of the split; the first also serves Adam's update and the one-step changes.
        num_probes: random cotangents behind the norms of U.
        split: that the rows are from.
        optimizer: that the model is trained with; ``sgd`` is plain, at ``train.lr``.
        tokens: ``shuffled`` permutes the tokens of every split, so that only their frequencies are left.
        one_step: steps at which one real SGD and one real AdamW step are taken, measured and undone.
        sgd_lr, adamw_lr: rates of those steps, small enough for the first order to hold.
        power_iterations: behind the operator norms of the one-step bound.
    """

    steps: tuple[Step, ...] = Field(default=(0,), min_length=1)
    rows: tuple[PositiveInt, ...] = Field(default=(4,), min_length=1)
    num_probes: PositiveInt = 2
    split: str = "tuning"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    tokens: Literal["text", "shuffled"] = "text"
    one_step: tuple[Step, ...] = ()
    sgd_lr: PositiveFloat = 1e-2
    adamw_lr: PositiveFloat = 1e-4
    power_iterations: PositiveInt = 10

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, values in (("steps", self.steps), ("rows", self.rows), ("one_step", self.one_step)):
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} {list(values)} came unsorted or repeated; list each once, ascending")
        missing = sorted(set(self.one_step) - set(self.steps))
        if missing:
            raise ValueError(f"one_step {missing} are not among steps {list(self.steps)}; measure there too")
        return self


class AlignmentRun(RunConfig):
    """One cell of a study: a run, and where along it alignment is measured.

    Attributes:
        arm: how reports name it.
    """

    arm: str = "run"
    measure: MeasureConfig

    @model_validator(mode="after")
    def _can_be_measured(self) -> Self:
        if self.measure.steps[-1] > self.train.steps:
            raise ValueError(f"measure.steps end at {self.measure.steps[-1]}, after train.steps {self.train.steps}")
        if self.measure.one_step and self.plan.kind == "stacked":
            raise ValueError("measure.one_step needs shared blocks; leave it out where plan.kind is 'stacked'")
        if self.train.rounds is not None or self.start is not None:
            raise ValueError("alignment along training starts from fresh weights at fixed rounds; leave the others out")
        return self

    @property
    def exponent(self) -> float | None:
        """p of the rule alpha = (cN)^p, beta = (dN)^-p; None where the rule is not of that family."""
        return self.model.rule_arguments.get("p") if self.model.rule == "power" else _EXPONENTS.get(self.model.rule)


class AlignmentArm(ConfigPart):
    """One arm: what it changes in the base tables, and where it is measured at fewer rounds or seeds.

    Attributes:
        varies: what this arm changes of the study's base arm, for the one-at-a-time table; None leaves it out there.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.]+$")
    varies: str | None = None
    plan: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)
    measure: dict[str, Any] = Field(default_factory=dict)
    rounds: tuple[PositiveInt, ...] | None = None
    seeds: tuple[Seed, ...] | None = None


class AlignmentStudy(ConfigPart):
    """``[study]`` of an alignment study; the base run and ``[measure]`` stand beside it.

    Attributes:
        base: the arm that the one-at-a-time table starts from.
        last_step: by number of rounds, the last step that is measured there, since many rounds cost much.
        table_rounds: R of the one-at-a-time table.
        level: of every interval.
    """

    name: str
    arms: tuple[AlignmentArm, ...] = Field(min_length=1)
    base: str
    rounds: tuple[PositiveInt, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    last_step: dict[str, Step] = Field(default_factory=dict)
    table_rounds: PositiveInt
    level: float = Field(default=0.95, gt=0.5, lt=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        lists: dict[str, Sequence[object]] = {"arms": names, "rounds": self.rounds, "seeds": self.seeds}
        for arm in self.arms:
            lists |= {f"rounds of arm '{arm.name}'": arm.rounds or (), f"seeds of arm '{arm.name}'": arm.seeds or ()}
        for label, values in lists.items():
            if len(set(values)) != len(values):
                raise ValueError(f"{label} {list(values)} repeat; name each once")
        if self.base not in names:
            raise ValueError(f"base '{self.base}' is not among the arms {names}")
        odd = [text for text in self.last_step if not text.isdecimal()]
        if odd:
            raise ValueError(f"last_step came with {odd}; expected numbers of rounds, such as {{16 = 50}}")
        return self


class AlignmentStudyFile(BaseTables):
    """A whole file: the base run's tables, how it is measured, and the study."""

    measure: dict[str, Any] = Field(default_factory=dict)
    study: AlignmentStudy

    @model_validator(mode="after")
    def _every_cell_is_a_run(self) -> Self:
        try:
            self.cells()
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    def cells(self) -> list[AlignmentRun]:
        """Every cell, seed by seed, so that an early look at a half-made study holds whole arms."""
        seeds = dict.fromkeys(seed for arm in self.study.arms for seed in self._seeds(arm))
        return [
            self.cell(arm.name, rounds, seed)
            for seed in seeds
            for arm in self.study.arms
            if seed in self._seeds(arm)
            for rounds in arm.rounds or self.study.rounds
        ]

    def _seeds(self, arm: AlignmentArm) -> tuple[Seed, ...]:
        return arm.seeds or self.study.seeds

    def cell(self, arm: str, rounds: int, seed: int) -> AlignmentRun:
        """One arm at a number of rounds; the seed sets initial weights and the order of the rows."""
        chosen = next(found for found in self.study.arms if found.name == arm)
        parts = ("plan", "model", "data", "train", "measure")
        tables: dict[str, Any] = {"arm": arm}
        merge(tables, {part: getattr(self, part) for part in parts})
        merge(tables, {part: getattr(chosen, part) for part in parts if part != "data"})
        merge(tables, {"plan": {"rounds": rounds}, "train": {"seed": seed, "data_seed": seed}})
        last = self.study.last_step.get(str(rounds))
        source = f"arm '{arm}' at {rounds} rounds"
        cell = validate(AlignmentRun, tables, source)
        if last is None:
            return cell
        kept = {name: [s for s in getattr(cell.measure, name) if s <= last] for name in ("steps", "one_step")}
        if not kept["steps"]:
            raise ConfigError(f"{source}: last_step {last} leaves no step of {list(cell.measure.steps)}; raise it")
        merge(tables, {"measure": kept})
        return validate(AlignmentRun, tables, source)

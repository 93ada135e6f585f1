"""What a study is made of: arms laid over one base run, the seeds, and how learning rates are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from depthscale.errors import ConfigError
from depthscale.runs.config import ConfigPart, DataConfig, RunConfig
from depthscale.runs.config_file import merge, validate

Seed = Annotated[int, Field(ge=0)]


class ArmConfig(ConfigPart):
    """One arm: a name and whatever it changes in the base run's ``plan``, ``model`` and ``train``."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.]+$")
    plan: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)


class CellRate(ConfigPart):
    """The learning rate of one cell (arm at a number of rounds), where it was chosen, and whether at a grid's edge."""

    arm: str
    rounds: PositiveInt
    lr: PositiveFloat
    source: str
    at_edge: bool = False


class TuningConfig(ConfigPart):
    """How a cell's learning rate is chosen: the best mean loss on the *tuning* split over a grid.

    Attributes:
        seeds: seeds of the tuning runs; they must not be seeds of the study.
        grid: learning rates; a best rate at the edge extends the grid by its own ratio.
        max_extensions: how often a grid may be extended before the edge is reported instead.
    """

    seeds: tuple[Seed, ...] = Field(min_length=1)
    grid: tuple[PositiveFloat, ...] = Field(min_length=2)
    max_extensions: int = Field(default=3, ge=0)


class StudyConfig(ConfigPart):
    """``[study]`` of a study file; the base run stands beside it in ``[plan]``, ``[model]``, ``[data]``, ``[train]``.

    Attributes:
        arms: at least one; an arm's tables are laid over the base run's.
        baseline: the arm that the others are paired with.
        rounds: R of the cells; every arm runs at each.
        seeds: seeds of the reported runs; all arms share them, and so share the order of the data.
        rates: chosen learning rate per cell; a cell that is absent keeps the base run's ``train.lr``.
        equivalence_margin: nats within which two arms count as equal.
        confidence: level of every interval.
        tasks: downstream tasks that every finished run is asked, such as ``local``; none unless given.
    """

    name: str
    arms: tuple[ArmConfig, ...] = Field(min_length=1)
    baseline: str
    rounds: tuple[PositiveInt, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    rates: tuple[CellRate, ...] = ()
    tuning: TuningConfig | None = None
    equivalence_margin: PositiveFloat = 0.02
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    tasks: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        distinct: dict[str, Sequence[object]] = {"arms": names, "rounds": self.rounds, "seeds": self.seeds}
        if self.tuning:
            distinct |= {"tuning.grid": self.tuning.grid, "tuning.seeds": self.tuning.seeds}
        for label, values in distinct.items():
            if len(set(values)) != len(values):
                raise ValueError(f"{label} {list(values)} repeat; name each once")
        if self.baseline not in names:
            raise ValueError(f"baseline '{self.baseline}' is not among the arms {names}")
        for rate in self.rates:
            if rate.arm not in names:
                raise ValueError(f"a rate is given for arm '{rate.arm}', which is not among {names}")
            if rate.rounds not in self.rounds:
                raise ValueError(f"a rate is given for {rate.rounds} rounds, which are not among {list(self.rounds)}")
        if self.tuning and set(self.tuning.seeds) & set(self.seeds):
            raise ValueError(f"tuning seeds {list(self.tuning.seeds)} overlap the study's {list(self.seeds)}")
        return self

    def arm(self, name: str) -> ArmConfig:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


class StudyFile(ConfigPart):
    """A whole study file: the base run's tables and the study."""

    plan: dict[str, Any]
    model: dict[str, Any]
    data: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any]
    study: StudyConfig

    @model_validator(mode="after")
    def _every_cell_is_a_run(self) -> Self:
        for arm in self.study.arms:
            for rounds in self.study.rounds:
                try:
                    self.run_config(arm.name, rounds, seed=self.study.seeds[0])
                except ConfigError as error:
                    raise ValueError(str(error)) from error
        return self

    def data_config(self) -> DataConfig:
        """The data of every run: arms change the model and its training, not the text."""
        return validate(DataConfig, self.data, "data")

    def cell_rate(self, arm: str, rounds: int) -> CellRate | None:
        """The chosen learning rate of a cell, if one is given."""
        return next((r for r in self.study.rates if (r.arm, r.rounds) == (arm, rounds)), None)

    def run_config(self, arm: str, rounds: int, seed: int, lr: float | None = None) -> RunConfig:
        """The resolved configuration of one run.

        The seed sets both the initial weights and the order of the rows, so that runs of two arms with one seed
        are a pair. The learning rate is ``lr``, else the cell's chosen rate, else the arm's or base run's own.
        """
        tables: dict[str, Any] = {}
        for patch in (
            {"plan": self.plan, "model": self.model, "data": self.data, "train": self.train},
            {part: getattr(self.study.arm(arm), part) for part in ("plan", "model", "train")},
            {"plan": {"rounds": rounds}, "train": {"seed": seed, "data_seed": seed}},
        ):
            merge(tables, patch)
        chosen = self.cell_rate(arm, rounds)
        if lr is not None or chosen is not None:
            merge(tables, {"train": {"lr": lr if lr is not None else chosen.lr if chosen else None}})
        return validate(RunConfig, tables, f"arm '{arm}' at {rounds} rounds")

"""What a study is made of: arms laid over one base run, the seeds, and how learning rates are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from depthscale.errors import ConfigError
from depthscale.runs.base_tables import BaseTables
from depthscale.runs.comparison_config import CellKey, CellName, ComparisonConfig, MatchConfig
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import merge, validate
from depthscale.runs.config_part import ConfigPart

Seed = Annotated[int, Field(ge=0)]


class ArmConfig(ConfigPart):
    """One arm, a whole model: a name and whatever it changes in the base run's ``plan``, ``model`` and ``train``.

    Attributes:
        rounds: R of this arm's cells; default the study's.
        match: its steps are those that spend as much as another cell; such an arm has one number of rounds.
        weight_seed_shift: added to the seed of the initial weights, not to that of the data order. An arm that
            differs from another in nothing else is an A/A arm: both differ only by chance, and must not be told apart.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.]+$")
    plan: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)
    rounds: tuple[PositiveInt, ...] | None = Field(default=None, min_length=1)
    match: MatchConfig | None = None
    weight_seed_shift: int = Field(default=0, ge=0)

    @property
    def waits_for_match(self) -> bool:
        """Whether its steps are still to be computed."""
        return self.match is not None and "steps" not in self.train


class CellRate(ConfigPart):
    """The learning rate of one cell (arm at a number of rounds), where it was chosen, and whether at a grid's edge.

    So for its weight decay, where that was chosen too.
    """

    arm: str
    rounds: PositiveInt
    lr: PositiveFloat
    weight_decay: NonNegativeFloat | None = None
    source: str
    at_edge: bool = False
    weight_decay_at_edge: bool = False


class TuningConfig(ConfigPart):
    """How a cell's learning rate is chosen: the best mean loss on the *tuning* split over a grid.

    Attributes:
        seeds: seeds of the tuning runs; they must not be seeds of the study.
        grid: learning rates; a best rate at either edge extends the grid by its own ratio.
        weight_decays: tried at the best rate, if given, two or more; extended at either edge like the rates (0 is an
            end, no edge).
        max_extensions: how often a grid may be extended before the edge is reported instead. Where one cell's grid is
            extended, every other cell gets as many more runs, beside its best: all cells are tuned with equal effort.
            Cells that were added later are tuned among themselves, and change no rate that was chosen before.
        budget: which of the study's budgets rates are chosen at; default the largest.
    """

    seeds: tuple[Seed, ...] = Field(min_length=1)
    grid: tuple[PositiveFloat, ...] = Field(min_length=2)
    weight_decays: tuple[NonNegativeFloat, ...] = ()
    max_extensions: int = Field(default=3, ge=0)
    budget: PositiveInt | None = None


class StudyConfig(ConfigPart):
    """``[study]`` of a study file; the base run stands beside it in ``[plan]``, ``[model]``, ``[data]``, ``[train]``.

    Attributes:
        arms: at least one; an arm's tables are laid over the base run's.
        baseline: the arm that the others are paired with.
        rounds: R of the cells; every arm runs at each, unless it names its own.
        seeds: seeds of the reported runs; all arms share them, and so share the order of the data.
        budgets: several lengths of training, in steps of the base run; default only ``train.steps``. Under the ``wsd``
            schedule the shorter ones are decay branches of the longest run.
        rates: chosen learning rate per cell; a cell that is absent keeps the base run's ``train.lr``.
        comparisons: named before the study runs, each on its own terms.
        equivalence_margin: nats within which two arms count as equal.
        confidence: level of every interval.
        tasks: downstream tasks that every finished run is asked, such as ``local``; none unless given.
    """

    name: str
    arms: tuple[ArmConfig, ...] = Field(min_length=1)
    baseline: str
    rounds: tuple[PositiveInt, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    budgets: tuple[PositiveInt, ...] = ()
    rates: tuple[CellRate, ...] = ()
    tuning: TuningConfig | None = None
    comparisons: tuple[ComparisonConfig, ...] = ()
    equivalence_margin: PositiveFloat = 0.02
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    tasks: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        distinct: dict[str, Sequence[object]] = {
            "arms": names, "rounds": self.rounds, "seeds": self.seeds, "budgets": self.budgets,
        }  # fmt: skip
        distinct |= {f"rounds of arm '{arm.name}'": arm.rounds for arm in self.arms if arm.rounds}
        if self.tuning:
            decays = self.tuning.weight_decays
            distinct |= {
                "tuning.grid": self.tuning.grid, "tuning.seeds": self.tuning.seeds, "tuning.weight_decays": decays,
            }  # fmt: skip
        for label, values in distinct.items():
            if len(set(values)) != len(values):
                raise ValueError(f"{label} {list(values)} repeat; name each once")
        if self.baseline not in names:
            raise ValueError(f"baseline '{self.baseline}' is not among the arms {names}")
        for rate in self.rates:
            self._require_cell("a rate is given for", rate.arm, rate.rounds)
        for arm in self.arms:
            if arm.match:
                self._require_cell(f"arm '{arm.name}' matches", arm.match.arm, arm.match.rounds)
                if self.arm(arm.match.arm).match:
                    raise ValueError(f"arm '{arm.name}' matches '{arm.match.arm}', which itself matches another arm")
                if len(arm.rounds or self.rounds) != 1:
                    raise ValueError(f"arm '{arm.name}' matches a cell and so needs rounds of its own, exactly one")
        for comparison in self.comparisons:
            for cell in (*comparison.a, *comparison.b):
                self._require_cell(f"a comparison of {comparison.terms} names", cell.arm, cell.rounds)
        if self.tuning and set(self.tuning.seeds) & set(self.seeds):
            raise ValueError(f"tuning seeds {list(self.tuning.seeds)} overlap the study's {list(self.seeds)}")
        if self.tuning and self.tuning.budget and self.tuning.budget not in self.budgets:
            raise ValueError(f"tuning.budget {self.tuning.budget} is not among study.budgets {list(self.budgets)}")
        return self

    def _require_cell(self, what: str, arm: str, rounds: int) -> None:
        names = [known.name for known in self.arms]
        if arm not in names:
            raise ValueError(f"{what} arm '{arm}', which is not among {names}")
        if rounds not in (own := self.rounds_of(arm)):
            raise ValueError(f"{what} {rounds} rounds of arm '{arm}', which are not among {list(own)}")

    def arm(self, name: str) -> ArmConfig:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def rounds_of(self, arm: str) -> tuple[int, ...]:
        """R of the cells of one arm."""
        return self.arm(arm).rounds or self.rounds

    def cells(self) -> list[CellKey]:
        """Every cell, in the study's order."""
        return [
            CellKey(arm.name, rounds, budget)
            for arm in self.arms
            for rounds in self.rounds_of(arm.name)
            for budget in self.budgets or (None,)
        ]


class StudyFile(BaseTables):
    """A whole study file: the base run's tables and the study."""

    study: StudyConfig

    @model_validator(mode="after")
    def _every_cell_is_a_run(self) -> Self:
        for cell in self.study.cells():
            try:
                self.cell_config(cell, seed=self.study.seeds[0])
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return self

    def with_study(self, **changes: Any) -> Self:
        """The file with other values in its ``[study]`` table, taken as they are."""
        return self.model_copy(update={"study": self.study.model_copy(update=changes)})

    def cell_rate(self, arm: str, rounds: int) -> CellRate | None:
        """The chosen learning rate of a cell, if one is given."""
        return next((r for r in self.study.rates if (r.arm, r.rounds) == (arm, rounds)), None)

    def run_config(self, arm: str, rounds: int, seed: int, lr: float | None = None) -> RunConfig:
        """:meth:`cell_config` of a study with one budget."""
        return self.cell_config(CellKey(arm, rounds), seed, lr)

    def cell_config(
        self, cell: CellKey, seed: int, lr: float | None = None, weight_decay: float | None = None
    ) -> RunConfig:
        """The resolved configuration of one run.

        The seed sets both the initial weights and the order of the rows, so that runs of two arms with one seed
        are a pair. Learning rate and weight decay are those given, else the cell's chosen ones, else the arm's or the
        base run's own. At one of several budgets an arm's steps shrink or grow as the base run's do.

        Raises:
            ConfigError: the tables make no run, such as one whose steps do not reach beyond its warm-up.
        """
        chosen = self.cell_rate(cell.arm, cell.rounds)
        arm = self.study.arm(cell.arm)
        optimizer = {
            "lr": lr if lr is not None or chosen is None else chosen.lr,
            "weight_decay": weight_decay if weight_decay is not None or chosen is None else chosen.weight_decay,
        }
        tables: dict[str, Any] = {}
        for patch in (
            {"plan": self.plan, "model": self.model, "data": self.data, "train": self.train},
            {part: getattr(arm, part) for part in ("plan", "model", "train")},
            {"plan": {"rounds": cell.rounds}, "train": {"seed": seed + arm.weight_seed_shift, "data_seed": seed}},
            {"train": {name: value for name, value in optimizer.items() if value is not None}},
        ):
            merge(tables, patch)
        if cell.budget is not None and "steps" in self.train:
            tables["train"]["steps"] = round(tables["train"]["steps"] * cell.budget / self.train["steps"])
        where = f"arm '{cell.arm}' at {cell.rounds} rounds" + (f", budget {cell.budget}" if cell.budget else "")
        config = validate(RunConfig, tables, where)
        train = config.train
        if cell.budget and train.schedule == "wsd" and train.stable_until < train.warmup_steps:
            raise ConfigError(
                f"{where}: its decay would begin at step {train.stable_until}, within the warm-up of"
                f" {train.warmup_steps}; raise the budget, or shorten train.warmup_steps"
            )
        return config


__all__ = [
    "ArmConfig",
    "CellKey",
    "CellName",
    "CellRate",
    "ComparisonConfig",
    "MatchConfig",
    "Seed",
    "StudyConfig",
    "StudyFile",
    "TuningConfig",
]

"""Settings of one toy job and of a study of them: TOML in the shape of these models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from depthscale.runs.presets import packaged_presets, read_preset_or_file
from depthscale.toy.shapes import StudentShape

LossKind = Literal["mse", "kl_own_head", "kl_teacher_head"]
Schedule = Literal["constant", "flat_then_linear"]
Value = TypeVar("Value")


def teacher_kind(rho: float) -> str:
    """How reports name a teacher.

    Example:
        >>> teacher_kind(0.0), teacher_kind(0.5), teacher_kind(1.0)
        ('independent', 'correlated 0.5', 'tied')
    """
    return {0.0: "independent", 1.0: "tied"}.get(rho, f"correlated {rho:g}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TeacherConfig(_Part):
    """Teachers of one kind; the defaults are the paper's."""

    rho: float = Field(ge=0, le=1, description="correlation of neighboring blocks: 0 independent, 1 tied")
    blocks: int = Field(128, ge=2)
    width: int = Field(32, ge=2)
    hidden: int = Field(128, ge=1)
    classes: int = Field(128, ge=2)
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def kind(self) -> str:
        """How reports name it."""
        return teacher_kind(self.rho)

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or min(seeds) < 0:
            raise ValueError(f"seeds came as {list(seeds)}; expected at least one whole number of 0 or more")
        return _distinct("seeds", seeds)


class StudentsConfig(_Part):
    """Students of one family, one for each depth.

    ``depths`` are blocks of a plain family; a looped one has ``blocks`` distinct ones and as many rounds as reach them.
    """

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    depths: tuple[int, ...] = Field(min_length=1)
    order: Literal[1, 2] = 1
    blocks: int | None = Field(None, ge=1)
    rule: str = "unscaled"
    rule_arguments: dict[str, float] = Field(default_factory=dict)
    rate_factors: tuple[float, ...] = (1.0,)

    @field_validator("depths")
    @classmethod
    def _positive_depths(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        if min(depths) < 1:
            raise ValueError(f"a depth of {min(depths)} came; expected whole numbers of at least 1")
        return _distinct("depths", tuple(sorted(depths)))

    @field_validator("rate_factors")
    @classmethod
    def _positive_factors(cls, factors: tuple[float, ...]) -> tuple[float, ...]:
        if not factors or min(factors) <= 0:
            raise ValueError("expected at least one positive factor on the learning rate")
        return _distinct("rate factors", factors)

    @model_validator(mode="after")
    def _whole_rounds(self) -> StudentsConfig:
        for depth in self.depths:
            if self.blocks is not None and depth % self.blocks:
                raise ValueError(f"depth {depth} is no whole number of rounds of {self.blocks} blocks")
            self.shape(depth)
        return self

    def shape(self, depth: int) -> StudentShape:
        """The student of one depth."""
        blocks = depth if self.blocks is None else self.blocks
        return StudentShape(blocks, depth // blocks, self.order, self.rule, self.rule_arguments)


class LossConfig(_Part):
    """What students are trained on."""

    kind: LossKind
    temperatures: tuple[float, ...] = (1.0,)

    @field_validator("temperatures")
    @classmethod
    def _positive_temperatures(cls, temperatures: tuple[float, ...]) -> tuple[float, ...]:
        for temperature in temperatures:
            if temperature <= 0:
                raise ValueError(f"a temperature of {temperature:g} came; expected positive numbers")
        if not temperatures:
            raise ValueError("no temperature came; expected at least one positive number")
        return _distinct("temperatures", temperatures)

    @model_validator(mode="after")
    def _one_for_mse(self) -> LossConfig:
        if self.kind == "mse" and self.temperatures != (1.0,):
            raise ValueError("temperatures have no meaning for kind 'mse'; leave them out")
        return self


class TrainConfig(_Part):
    """Adam without weight decay on fresh inputs."""

    steps: int = Field(ge=1)
    batch: int = Field(1024, ge=1)
    rate: float = Field(gt=0)
    rate_exponent: float = Field(0.0, ge=0, description="rate times depth to minus this")
    schedule: Schedule = "constant"
    flat_share: float = Field(0.8, ge=0, lt=1, description="of flat_then_linear: share of the steps at the full rate")
    final_rate: float = Field(0.1, gt=0, le=1, description="of flat_then_linear: what the rate ends at, as a share")
    milestones: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    data_seed: int = 0
    test_batches: int = Field(10, ge=1)
    test_batch: int = Field(1024, ge=1)
    checkpoint_seconds: float = Field(120.0, gt=0)

    @model_validator(mode="after")
    def _sound(self) -> TrainConfig:
        if any(not 1 <= m < self.steps for m in self.milestones):
            raise ValueError(f"milestones came as {list(self.milestones)}; expected steps below {self.steps}")
        _distinct("milestones", self.milestones)
        _distinct("seeds", self.seeds)
        if not self.seeds or min(*self.seeds, self.data_seed) < 0:
            raise ValueError("seeds came empty or negative; expected whole numbers of 0 or more")
        return self

    @property
    def ends(self) -> tuple[int, ...]:
        """Every number of steps that a result is given for, in order; the last is ``steps``."""
        return (*sorted(self.milestones), self.steps)

    def rate_at(self, step: int, end: int) -> float:
        """Learning rate of a run of ``end`` steps at ``step``, before factors of depth.

        Source: arXiv 2602.05970's code, with the defaults: flat for 80 %, then linear to a tenth.
        """
        flat = self.flat_share * end
        if self.schedule == "constant" or step < flat:
            return self.rate
        return self.rate * ((end - step) / (end - flat) * (1 - self.final_rate) + self.final_rate)

    def first_decayed(self, end: int) -> int:
        """The first step of a run of ``end`` steps that a longer run does not share."""
        if self.schedule == "constant" or self.final_rate == 1:
            return end
        return next(
            (step for step in range(int(self.flat_share * end), end) if self.rate_at(step, end) != self.rate), end
        )

    def branches(self) -> dict[int, list[int]]:
        """Milestones by the step at which their runs leave the longest one; close ones may leave it together."""
        found: dict[int, list[int]] = {}
        for end in self.ends[:-1]:
            found.setdefault(self.first_decayed(end), []).append(end)
        return found


class ToyJob(_Part):
    """One teacher kind, one loss, and the students that learn from it side by side."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    teacher: TeacherConfig
    loss: LossConfig
    train: TrainConfig
    students: tuple[StudentsConfig, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> ToyJob:
        _distinct("names of students", tuple(family.name for family in self.students))
        return self

    @property
    def num_replicates(self) -> int:
        """Replicates of every student: teachers times temperatures times seeds."""
        return len(self.teacher.seeds) * len(self.loss.temperatures) * len(self.train.seeds)

    @property
    def block_updates(self) -> int:
        """Updates of one MLP that a step makes, a teacher's block counted as a third: what its time goes with."""
        visits = sum(
            family.shape(depth).depth * family.order * len(family.rate_factors)
            for family in self.students
            for depth in family.depths
        )
        return visits * self.num_replicates + self.teacher.blocks * len(self.teacher.seeds) // 3


class ToyStudy(_Part):
    """Jobs that one report is made of.

    ``depths_per_job`` splits every case into jobs of that many depths; None keeps a case together, which shares the
    teacher's pass between all of them.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    depths_per_job: int | None = Field(None, ge=1)
    cases: tuple[ToyJob, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> ToyStudy:
        _distinct("names of cases", tuple(case.name for case in self.cases))
        _distinct("names of jobs", tuple(name for name, _ in self._named_jobs()))
        return self

    def jobs(self) -> dict[str, ToyJob]:
        """Every job by the name of its directory, in the order of the cases."""
        return dict(self._named_jobs())

    def _named_jobs(self) -> Iterator[tuple[str, ToyJob]]:
        for case in self.cases:
            if self.depths_per_job is None:
                yield case.name, case
                continue
            for family in case.students:
                for start in range(0, len(family.depths), self.depths_per_job):
                    depths = family.depths[start : start + self.depths_per_job]
                    part = family.model_copy(update={"depths": depths})
                    name = f"{case.name}-{family.name}-{'-'.join(map(str, depths))}"
                    yield name, case.model_copy(update={"students": (part,)})


def presets() -> Mapping[str, Path]:
    """The studies that come with the package, by name."""
    return packaged_presets("depthscale.toy")


def read_study(source: str, overrides: list[str]) -> ToyStudy:
    """A study by preset name or path.

    Raises:
        ConfigError: unknown preset (the nearest is suggested), missing file, or a fault in it.
    """
    return read_preset_or_file(ToyStudy, source, presets(), overrides)


def _distinct(what: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    if len(set(values)) != len(values):
        raise ValueError(f"{what} came as {list(values)}; expected each once")
    return values

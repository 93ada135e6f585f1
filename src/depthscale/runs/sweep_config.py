"""What an exponent sweep is made of: one base run, the exponents and rates laid over it, and when seeds are added."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from depthscale.errors import ConfigError
from depthscale.runs.base_tables import BaseTables
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import merge, validate
from depthscale.runs.config_part import ConfigPart
from depthscale.runs.study_config import ArmConfig, Seed

#: Name of the arm ``power(p)`` at a threshold that was measured elsewhere.
THRESHOLD_ARM = "power_threshold"


class SweepConfig(ConfigPart):
    """``[sweep]`` of a sweep file; the base run stands beside it in ``[plan]``, ``[model]``, ``[data]``, ``[train]``.

    Attributes:
        exponents: values of p of the rule ``power``, ascending.
        rates: learning rates; every exponent and arm runs at each.
        main_rate: the rate at which seeds are added near the edge and steps are doubled; one of ``rates``, chosen
            before the sweep on an arm that the sweep does not judge.
        seeds: of initial weights and data order, the same for all exponents and arms.
        extra_seeds: added, at the main rate, to exponents near the edge that the first seeds show.
        max_near: at most so many exponents count as near the edge.
        longer: factor on the steps of the check, made with ``seeds`` at the main rate near the edge; None makes none.
        arms: what else stands in the table; an arm's tables are laid over the base run's.
        confidence: level of every interval.
    """

    name: str
    exponents: tuple[float, ...] = Field(min_length=2)
    rates: tuple[PositiveFloat, ...] = Field(min_length=1)
    main_rate: PositiveFloat
    seeds: tuple[Seed, ...] = Field(min_length=1)
    extra_seeds: tuple[Seed, ...] = ()
    max_near: PositiveInt = 3
    longer: PositiveInt | None = Field(default=2, ge=2)
    arms: tuple[ArmConfig, ...] = ()
    confidence: float = Field(default=0.95, gt=0.5, lt=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for label in ("exponents", "rates"):
            values = list(getattr(self, label))
            if values != sorted(set(values)):
                raise ValueError(f"{label} came as {values}; expected each once, ascending")
        seeds = [*self.seeds, *self.extra_seeds]
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds and extra_seeds {seeds} repeat; name each once")
        if self.main_rate not in self.rates:
            raise ValueError(f"main_rate {self.main_rate:g} is not among the rates {list(self.rates)}")
        names = [arm.name for arm in self.arms]
        taken = {THRESHOLD_ARM, *(exponent_arm(p) for p in self.exponents)}
        if len(set(names)) != len(names) or taken & set(names):
            raise ValueError(f"arms {names} repeat, or bear a name that the sweep gives itself; rename them")
        return self


class SweepFile(BaseTables):
    """A whole sweep file: the base run's tables and the sweep."""

    sweep: SweepConfig

    @model_validator(mode="after")
    def _every_run_is_valid(self) -> Self:
        try:
            for p in self.sweep.exponents:
                self.exponent_run(p, self.sweep.main_rate, self.sweep.seeds[0])
            for arm in self.sweep.arms:
                self.arm_run(arm, self.sweep.main_rate, self.sweep.seeds[0])
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    def exponent_run(self, p: float, lr: float, seed: int, step_factor: int = 1) -> RunConfig:
        """The run of ``power(p)`` at one rate and seed; schedule and warm-up stretch with ``step_factor``."""
        rule = {"rule": "power", "rule_arguments": {"p": p}}
        return self._run(ArmConfig(name=exponent_arm(p), model=rule), lr, seed, step_factor)

    def arm_run(self, arm: ArmConfig, lr: float, seed: int) -> RunConfig:
        """The run of another arm at one rate and seed."""
        return self._run(arm, lr, seed, 1)

    def _run(self, arm: ArmConfig, lr: float, seed: int, step_factor: int) -> RunConfig:
        tables: dict[str, Any] = {}
        merge(tables, {"plan": self.plan, "model": self.model, "data": self.data, "train": self.train})
        merge(tables, {"plan": arm.plan, "model": arm.model, "train": arm.train})
        merge(tables, {"train": {"lr": lr, "seed": seed, "data_seed": seed}})
        config = validate(RunConfig, tables, f"arm '{arm.name}'")
        stretched = {name: getattr(config.train, name) * step_factor for name in ("steps", "warmup_steps")}
        return config.model_copy(update={"train": config.train.model_copy(update=stretched)})


def exponent_arm(p: float) -> str:
    """Name of the arm ``power(p)``.

    Example:
        >>> exponent_arm(0.25), exponent_arm(0.5)
        ('p0.25', 'p0.5')
    """
    return f"p{p:g}"

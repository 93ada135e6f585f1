"""A sweep's directory as plain data: its plan, what was added to it and why, and how every run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate
from depthscale.runs.layout import METRICS_FILE, RUNS, STUDY_FILE
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result, result_path
from depthscale.runs.study_config import ArmConfig
from depthscale.runs.study_json import read_study_json
from depthscale.runs.sweep_config import THRESHOLD_ARM, SweepFile, exponent_arm

SWEEP_KIND = "sweep_study"
SWEEP_SCHEMA_VERSION = 1

#: Why seeds and longer runs were added; see :mod:`depthscale.studies.sweep`.
NEAR_EDGE, LONGER, THRESHOLD = "near_edge", "longer", "threshold"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its directory's name, and what it is.

    Attributes:
        arm: name, ``p0.25`` and so on for the rule ``power``.
        p: exponent, None for arms that have none.
        step_factor: 1, or the factor of the longer check.
        added: why it was added after first results, or None for a run of the original grid.
    """

    arm: str
    p: float | None
    lr: float
    seed: int
    step_factor: int
    added: str | None
    config: RunConfig

    @property
    def name(self) -> str:
        """Name of its directory inside ``runs/``."""
        longer = f"-x{self.step_factor}" if self.step_factor > 1 else ""
        return f"{self.arm}-lr{self.lr:g}-s{self.seed}{longer}"


@dataclass(frozen=True)
class EndedRun:
    """How a planned run ended.

    Attributes:
        outcome: ``finished``, ``stuck``, ``diverged``, or ``missing`` where it has no result.
        passed_at: first evaluated step at which its loss on the tuning split was below the unigram floor, or None.
        loss_nats: final loss on the report split; None where it is missing or not finite.
    """

    planned: PlannedRun
    outcome: str
    passed_at: int | None
    loss_nats: float | None
    training: dict[str, Any] | None

    @property
    def trained(self) -> bool:
        """Whether it passed below the floor and did not diverge."""
        return self.outcome == "finished"


def read_sweep_document(directory: Path) -> dict[str, Any]:
    """``study.json`` of a sweep's directory.

    Raises:
        ResultError: missing, damaged, of another kind, or newer than this version of depthscale.
    """
    return read_study_json(directory, SWEEP_KIND, "sweep", SWEEP_SCHEMA_VERSION)


def is_sweep(directory: Path) -> bool:
    """Whether a directory is a sweep's, with its plan or only with its result."""
    if result_path(directory, "sweep").exists():
        return True
    try:
        read_sweep_document(directory)
    except ResultError:
        return False
    return True


def sweep_file(document: Mapping[str, Any], directory: Path) -> SweepFile:
    """The sweep file that the document was written from."""
    return validate(SweepFile, document["config"], str(directory / STUDY_FILE))


def planned_runs(file: SweepFile, additions: Sequence[Mapping[str, Any]]) -> list[PlannedRun]:
    """Every run of the grid and of its additions, seed by seed so that an early look holds whole columns."""
    sweep = file.sweep
    runs: list[PlannedRun] = []
    for seed in sweep.seeds:
        for lr in sweep.rates:
            runs += [_exponent(file, p, lr, seed, None) for p in sweep.exponents]
            runs += [PlannedRun(a.name, None, lr, seed, 1, None, file.arm_run(a, lr, seed)) for a in sweep.arms]
    for addition in additions:
        reason = addition["reason"]
        if reason == NEAR_EDGE:
            runs += [
                _exponent(file, p, sweep.main_rate, s, reason) for s in sweep.extra_seeds for p in addition["exponents"]
            ]
        elif reason == LONGER and sweep.longer is not None:
            runs += [
                _exponent(file, p, sweep.main_rate, s, reason, sweep.longer)
                for s in sweep.seeds
                for p in addition["exponents"]
            ]
        elif reason == THRESHOLD:
            p = addition["p"]
            arm = ArmConfig(name=THRESHOLD_ARM, model={"rule": "power", "rule_arguments": {"p": p}})
            runs += [
                PlannedRun(arm.name, p, lr, seed, 1, reason, file.arm_run(arm, lr, seed))
                for seed in sweep.seeds
                for lr in sweep.rates
            ]
    return runs


def read_runs(directory: Path, runs: Sequence[PlannedRun]) -> list[EndedRun]:
    """How every planned run ended.

    Raises:
        ResultError: a result is damaged, or belongs to another seed or rate.
    """
    return [_read(directory / RUNS / run.name, run) for run in runs]


def first_passage(records: Sequence[Mapping[str, Any]], floor: float) -> int | None:
    """First evaluated step with a loss on the tuning split below ``floor``, or None.

    Example:
        >>> losses = [(20, 3.2), (40, 2.9), (60, 3.1)]
        >>> records = [{"step": s, "kind": "evaluation", "split": "tuning", "loss_nats": v} for s, v in losses]
        >>> first_passage(records, floor=3.0)
        40
    """
    return next(
        (
            int(record["step"])
            for record in records
            if record["kind"] == "evaluation"
            and record["split"] == "tuning"
            and record["loss_nats"] is not None
            and record["loss_nats"] < floor
        ),
        None,
    )


def _exponent(file: SweepFile, p: float, lr: float, seed: int, added: str | None, factor: int = 1) -> PlannedRun:
    return PlannedRun(exponent_arm(p), p, lr, seed, factor, added, file.exponent_run(p, lr, seed, factor))


def _read(directory: Path, run: PlannedRun) -> EndedRun:
    if not result_path(directory, "training").exists():
        return EndedRun(run, "missing", None, None, None)
    training = read_result(directory, "training")
    found = (training["seed"], training["optimization"]["lr"], training["steps_planned"])
    expected = (run.seed, run.lr, run.config.train.steps)
    if found != expected:
        raise ResultError(
            f"{directory} holds seed, rate and steps {found}, expected {expected}; delete it and run the sweep again"
        )
    passed = first_passage(read_metrics(directory / METRICS_FILE), training["unigram_loss_nats"]["tuning"])
    return EndedRun(run, training["outcome"], passed, training["final"]["report"]["loss_nats"], training)

"""Steps until a run passes below the unigram floor, where some runs never do within their steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from depthscale.errors import ResultError


@dataclass(frozen=True)
class EscapeCurve:
    """Kaplan-Meier estimate of the share of runs still at the floor after each step.

    Attributes:
        steps: steps at which runs passed below the floor, ascending; empty if none did.
        at_floor: share still at the floor just after each of them.
        lower, upper: pointwise interval of the share (Greenwood's, on the log-log scale); None where it has none.
        median: first step by which half of the runs or more had passed; None if fewer ever did.
        num_runs, num_censored: runs, and those that never passed within their steps.
    """

    steps: tuple[float, ...]
    at_floor: tuple[float, ...]
    lower: tuple[float | None, ...]
    upper: tuple[float | None, ...]
    median: float | None
    num_runs: int
    num_censored: int


@dataclass(frozen=True)
class TimeComparison:
    """Log-rank test that two groups pass below the floor at the same pace.

    Attributes:
        statistic: standard normal under that hypothesis; positive where the first group passes earlier.
        p_value: two-sided.
    """

    statistic: float
    p_value: float


def escape_curve(passed_at: Sequence[int | None], last_step: int, confidence: float = 0.95) -> EscapeCurve:
    """Kaplan-Meier estimate from first passages.

    A run that diverged without passing counts as never passing: its end says how it went, so it is censored at the
    last step and not where it broke.

    Args:
        passed_at: of each run, the first evaluated step below the floor, or None.
        last_step: steps that every run was given.

    Raises:
        ResultError: no runs.

    Example:
        >>> curve = escape_curve([40, 60, 60, None], last_step=100)
        >>> curve.steps, curve.at_floor, curve.median
        ((40.0, 60.0), (0.75, 0.25), 60.0)
    """
    if not passed_at:
        raise ResultError("no runs came for an escape curve; expected at least one")
    times = [float(step) for step in passed_at if step is not None]
    censored = len(passed_at) - len(times)
    if not times:
        return EscapeCurve((), (), (), (), None, len(passed_at), censored)
    survival = stats.ecdf(_sample(passed_at, last_step)).sf
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        # Where every run has passed, the log-log scale has no interval; that stands as None.
        warnings.simplefilter("ignore", RuntimeWarning)
        ends = survival.confidence_interval(confidence, method="log-log")
    events = [index for index, step in enumerate(survival.quantiles) if step in times]
    shares = [float(survival.probabilities[index]) for index in events]
    steps = [float(survival.quantiles[index]) for index in events]
    return EscapeCurve(
        tuple(steps),
        tuple(shares),
        tuple(_known(ends.low.probabilities[index]) for index in events),
        tuple(_known(ends.high.probabilities[index]) for index in events),
        next((step for step, share in zip(steps, shares, strict=True) if share <= 0.5), None),
        len(passed_at),
        censored,
    )


def compare_times(first: Sequence[int | None], second: Sequence[int | None], last_step: int) -> TimeComparison | None:
    """Log-rank test of two groups; None where no run of either passed, since there is nothing to compare.

    Example:
        >>> compare_times([None, None], [None, None], last_step=100) is None
        True
        >>> compare_times([20, 20, 40, 40], [80, None, None, None], last_step=100).p_value < 0.05
        True
    """
    if all(step is None for step in (*first, *second)):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        found = stats.logrank(_sample(first, last_step), _sample(second, last_step))
    if not np.isfinite(found.statistic):
        return None
    return TimeComparison(float(found.statistic), float(found.pvalue))


def _sample(passed_at: Sequence[int | None], last_step: int) -> stats.CensoredData:
    return stats.CensoredData(
        uncensored=[float(step) for step in passed_at if step is not None],
        right=[float(last_step) for step in passed_at if step is None],
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

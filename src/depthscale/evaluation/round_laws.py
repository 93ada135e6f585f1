"""L(R): laws of the loss over rounds at test time, each certified or not reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from depthscale.evaluation.rounds import RoundsPoint
from depthscale.laws import LAWS, Observations, identifiability, parameter, profile, search

#: L_inf + Z exp(-z R), and L_0 + c R^-a.
ROUND_LAWS = ("saturating", "power_with_floor")
#: Three parameters and one row that can contradict them.
MIN_POINTS = 4
#: Of the parameters' intervals.
INTERVAL_LEVEL = 0.95


@dataclass(frozen=True)
class RoundLaw:
    """One law on one curve.

    Attributes:
        law: its name in ``depthscale.laws``.
        rounds: R of the points it was fitted to.
        identifiable: whether its parameters are certified.
        reason: why not.
        parameters: natural units, None unless certified.
        intervals: 95 % profile-likelihood interval of each parameter, points taken as independent; an infinite end is
            one that the points leave open. None unless certified.
        root_mean_square: of ln(predicted / measured) over the points.
        warnings: parameters that are only weakly or jointly determined.
        fit: the certified fit at full precision, certificate included.
    """

    law: str
    rounds: tuple[int, ...]
    identifiable: bool
    reason: str | None
    parameters: dict[str, float] | None
    intervals: dict[str, tuple[float, float]] | None
    root_mean_square: float | None
    warnings: tuple[str, ...]
    fit: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def fit_round_laws(points: Sequence[RoundsPoint]) -> list[RoundLaw]:
    """Fit every law to the falling part of one curve: the finite losses up to the lowest.

    Both laws only fall, so what comes after the lowest loss is not theirs to describe; :func:`rises_again` says whether
    anything comes after. Losses inside and outside training enter alike.

    Args:
        points: of one curve (one source of scales), in ascending R.

    Source: saturation over test-time rounds, Parcae, arXiv 2604.12946.
    """
    falling = _falling(points)
    rounds = tuple(point.rounds for point in falling)
    if len(falling) < MIN_POINTS:
        reason = (
            f"{len(falling)} points up to the lowest loss for 3 parameters; expected at least {MIN_POINTS}:"
            " measure more rounds"
        )
        return [RoundLaw(name, rounds, False, reason, None, None, None, (), None) for name in ROUND_LAWS]
    values = np.array(rounds, dtype=np.float64)
    rows = Observations({"rounds": values, "x": values}, np.array([point.loss_nats for point in falling]))
    return [_fit(name, rounds, rows) for name in ROUND_LAWS]


def rises_again(points: Sequence[RoundsPoint]) -> str | None:
    """Where the loss stops falling, in words, or None where it falls to the end."""
    falling = _falling(points)
    if not falling:
        return "no number of rounds has a finite loss"
    best, last = falling[-1], points[-1]
    if best is last:
        return None
    rise = last.loss_nats - best.loss_nats
    then = f"{rise:.4f} nats higher" if math.isfinite(rise) else "not finite"
    return f"the loss is lowest at R = {best.rounds} and {then} at R = {last.rounds}"


def _falling(points: Sequence[RoundsPoint]) -> list[RoundsPoint]:
    measured = [point for point in points if math.isfinite(point.loss_nats)]
    lowest = min(measured, key=lambda point: point.loss_nats, default=None)
    return measured[: measured.index(lowest) + 1] if lowest else []


def _fit(name: str, rounds: tuple[int, ...], rows: Observations) -> RoundLaw:
    found = search(LAWS[name], rows)
    if not found.certificate.holds:
        return RoundLaw(name, rounds, False, "; ".join(found.certificate.reasons), None, None, None, (), None)
    return RoundLaw(
        law=name,
        rounds=rounds,
        identifiable=True,
        reason=None,
        parameters=found.parameters,
        intervals={
            interval.name: (interval.lower, interval.upper)
            for interval in profile(found, [parameter(found, each) for each in found.parameters], INTERVAL_LEVEL)
        },
        root_mean_square=float(np.sqrt(np.mean(found.residuals**2))),
        warnings=identifiability(found).warnings,
        fit=found.to_dict(),
    )

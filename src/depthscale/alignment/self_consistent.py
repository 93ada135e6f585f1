"""The exponent that agrees with the alignment measured under it: p* = (1 + gamma(p*)) / 4.

gamma depends on the rule that it is measured under, so a threshold from one rule need not be that rule's exponent.
It also depends on when and on what batch it is measured, so it is solved for each of these conditions apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.alignment.errors import AlignmentError

Array = NDArray[np.float64]

NUM_EXPONENTS, NUM_STEPS, NUM_BATCH_SIZES = 4, 3, 2


@dataclass(frozen=True)
class GammaPoint:
    """gamma measured under alpha = (cN)^p, beta = (dN)^-p.

    Attributes:
        p: the rule's exponent.
        gamma: growth exponent of kappa over R.
        standard_error: of gamma; a half-width of a 95 % interval divided by 1.96 will do.
        step: training step, 0 at initialization.
        batch_rows: rows that G and U were measured on.
    """

    p: float
    gamma: float
    standard_error: float
    step: int = 0
    batch_rows: int = 1


@dataclass(frozen=True)
class Crossing:
    """p* under one condition.

    Attributes:
        step, batch_rows: the condition.
        estimate: p*; -inf below and inf above the exponents measured.
        lower, upper: interval, with the same meaning of infinite ends.
        num_exponents: measured exponents behind it.
    """

    step: int
    batch_rows: int
    estimate: float
    lower: float
    upper: float
    num_exponents: int


@dataclass(frozen=True)
class SelfConsistentExponent:
    """p* over all conditions.

    Attributes:
        crossings: one per step and batch size.
        estimate: their median.
        lower, upper: the envelope of their intervals, since conditions differ by more than noise.
        missing: what was measured too little, one sentence each.
    """

    crossings: tuple[Crossing, ...]
    estimate: float
    lower: float
    upper: float
    missing: tuple[str, ...]

    def is_recommendation(self, edge: tuple[float, float] | None) -> bool:
        """Whether p* may be called a recommendation: nothing is missing, its interval has two ends and meets the edge.

        Args:
            edge: interval of the exponent at which half of the runs train, from a sweep; None where none was found.
        """
        # An open interval meets edges anywhere and predicts none.
        if edge is None or self.missing or not all(map(math.isfinite, (self.lower, self.estimate, self.upper))):
            return False
        return self.lower <= edge[1] and edge[0] <= self.upper

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def self_consistent_exponent(
    points: Sequence[GammaPoint], num_draws: int = 2000, seed: int = 0, level: float = 0.95
) -> SelfConsistentExponent:
    """Solve p = (1 + gamma(p)) / 4 between the measured exponents.

    gamma(p) is linear between neighbors; of several crossings the largest counts, beyond which every measured
    exponent is at least its own threshold. Intervals come from drawing every gamma from its normal error.

    Args:
        points: at least 2 exponents under each condition.
        num_draws: for the intervals.
        seed: of the draws.
        level: of the intervals.

    Raises:
        AlignmentError: fewer than 2 exponents under some condition, one twice, or a negative error.

    Example:
        >>> aligned = [GammaPoint(p, 1.0, 0.01) for p in (0.25, 0.4, 0.55)]
        >>> round(self_consistent_exponent(aligned).estimate, 3)
        0.5
    """
    conditions = sorted({(point.step, point.batch_rows) for point in points})
    if not conditions:
        raise AlignmentError("no points came; expected gamma at several exponents")
    crossings = []
    for step, rows in conditions:
        chosen = sorted((q for q in points if (q.step, q.batch_rows) == (step, rows)), key=lambda q: q.p)
        p = np.array([q.p for q in chosen])
        gamma, error = np.array([q.gamma for q in chosen]), np.array([q.standard_error for q in chosen])
        if len(p) < 2 or (np.diff(p) == 0).any():
            raise AlignmentError(
                f"exponents {p.tolist()} came at step {step} with {rows} rows; expected 2 or more, each once"
            )
        if not (np.isfinite(gamma).all() and (error >= 0).all()):
            raise AlignmentError("gammas must be finite and their standard errors not negative; leave others out")
        normal = np.random.default_rng([seed, step, rows]).standard_normal((num_draws, len(p)))
        draws = np.array([_crossing(p, row) for row in gamma + error * normal])
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="nearest")
        crossings.append(Crossing(step, rows, _crossing(p, gamma), float(low), float(high), len(p)))
    estimates = np.array([crossing.estimate for crossing in crossings])
    return SelfConsistentExponent(
        tuple(crossings),
        float(np.quantile(estimates, 0.5, method="nearest")),
        min(crossing.lower for crossing in crossings),
        max(crossing.upper for crossing in crossings),
        _missing(points, crossings),
    )


def _crossing(p: Array, gamma: Array) -> float:
    """The largest p at which (1 + gamma(p)) / 4 - p goes from positive to not positive."""
    above = (1 + gamma) / 4 - p
    if above[-1] > 0:
        return math.inf
    positive = np.flatnonzero(above > 0)
    if not len(positive):
        # Where the smallest measured exponent is its own threshold, it is the answer.
        return float(p[0]) if above[0] == 0 else -math.inf
    k = int(positive[-1])
    return float(p[k] + (p[k + 1] - p[k]) * above[k] / (above[k] - above[k + 1]))


def _missing(points: Sequence[GammaPoint], crossings: Sequence[Crossing]) -> tuple[str, ...]:
    found = (
        ("exponents", min(crossing.num_exponents for crossing in crossings), NUM_EXPONENTS),
        ("training steps", len({point.step for point in points}), NUM_STEPS),
        ("batch sizes", len({point.batch_rows for point in points}), NUM_BATCH_SIZES),
    )
    return tuple(f"{have} {name} were measured; {need} are needed" for name, have, need in found if have < need)

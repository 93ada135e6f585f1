"""How kappa grows with the rounds, and the exponent that it asks for: pure functions of measured points.

    kappa_R ~ R^gamma          bounded first-order change of an SGD step iff p >= (1 + gamma) / 4
    u_R     ~ R^gamma_U        u = ||sum_r U_r|| / max_r ||U_r||; of an Adam step iff p >= gamma_U / 2

The first line needs every visit's own maps to stay of the order beta/alpha as R grows, and kappa to be a power of R;
both are tested here and a threshold is given only where both hold. The second follows because Adam's step does not
shrink with the gradient: ||dF|| <= sum_j ||sum_r U_rj|| * ||dphi_j|| ~ R^gamma_U * beta/alpha, and beta/alpha ~ R^-2p.

Source: DeepLoop, arXiv 2607.13491, section 3, for the first line; the second is depthscale's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from depthscale.alignment.errors import AlignmentError
from depthscale.laws import LAWS, Objective, Observations, parameter, profile, search
from depthscale.residual import exponent_threshold

#: Exponents within this of 0 count as constant, and local exponents that differ by twice this as one power.
MARGIN = 0.05

#: An interval wider than this to either side says too little to call anything constant (twice this: one power).
PRECISION = 0.25

#: Log residuals below this are rounding of float32 measurements.
ROUNDING = 1e-6


@dataclass(frozen=True)
class GrowthExponent:
    """a of value ~ R^a, fitted by least squares of logs, with its profile interval.

    Attributes:
        exponent: a.
        lower, upper: profile-likelihood interval at ``level``.
        level: coverage aimed at.
        coefficient: the fitted value at R = 1.
        bend: how much the local exponent changes from the fewest to the most rounds, from a quadratic in log R; None
            with fewer than 4 points or 3 different R.
        bend_error: half-width of its interval at ``level``.
        num_points: rows fitted.
    """

    exponent: float
    lower: float
    upper: float
    level: float
    coefficient: float
    bend: float | None
    bend_error: float | None
    num_points: int

    @property
    def is_precise(self) -> bool:
        """The interval is narrow enough to tell a constant from growth."""
        return (self.upper - self.lower) / 2 <= PRECISION

    @property
    def is_constant(self) -> bool:
        """A precise interval that includes 0, or one that lies within MARGIN of it."""
        return self.is_precise and (self.lower <= 0 <= self.upper or max(-self.lower, self.upper) <= MARGIN)

    @property
    def is_power(self) -> bool:
        """One power describes the points: the bend is within its error of 0, and that is small, or in 2 * MARGIN."""
        if self.bend is None or self.bend_error is None or self.bend_error > 2 * PRECISION:
            return False
        return abs(self.bend) <= max(self.bend_error, 2 * MARGIN)


@dataclass(frozen=True)
class StabilityThreshold:
    """(1 + gamma) / 4 where its assumptions hold.

    Attributes:
        gamma: growth of kappa.
        map_growth, gradient_growth: growth of max ||U|| and max ||G|| in units of beta/alpha.
        value, lower, upper: the threshold and its interval, gamma cut to [0, 1]; None where an assumption fails.
        failed: the assumptions that fail, one sentence each.
    """

    gamma: GrowthExponent
    map_growth: GrowthExponent
    gradient_growth: GrowthExponent
    value: float | None
    lower: float | None
    upper: float | None
    failed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def growth_exponent(rounds: Sequence[float], values: Sequence[float], level: float = 0.95) -> GrowthExponent:
    """Fit value ~ R^a.

    Args:
        rounds: R of each point, at least 3 points with 2 different R; seeds are rows of their own.
        values: positive.
        level: of the interval.

    Raises:
        AlignmentError: too few points, or values that no power of R can have.
        FitError: the minimum is not certified.

    Example:
        >>> found = growth_exponent([1, 2, 4, 8], [1.0, 2.0, 4.0, 8.0])
        >>> round(found.exponent, 6), found.is_power, found.is_constant
        (1.0, True, False)
    """
    x, y = np.asarray(rounds, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 3 or len(np.unique(x)) < 2:
        raise AlignmentError(
            f"points came as {x.size} numbers of rounds and {y.size} values; expected at least 3 points at 2 or more"
            " different rounds"
        )
    if not (np.isfinite(y).all() and (y > 0).all() and (x >= 1).all()):
        raise AlignmentError(
            "values must be positive and finite and rounds at least 1 for an exponent; leave others out"
        )
    fitted = search(LAWS["growth"], Observations({"x": x}, y), Objective("log_squares"))
    bend, error = _bend(np.log(x), np.log(y), level)
    if np.abs(fitted.residuals).max() <= ROUNDING:
        # Points on one line to rounding have no spread that an interval or a certificate could be made of.
        estimate = lower = upper = fitted.uncertified_parameters["a"]
    else:
        fitted.certificate.require()
        interval = profile(fitted, [parameter(fitted, "a")], level)[0]
        estimate, lower, upper = interval.estimate, interval.lower, interval.upper
    return GrowthExponent(estimate, lower, upper, level, fitted.uncertified_parameters["c"], bend, error, len(x))


def stability_threshold(
    rounds: Sequence[float],
    kappa: Sequence[float],
    map_maxima: Sequence[float],
    gradient_maxima: Sequence[float],
    level: float = 0.95,
) -> StabilityThreshold:
    """The stability threshold of one sublayer (or of their maximum), or which of its assumptions fails.

    Args:
        rounds: R of each point.
        kappa: of each point.
        map_maxima: max_r ||U_r|| in units of beta/alpha.
        gradient_maxima: max_r ||G_r|| in units of beta/alpha.
        level: of the intervals.
    """
    return threshold_of(*(growth_exponent(rounds, values, level) for values in (kappa, map_maxima, gradient_maxima)))


def threshold_of(
    gamma: GrowthExponent, map_growth: GrowthExponent, gradient_growth: GrowthExponent
) -> StabilityThreshold:
    """:func:`stability_threshold` of exponents that are fitted already.

    Args:
        gamma: growth of kappa.
        map_growth: of max_r ||U_r|| in units of beta/alpha.
        gradient_growth: of max_r ||G_r|| in units of beta/alpha.
    """
    failed = []
    for name, growth in (("max ||U||", map_growth), ("max ||G||", gradient_growth)):
        if not growth.is_precise:
            failed.append(
                f"{name} in units of beta/alpha grows as R^{growth.exponent:.2f}"
                f" [{growth.lower:.2f}, {growth.upper:.2f}], too uncertain to call it constant: measure more seeds"
            )
        elif not growth.is_constant:
            failed.append(
                f"{name} in units of beta/alpha grows as R^{growth.exponent:.2f}"
                f" [{growth.lower:.2f}, {growth.upper:.2f}] instead of staying constant"
            )
    if gamma.bend is None:
        failed.append("too few rounds to see whether kappa is a power of R (4 points at 3 different rounds are needed)")
    elif not gamma.is_power:
        failed.append(
            f"kappa is not shown to be a power of R: its local exponent changes by {gamma.bend:+.2f} (give or take"
            f" {gamma.bend_error:.2f}) over these rounds"
        )
    if failed:
        return StabilityThreshold(gamma, map_growth, gradient_growth, None, None, None, tuple(failed))
    value, lower, upper = (
        exponent_threshold(min(max(end, 0.0), 1.0)) for end in (gamma.exponent, gamma.lower, gamma.upper)
    )
    return StabilityThreshold(gamma, map_growth, gradient_growth, value, lower, upper, ())


def sgd_growth(gamma: float, p: float) -> float:
    """Exponent in R of an SGD step's first-order change at fixed K: 1 + gamma - 4p.

    Source: DeepLoop, arXiv 2607.13491 (M * kappa_R * (beta/alpha)^2 with M ~ R, beta/alpha ~ R^-2p).

    Example:
        >>> sgd_growth(1.0, 0.5), sgd_growth(0.0, 0.25)
        (0.0, 0.0)
    """
    return 1 + gamma - 4 * p


def adam_growth(map_gamma: float, p: float) -> float:
    """Exponent in R of an Adam step's first-order change at fixed K: gamma_U - 2p, 0 at p = gamma_U / 2.

    Source: depthscale; Adam's step has a size of its own, so that only U carries beta/alpha.

    Example:
        >>> adam_growth(1.0, 0.5), adam_growth(0.5, 0.25)
        (0.0, 0.0)
    """
    return map_gamma - 2 * p


def _bend(x: np.ndarray, y: np.ndarray, level: float) -> tuple[float | None, float | None]:
    """Change of the local exponent over the range, 2 c (x_max - x_min) of y = a + b x + c x^2, and its half-width."""
    if len(x) < 4 or len(np.unique(x)) < 3:
        return None, None
    center = x - x.mean()
    design = np.stack([np.ones_like(center), center, center**2], axis=1)
    solution, *_ = np.linalg.lstsq(design, y, rcond=None)
    spare = len(x) - 3
    variance = float(((y - design @ solution) ** 2).sum()) / spare * float(np.linalg.inv(design.T @ design)[2, 2])
    span = 2 * float(x.max() - x.min())
    return span * float(solution[2]), span * math.sqrt(variance) * float(student.ppf((1 + level) / 2, spare))

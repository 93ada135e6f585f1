"""Profile-likelihood intervals of parameters and of anything that follows from them.

The deviance of value v is (SS(v) / SS - 1) (n - P) under squares, compared with the F(1, n - P) quantile. All
quantities and both sides walk outward in one batch; every point lies exactly on its profile (see ``Anchor``).
A side that never reaches the quantile is open, and its end is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from depthscale.errors import ConfigError
from depthscale.laws.certificate import stationarity
from depthscale.laws.fitting import Fit, solve_basis
from depthscale.laws.newton import Anchor, Problem, minimize
from depthscale.laws.quantities import Quantity, Traced
from depthscale.laws.standard_errors import local_covariance, mean_curvature, noise_variance

Array = NDArray[np.float64]
Index = NDArray[np.intp]

_STRENGTH = 1e4  # of the anchor, in units of the profile's own curvature
_FIRST_STEP = 0.5  # in standard errors
_GROWTH = 1.6
_NUM_WALKS = 14  # reaches 0.5 * 1.6^14 = 360 standard errors
_NUM_REFINEMENTS = 6


@dataclass(frozen=True)
class ProfileInterval:
    """The values that the data do not reject.

    Attributes:
        name: of the quantity.
        estimate: at the minimum.
        lower, upper: ends; infinite where open (zero below for positive quantities).
        level: for example 0.95.
        lower_open, upper_open: the deviance never reaches the quantile on that side.
        values, deviances: the points of the profile, sorted by value, for plots.
    """

    name: str
    estimate: float
    lower: float
    upper: float
    level: float
    lower_open: bool
    upper_open: bool
    values: Array
    deviances: Array

    @property
    def is_closed(self) -> bool:
        """Both ends are finite."""
        return not (self.lower_open or self.upper_open)

    def contains(self, value: float) -> bool:
        """The data do not reject ``value``."""
        return self.lower <= value <= self.upper


def deviance(fit: Fit, total: Array | float) -> Array:
    """Likelihood-ratio statistic of objectives that lie above the fit's, F(1, n - P) for one constraint.

    (SS / SS_min - 1) (n - P) for squares; 2 (F - F_min) mean psi' / mean psi^2 for Huber.
    """
    rise = np.maximum(np.asarray(total, dtype=np.float64) - fit.total, 0.0)
    # noise_variance is mean psi^2 / (mean psi')^2 at a mean weight of one.
    per_row = noise_variance(fit) * mean_curvature(fit) * float(fit.data.row_weights.mean())
    result: Array = 2 * rise / max(per_row, 1e-300)
    return result


def critical_deviance(fit: Fit, level: float) -> float:
    """The F(1, n - P) quantile."""
    if not 0 < level < 1:
        raise ConfigError(f"level came as {level!r}; expected a number between 0 and 1 such as 0.95")
    return float(f_distribution.ppf(level, 1, max(fit.data.num_weighted_rows - fit.num_free, 1)))


def profile(fit: Fit, quantities: Sequence[Quantity], level: float = 0.95) -> list[ProfileInterval]:
    """Intervals of several quantities at once.

    Args:
        fit: a certified fit.
        quantities: what to profile; see :mod:`depthscale.laws.quantities`.
        level: coverage aimed at.

    Raises:
        FitError: the fit has no certificate.
    """
    fit.certificate.require()
    return _Walk(fit, quantities, critical_deviance(fit, level)).intervals(level)


class _Walk:
    """Members 2q and 2q + 1 are the lower and the upper side of quantity q."""

    def __init__(self, fit: Fit, quantities: Sequence[Quantity], critical: float) -> None:
        self.fit, self.quantities, self.critical = fit, quantities, critical
        self.traced = Traced(fit.problem.bound, fit.law.parameters, quantities)
        count = len(quantities)
        self.kinds: Index = np.repeat(np.arange(count), 2)
        self.signs = np.tile([-1.0, 1.0], count)
        u = fit.internal[None]
        values, slopes = self.traced(np.repeat(u, count, axis=0), np.arange(count))
        self.lead = slopes @ local_covariance(fit)  # [Q, P], how the others follow
        self.variance = np.maximum((self.lead * slopes).sum(axis=1), 1e-300)
        self.errors = np.sqrt(self.variance)
        self.estimates = values
        self.points: list[list[tuple[float, float]]] = [[(float(values[k]), 0.0)] for k in self.kinds]

    def intervals(self, level: float) -> list[ProfileInterval]:
        z = np.repeat(self.fit.z[None], len(self.kinds), axis=0)
        inner = self.estimates[self.kinds]
        inner_root = np.zeros(len(self.kinds))
        outer, outer_root = np.full(len(self.kinds), np.nan), np.full(len(self.kinds), np.nan)
        outer_z = z.copy()
        goal = np.sqrt(self.critical)
        reach = _FIRST_STEP
        for _ in range(_NUM_WALKS):
            open_: Index = np.flatnonzero(np.isnan(outer))
            if not len(open_):
                break
            kinds = self.kinds[open_]
            target = self.estimates[kinds] + self.signs[open_] * reach * self.errors[kinds]
            value, root, where = self._solve(open_, target, z[open_])
            crossed = root >= goal
            outward = self.signs[open_] * (value - inner[open_]) > 0
            usable = np.isfinite(root) & outward
            done = open_[usable & crossed]
            outer[done], outer_root[done] = value[usable & crossed], root[usable & crossed]
            outer_z[done] = where[usable & crossed]
            on = open_[usable & ~crossed]
            inner[on], inner_root[on], z[on] = (a[usable & ~crossed] for a in (value, root, where))
            reach *= _GROWTH
        ends = np.where(np.isnan(outer), self.signs * np.inf, outer)
        closed: Index = np.flatnonzero(np.isfinite(outer))
        for _ in range(_NUM_REFINEMENTS):
            if not len(closed):
                break
            # The signed root of the deviance is nearly linear in the quantity.
            share = (goal - inner_root[closed]) / np.maximum(outer_root[closed] - inner_root[closed], 1e-12)
            share = np.clip(share, 0.02, 0.98)
            target = inner[closed] + share * (outer[closed] - inner[closed])
            value, root, where = self._solve(closed, target, z[closed])
            ends[closed] = np.where(np.isfinite(root), value, ends[closed])
            between = np.isfinite(root) & (self.signs[closed] * (value - inner[closed]) > 0)
            low, high = between & (root < goal), between & (root >= goal)
            inner[closed[low]], inner_root[closed[low]], z[closed[low]] = value[low], root[low], where[low]
            outer[closed[high]], outer_root[closed[high]] = value[high], root[high]
            closed = closed[np.abs(root - goal) > 1e-4]
        return [self._interval(q, ends, level) for q in range(len(self.quantities))]

    def _solve(self, members: Index, target: Array, z: Array) -> tuple[Array, Array, Array]:
        """Values reached, roots of their deviances (nan where not certified) and points."""
        kinds = self.kinds[members]
        scale = self.fit.total / max(self.fit.data.num_weighted_rows - self.fit.num_free, 1) * 2
        strength = _STRENGTH * max(scale, 1e-300) / self.variance[kinds]
        problem: Problem = replace(self.fit.problem, anchor=Anchor(self.traced, kinds, target, strength))
        start = np.maximum(z + self._prediction(kinds, target, z), self.fit.problem.affine.lower)
        solution = minimize(problem, start, max_iterations=60)
        u = problem.internal(solution.z)
        value = self.traced(u, kinds)[0]
        total = self.fit.problem.evaluate(solution.z)[0]
        root = np.sqrt(deviance(self.fit, total))
        root = np.where(stationarity(problem, solution.z).holds, root, np.nan)
        for member, v, r in zip(members, value, root, strict=True):
            if np.isfinite(r):
                self.points[member].append((float(v), float(r) ** 2))
        return value, root, solution.z

    def _prediction(self, kinds: Index, target: Array, z: Array) -> Array:
        here = self.traced(self.fit.problem.internal(z), kinds)[0]
        move = self.lead[kinds] * ((target - here) / self.variance[kinds])[:, None]
        return np.clip(solve_basis(self.fit.problem.affine, move), -2.0, 2.0)

    def _interval(self, q: int, ends: Array, level: float) -> ProfileInterval:
        points = np.array(sorted(set(self.points[2 * q] + self.points[2 * q + 1])))
        lower, upper = float(ends[2 * q]), float(ends[2 * q + 1])
        estimate, values = float(self.estimates[q]), points[:, 0]
        open_ends = (not np.isfinite(lower), not np.isfinite(upper))
        if self.quantities[q].positive:
            lower, upper, estimate, values = np.exp(lower), np.exp(upper), np.exp(estimate), np.exp(values)
        return ProfileInterval(
            self.quantities[q].name,
            float(estimate),
            float(lower),
            float(upper),
            level,
            *open_ends,
            np.asarray(values),
            points[:, 1],
        )

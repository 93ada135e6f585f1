"""Where the share of runs that train crosses one half as the exponent p rises, and how sure that is.

P(a run trains) = 1 / (1 + exp(-b (p - p50))) with b >= 0: the share is taken not to fall with p. Under that rule the
exponents that the runs do not reject form one interval, whose sides may be open. It is wider where the runs of one seed
end alike at several exponents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from depthscale.errors import ResultError
from depthscale.studies.sweep_seeds import Outcomes, seed_factor

Array = NDArray[np.float64]

#: How the edge stands; see :func:`find_edge`.
EdgeKind = Literal["crossing", "separated", "all_stuck", "all_train", "flat", "falling", "outside"]

#: Logits at which a share is 0 or 1 to all that counts of runs can tell.
_CERTAIN = 60.0


@dataclass(frozen=True)
class Edge:
    """What the runs say of the crossing.

    Attributes:
        kind: see :func:`find_edge`.
        p50: exponent at which half of the runs train; None unless ``kind`` is ``crossing``.
        slope: b in logits per unit of p; None unless ``kind`` is ``crossing``; infinite where the curve is a step.
        lower, upper: profile-likelihood interval of p50, infinite where a side is open.
        between: last exponent at which no run trains and first at which all do, where the two separate completely.
        trend_p_value: likelihood-ratio test of "the share does not depend on p", two-sided; None where all runs end
            alike.
        confidence: level of the interval.
        seed_factor: by how much shared seeds raise the variance of p50, see :func:`seed_factor`; 1 where no slope is
            determined, or seeds are not known.
    """

    kind: EdgeKind
    p50: float | None
    slope: float | None
    lower: float
    upper: float
    between: tuple[float, float] | None
    trend_p_value: float | None
    confidence: float
    seed_factor: float


@dataclass(frozen=True)
class ShareInterval:
    """A share of runs with its binomial intervals at ``confidence``: Wilson's, and Clopper and Pearson's exact one."""

    num_trained: int
    num_runs: int
    wilson: tuple[float, float]
    exact: tuple[float, float]
    confidence: float


def share_interval(num_trained: int, num_runs: int, confidence: float = 0.95) -> ShareInterval:
    """Binomial intervals of a share.

    Raises:
        ResultError: no runs, or more trained than there are.

    Example:
        >>> [round(end, 3) for end in share_interval(2, 5).exact]
        [0.053, 0.853]
    """
    if not 0 <= num_trained <= num_runs or num_runs == 0:
        raise ResultError(f"{num_trained} of {num_runs} runs came as trained; expected a share of at least one run")
    test = stats.binomtest(num_trained, num_runs)
    wilson, exact = (test.proportion_ci(confidence, method) for method in ("wilson", "exact"))
    return ShareInterval(
        num_trained,
        num_runs,
        (float(wilson.low), float(wilson.high)),
        (float(exact.low), float(exact.high)),
        confidence,
    )


def find_edge(
    exponents: Sequence[float],
    trained: Sequence[int],
    runs: Sequence[int],
    confidence: float = 0.95,
    outcomes: Outcomes | None = None,
) -> Edge:
    """Fit the curve and name what the runs show.

    ``all_stuck`` and ``all_train``: no run trains, or every one, so there is no edge in this grid. ``separated``: none
    trains up to some exponent and all do above it, so the edge lies between the two and a slope is not determined.
    ``flat``: the share does not change with p beyond chance. ``falling``: it falls, against the assumption.
    ``outside``: the fitted crossing is not within the grid. ``crossing``: it is.

    The interval is given for every kind but ``falling``: all p50 with 2 (l_max - max_b l(p50, b)) up to the quantile
    of chi-square with one degree of freedom times the factor by which shared seeds raise the variance of p50. With few
    seeds that is approximate: in simulated sweeps of 5 seeds whose runs all turn at the seed's own p, 95 % intervals
    cover in 87 to 92 % (without the factor in 64 to 82 %).

    Args:
        exponents: ascending.
        trained: runs that train at each.
        runs: all runs at each, at least one.
        confidence: of the interval.
        outcomes: the same runs by seed; None where they are not known, and then all count as independent.

    Raises:
        ResultError: lengths differ, or a count is impossible.

    Example:
        >>> edge = find_edge([0.3, 0.4, 0.5, 0.6], [0, 1, 4, 5], [5, 5, 5, 5])
        >>> edge.kind, round(edge.p50, 3)
        ('crossing', 0.45)
        >>> find_edge([0.3, 0.4, 0.5], [0, 0, 5], [5, 5, 5]).between
        (0.4, 0.5)
    """
    p, k, n = (np.asarray(values, dtype=float) for values in (exponents, trained, runs))
    if not len(p) == len(k) == len(n) >= 2:
        raise ResultError(f"{len(p)} exponents came with {len(k)} and {len(n)} counts; expected two or more of each")
    if not ((n >= 1) & (k >= 0) & (k <= n)).all():
        raise ResultError(f"{list(trained)} of {list(runs)} runs came as trained; expected shares of one run or more")
    # Within [0, 1] the tolerances below mean the same whatever the unit of p is.
    start, span = float(p[0]), float(p[-1] - p[0])
    curve = _Curve((p - start) / span, k, n)
    free = curve.best()
    p_value = _trend_p_value(curve, free)
    rising = free if free.slope > 0 else curve.constant()
    factor, critical = curve.critical(free, outcomes, confidence)
    lower, upper = (start + span * end for end in curve.interval(rising, critical))
    kind = _kind(curve, free, p_value, confidence)
    between, p50, slope = None, None, None
    if kind == "falling":
        lower, upper = -math.inf, math.inf
    elif kind == "separated":
        first = int(np.argmax(k > 0))
        between = (float(p[first - 1]), float(p[first]))
    elif kind == "crossing":
        p50, slope = start + span * free.middle, free.slope / span
    return Edge(kind, p50, slope, lower, upper, between, p_value, confidence, factor)


def _kind(curve: _Curve, free: _Fit, p_value: float | None, confidence: float) -> EdgeKind:
    if not curve.k.any():
        return "all_stuck"
    if (curve.k == curve.n).all():
        return "all_train"
    if free.slope == math.inf and ((curve.k == 0) | (curve.k == curve.n)).all():
        return "separated"
    if p_value is None or p_value > 1 - confidence:
        return "flat"
    if free.slope < 0:
        return "falling"
    # A step at the first or last exponent lies on the side of it that its own share tells.
    shares = curve.k / curve.n
    beyond = free.slope == math.inf and (
        (free.middle == 0 and shares[0] > 0.5) or (free.middle == 1 and shares[-1] < 0.5)
    )
    return "outside" if beyond or not 0 <= free.middle <= 1 else "crossing"


@dataclass(frozen=True)
class _Fit:
    """A curve of greatest likelihood: its log-likelihood, its slope, and where it crosses one half."""

    log_likelihood: float
    slope: float
    middle: float


class _Curve:
    """Counts over exponents that are scaled to [0, 1]."""

    def __init__(self, x: Array, k: Array, n: Array) -> None:
        self.x, self.k, self.n = x, k, n
        self.spacing = float(np.diff(x).min())

    def log_likelihood(self, logits: Array) -> float:
        """sum_i k_i log s_i + (n_i - k_i) log(1 - s_i) with s the logistic function of the logits."""
        misses = self.n - self.k
        return float((self.k * special.log_expit(logits) + misses * special.log_expit(-logits)).sum())

    def constant(self) -> _Fit:
        """The share of all runs, whatever p; it crosses one half infinitely far off, on the side that it is from."""
        share = float(self.k.sum() / self.n.sum())
        middle = 0.5 if share == 0.5 else -math.inf if share > 0.5 else math.inf
        return _Fit(self._constant_value(share), 0.0, middle)

    def best(self) -> _Fit:
        """The curve of greatest likelihood, of either direction; a step where the counts separate."""
        if self.k.sum() in (0, self.n.sum()):
            return self.constant()
        if (step := self._step()) is not None:
            return step
        if (mirrored := _Curve(1 - self.x[::-1], self.k[::-1], self.n[::-1])._step()) is not None:
            return _Fit(mirrored.log_likelihood, -math.inf, 1 - mirrored.middle)
        share = float(self.k.sum() / self.n.sum())
        found = optimize.minimize(
            lambda ab: -self.log_likelihood(ab[0] + ab[1] * self.x),
            np.array([special.logit(share), 0.0]),
            jac=self._negative_gradient,
            hess=self._negative_hessian,
            method="trust-exact",
            options={"gtol": 1e-9},
        )
        intercept, slope = (float(value) for value in found.x)
        return _Fit(-float(found.fun), slope, -intercept / slope if slope else self.constant().middle)

    def critical(self, free: _Fit, outcomes: Outcomes | None, confidence: float) -> tuple[float, float]:
        """The factor of shared seeds, and how far 2 * log-likelihood may fall within the interval."""
        factor = 1.0
        if outcomes is not None and 0 < free.slope < math.inf and len({seed for at in outcomes for seed in at}) > 1:
            factor = seed_factor(self.x, special.expit(free.slope * (self.x - free.middle)), free.middle, outcomes)
        return factor, factor * float(stats.chi2.ppf(confidence, 1))

    def interval(self, best: _Fit, critical: float) -> tuple[float, float]:
        """All crossings whose best curve is worse by at most half of ``critical``; infinite ends are open.

        The set of (intercept, slope >= 0) above a level is convex, so that its crossings form one interval.
        """

        def excess(middle: float) -> float:
            return 2 * (best.log_likelihood - self._profile(middle)) - critical

        def end(direction: float) -> float:
            share = float(self.k.sum() / self.n.sum())
            limit = self._constant_value(min(share, 0.5) if direction > 0 else max(share, 0.5))
            if 2 * (best.log_likelihood - limit) <= critical:
                return math.copysign(math.inf, direction)
            outside, step = inside, direction
            while excess(outside) <= 0:
                outside, step = outside + step, 2 * step
            return float(optimize.brentq(excess, inside, outside, xtol=1e-7))

        inside, step = best.middle, 1.0
        if math.isinf(inside):
            inside = 0.5
            while excess(inside) > 0:
                inside, step = inside + math.copysign(step, best.middle), 2 * step
        return end(-1.0), end(1.0)

    def _profile(self, middle: float) -> float:
        """max over slopes >= 0 of the log-likelihood of curves that cross one half at ``middle``."""
        away = np.abs(self.x - middle)
        steepest = _CERTAIN / min(self.spacing, float(away[away > 1e-9].min()))
        found = optimize.minimize_scalar(
            lambda slope: -self.log_likelihood(slope * (self.x - middle)),
            bounds=(0.0, steepest),
            method="bounded",
            options={"xatol": 1e-9 * steepest},
        )
        ends = (self.log_likelihood(slope * (self.x - middle)) for slope in (0.0, steepest))
        return max(-float(found.fun), *ends)

    def _step(self) -> _Fit | None:
        """The rising step that the likelihood runs towards, if none trains below some place and all do above it."""
        mixed = np.flatnonzero((self.k > 0) & (self.k < self.n))
        if len(mixed) > 1 or (np.diff(self.k / self.n) < 0).any():
            return None
        if len(mixed) == 0:
            first = int(np.argmax(self.k > 0))
            return _Fit(0.0, math.inf, float(self.x[first - 1] + self.x[first]) / 2)
        at = int(mixed[0])
        share = self.k[at] / self.n[at]
        return _Fit(float(-self.n[at] * stats.entropy([share, 1 - share])), math.inf, float(self.x[at]))

    def _constant_value(self, share: float) -> float:
        misses = self.n - self.k
        return float(special.xlogy(self.k, share).sum() + special.xlogy(misses, 1 - share).sum())

    def _negative_gradient(self, ab: Array) -> Array:
        residual = self.k - self.n * special.expit(ab[0] + ab[1] * self.x)
        return -np.array([residual.sum(), (residual * self.x).sum()])

    def _negative_hessian(self, ab: Array) -> Array:
        share = special.expit(ab[0] + ab[1] * self.x)
        weights = self.n * share * (1 - share)
        cross = (weights * self.x).sum()
        return np.array([[weights.sum(), cross], [cross, (weights * self.x**2).sum()]])


def _trend_p_value(curve: _Curve, free: _Fit) -> float | None:
    """Likelihood-ratio test against a constant share; None where all runs end alike."""
    if curve.k.sum() in (0, curve.n.sum()):
        return None
    gain = max(0.0, 2 * (free.log_likelihood - curve.constant().log_likelihood))
    return float(stats.chi2.sf(gain, 1))

"""Paired statistics: what two arms that share seeds and data order differ by, and how sure that is.

Every function takes the differences a - b of the pairs (one number per seed) and assumes that they are
independent and about normal. "No difference shown" and "equal" are kept apart: the first is an interval that
holds 0, the second an equivalence test with a stated margin.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import integrate, optimize, special, stats

from depthscale.errors import ResultError

#: A direction is never stated from fewer pairs than this.
MIN_PAIRS_FOR_VERDICT = 5

DEFAULT_POWER = 0.8

DirectionVerdict = Literal["a_better", "b_better", "not_decided"]
EquivalenceVerdict = Literal["equivalent", "different_beyond_margin", "not_decided"]
PairVerdict = Literal["a_better", "b_better", "equivalent", "not_decided"]


@dataclass(frozen=True)
class PairedInterval:
    """Student's t interval of a mean paired difference.

    Attributes:
        mean: mean of the differences a - b.
        low, high: ends of the interval, in the differences' own unit.
        confidence: two-sided level, in (0, 1).
        num_pairs: number of differences.
    """

    mean: float
    low: float
    high: float
    confidence: float
    num_pairs: int

    def excludes(self, value: float) -> bool:
        """Whether ``value`` lies outside the closed interval."""
        return not self.low <= value <= self.high


@dataclass(frozen=True)
class EquivalenceTest:
    """Outcome of two one-sided tests.

    Attributes:
        margin: differences within (-margin, margin) count as equal.
        interval: t interval at level 1 - 2 * (1 - confidence); it lies inside the margins exactly when both
            tests reject. None with fewer than two pairs.
        p_value: the larger of the two one-sided p-values; None with fewer than two pairs.
        verdict: see :func:`equivalence_test`.
    """

    margin: float
    interval: PairedInterval | None
    p_value: float | None
    verdict: EquivalenceVerdict


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> PairedInterval | None:
    """mean(d) +- t_(1 - (1 - confidence) / 2, n - 1) * sd(d) / sqrt(n).

    Args:
        differences: a - b per pair, finite.
        confidence: two-sided level, in (0, 1).

    Returns:
        The interval, or None with fewer than two pairs, from which no spread can be measured.

    Raises:
        ResultError: a difference is not finite, or the level is out of range.

    Example:
        >>> interval = paired_interval([-0.11, -0.09, -0.12, -0.08, -0.10])
        >>> round(interval.mean, 3), round(interval.low, 3), round(interval.high, 3)
        (-0.1, -0.12, -0.08)
        >>> paired_interval([-0.1]) is None
        True
    """
    _require_level("confidence", confidence)
    if not all(math.isfinite(difference) for difference in differences):
        raise ResultError(f"paired differences came as {list(differences)}; expected finite numbers")
    num_pairs = len(differences)
    if num_pairs < 2:
        return None
    mean = statistics.fmean(differences)
    half_width = _critical_t(confidence, num_pairs) * statistics.stdev(differences) / math.sqrt(num_pairs)
    return PairedInterval(mean, mean - half_width, mean + half_width, confidence, num_pairs)


def direction_verdict(interval: PairedInterval | None, beyond: float = 0.0) -> DirectionVerdict:
    """Which side has the lower loss: a direction only if the interval excludes 0 and rests on enough pairs.

    Args:
        interval: of a - b.
        beyond: at least 0; differences within it, on either side of 0, are held to be none.

    Example:
        >>> direction_verdict(paired_interval([-0.11, -0.09, -0.12, -0.08, -0.10]))
        'a_better'
        >>> direction_verdict(paired_interval([-0.11, -0.09, -0.12, -0.08, -0.10]), beyond=0.2)
        'not_decided'
        >>> direction_verdict(paired_interval([-0.11, -0.09, -0.12, -0.08]))
        'not_decided'
    """
    if interval is None or interval.num_pairs < MIN_PAIRS_FOR_VERDICT:
        return "not_decided"
    if interval.high < -beyond:
        return "a_better"
    return "b_better" if interval.low > beyond else "not_decided"


def smallest_detectable_difference(
    standard_deviation: float, num_pairs: int, confidence: float = 0.95, power: float = DEFAULT_POWER
) -> float | None:
    """The true mean difference that the two-sided paired t test finds with probability ``power``.

    Exact for normal differences, from the noncentral t distribution: the delta at which :func:`t_test_power`
    of delta * sqrt(n) / sd is ``power``. (The usual approximation (z_crit + z_power) * sd / sqrt(n) is too small
    by a quarter at five pairs.)

    Args:
        standard_deviation: of the paired differences, at least 0; an estimate makes the answer one.
        num_pairs: n.
        confidence: 1 minus the two-sided level of the test.
        power: probability of detection, above 1 - confidence and below 1.

    Returns:
        The difference in the unit of ``standard_deviation``, or None with fewer than two pairs.

    Source: Cohen, Statistical Power Analysis for the Behavioral Sciences (1988), section 2.2; Lehmann and
    Romano, Testing Statistical Hypotheses, section 5.2.

    Example:
        >>> round(smallest_detectable_difference(0.01, num_pairs=5), 4)
        0.0168
    """
    _require_level("confidence", confidence)
    _require_level("power", power)
    if not (math.isfinite(standard_deviation) and standard_deviation >= 0):
        raise ResultError(f"standard deviation came as {standard_deviation!r}; expected a finite number >= 0")
    if power <= 1 - confidence:
        raise ResultError(f"power came as {power}; expected more than the level {1 - confidence:.3g} of the test")
    if num_pairs < 2:
        return None
    upper = 2 * _critical_t(confidence, num_pairs)
    while t_test_power(upper, num_pairs, confidence) < power:
        upper *= 2
    noncentrality = float(
        optimize.brentq(lambda delta: t_test_power(delta, num_pairs, confidence) - power, 0.0, upper, xtol=1e-9)
    )
    return noncentrality * standard_deviation / math.sqrt(num_pairs)


def t_test_power(noncentrality: float, num_pairs: int, confidence: float = 0.95) -> float:
    """Probability that the two-sided paired t test rejects 0 at a noncentrality delta * sqrt(n) / sd.

    P(\\|T'\\| > t_crit) = E[Phi(noncentrality - t_crit * s) + Phi(-noncentrality - t_crit * s)] over s, the root of
    a chi-square with n - 1 degrees of freedom divided by them. The expectation is taken by quadrature over the
    quantiles of the chi-square, since scipy.stats.nct answers NaN far out at one degree of freedom.

    Example:
        >>> round(t_test_power(0.0, num_pairs=5), 4)
        0.05
    """
    critical = _critical_t(confidence, num_pairs)
    degrees = num_pairs - 1

    def power_at(quantile: float) -> float:
        reach = critical * math.sqrt(float(special.chdtri(degrees, 1 - quantile)) / degrees)
        return float(special.ndtr(noncentrality - reach) + special.ndtr(-noncentrality - reach))

    return float(integrate.quad(power_at, 0.0, 1.0, epsabs=1e-9, limit=200)[0])


def equivalence_test(differences: Sequence[float], margin: float, confidence: float = 0.95) -> EquivalenceTest:
    """Two one-sided t tests (TOST) of \\|mean difference\\| >= margin, each at level 1 - confidence.

    The verdict is ``equivalent`` when both tests reject, ``different_beyond_margin`` when the interval at level
    1 - 2 * (1 - confidence) lies wholly outside the margins, and ``not_decided`` otherwise or with fewer than
    five pairs.

    Args:
        differences: a - b per pair, finite.
        margin: positive, in the differences' unit; chosen before the runs.
        confidence: above 0.5.

    Source: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657-680.

    Example:
        >>> equivalence_test([0.001, -0.002, 0.0, 0.002, -0.001], margin=0.02).verdict
        'equivalent'
    """
    if not (math.isfinite(margin) and margin > 0):
        raise ResultError(f"equivalence margin came as {margin!r}; expected a positive number of nats")
    if not 0.5 < confidence < 1:
        raise ResultError(f"confidence came as {confidence!r}; expected a number between 0.5 and 1")
    interval = paired_interval(differences, 1 - 2 * (1 - confidence))
    if interval is None:
        return EquivalenceTest(margin, None, None, "not_decided")
    error = statistics.stdev(differences) / math.sqrt(interval.num_pairs)
    distance = margin - abs(interval.mean)
    # Without spread the statistic is infinite, on the side on which the mean lies.
    statistic = distance / error if error > 0 else math.inf * (1 if distance > 0 else -1)
    p_value = float(stats.t.sf(statistic, interval.num_pairs - 1))
    verdict: EquivalenceVerdict = "not_decided"
    if interval.num_pairs >= MIN_PAIRS_FOR_VERDICT:
        if p_value < 1 - confidence:
            verdict = "equivalent"
        elif interval.low > margin or interval.high < -margin:
            verdict = "different_beyond_margin"
    return EquivalenceTest(margin, interval, p_value, verdict)


def _critical_t(confidence: float, num_pairs: int) -> float:
    return float(stats.t.ppf(0.5 + confidence / 2, num_pairs - 1))


def _require_level(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ResultError(f"{name} came as {value!r}; expected a number between 0 and 1, such as 0.95")

"""Is there a gap in a sample? A test of "one group" on one number per token, sensitive to very small groups.

For order statistics X_(j) < X_(k) with m points between them, c of which lie beyond the share t of the way:

    S = sign * sqrt(2 m KL(c/m || 1 - t)),  t in PLACES,   sign + where c/m > 1 - t, the signed root of twice a
                                                           log likelihood ratio against a flat density

S well above 0 shows that the density rises somewhere between the two, well below 0 that it falls: under a density that
does not rise, c is at most binomial. Over many intervals of every length at once, |S| - sqrt(2 ln(e (n + 2) / (m + 1)))
exceeds a critical value somewhere with probability at most ``LEVEL`` where the statement would be false, for any sample
size and any continuous density. A proven fall with a proven rise to its right is a gap, which no density with one mode
has. Hartigan's dip, by contrast, is half the mass of a small group at most, so that it cannot see 0.4 % in fewer than
tens of thousands of tokens.

Source: Dümbgen & Walther 2008, Annals of Statistics 36, 1758 (simultaneous statements about rises and falls, and the
penalty); Rivera & Walther 2013, Scand. J. Statist. 40, 752 (likelihood ratios in place of linear statistics); Rufibach
& Walther 2010, JCGS 19, 175 (a thinned system of intervals).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

from depthscale.errors import DataError

Array = NDArray[np.float64]
Index = NDArray[np.intp]

#: Chance that a sample of one group is called more, over the features that are looked at together.
LEVEL = 0.01
#: Features over which the level is shared out.
NUM_FEATURES = 4
#: A gap whose density is above this share of the lower of the two peaks beside it is a shoulder, not a second group.
LARGEST_VALLEY = 0.5
#: Fewer points than this hold no group that could be told from chance.
FEWEST = 50

#: (n, critical value) at level LEVEL / NUM_FEATURES: quantiles under the uniform law, with errors of 0.03 to 0.05, from
#: benchmarks/probe_gap_levels.py.
_CRITICAL: tuple[tuple[int, float], ...] = ((50, 2.280), (200, 2.362), (1000, 2.358), (5000, 2.380), (25000, 2.418))

#: Places within an interval beyond which points are counted.
PLACES = (0.125, 0.25, 0.5, 0.75, 0.875)

_SHORTEST = 6
_STEPS_PER_LENGTH = 4
_POINTS_PER_DENSITY = 10


@dataclass(frozen=True)
class Gap:
    """A cut through the sample.

    Attributes:
        cut: where the density is lowest.
        valley: density there over the lower of the two peaks beside it, 0 for an empty gap.
        num_below: points below the cut.
    """

    cut: float
    valley: float
    num_below: int

    @property
    def is_deep(self) -> bool:
        """Deep enough to speak of two groups."""
        return self.valley <= LARGEST_VALLEY


def find_gap(values: Array) -> Gap | None:
    """The deepest proven gap of a sample, or None where one group explains it.

    Args:
        values: [n], at least FEWEST of them, finite; in any unit.

    Raises:
        DataError: too few values, or one that is not finite.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> find_gap(draw.normal(size=2000)) is None
        True
        >>> found = find_gap(np.concatenate([draw.normal(size=2000), draw.normal(8, 0.3, size=20)]))
        >>> found.num_below
        2000
    """
    if values.ndim != 1 or len(values) < FEWEST:
        raise DataError(f"{values.size} values came to look for groups in; expected at least {FEWEST} in one row")
    if not np.isfinite(values).all():
        raise DataError(f"{int((~np.isfinite(values)).sum())} values are not finite; expected finite ones only")
    ordered = np.sort(values.astype(np.float64))
    left, right = intervals(len(ordered))
    rising, falling = _statistics(ordered, left, right)
    bar = _penalty(left, right, len(ordered)) + critical_value(len(ordered))
    falls, rises = falling > bar, rising > bar
    gaps = [
        _cut(ordered, low, high) for low, high in _valleys((left[falls], right[falls]), (left[rises], right[rises]))
    ]
    return min(gaps, key=lambda gap: gap.valley) if gaps else None


def largest_statistic(values: Array) -> float:
    """max over intervals of |S| minus its penalty: what critical values are quantiles of, under the uniform law."""
    ordered = np.sort(values)
    left, right = intervals(len(ordered))
    largest = np.maximum(*_statistics(ordered, left, right))
    return float((largest - _penalty(left, right, len(ordered))).max())


def critical_value(num_values: int) -> float:
    """The critical value for n points, between simulated sizes in ln n, and above the last the last."""
    sizes, critical = zip(*_CRITICAL, strict=True)
    return float(np.interp(math.log(num_values), np.log(sizes), critical))


def intervals(num_values: int) -> tuple[Index, Index]:
    """Ranks (j, k) of the intervals looked at: lengths by factors of sqrt 2, starts a quarter of a length apart."""
    lefts, rights = [], []
    length = float(_SHORTEST)
    while round(length) < num_values:
        size = round(length)
        starts = np.arange(0, num_values - size, max(1, size // _STEPS_PER_LENGTH))
        lefts.append(starts)
        rights.append(starts + size)
        length *= math.sqrt(2)
    return np.concatenate(lefts), np.concatenate(rights)


def _statistics(ordered: Array, left: Index, right: Index) -> tuple[Array, Array]:
    """The largest S and the largest -S of each interval over the places."""
    low, high = ordered[left], ordered[right]
    count = (right - left - 1).astype(np.float64)
    rising, falling = np.zeros(len(left)), np.zeros(len(left))
    for place in PLACES:
        # Equal values have no places between them: all of them count as beyond, and the interval is left out below.
        beyond = right - np.searchsorted(ordered, low + place * (high - low), side="right")
        share = np.clip(beyond / count, 0.0, 1.0)
        size = np.sqrt(2 * count * (rel_entr(share, 1 - place) + rel_entr(1 - share, place)).clip(min=0.0))
        up = share > 1 - place
        rising = np.where(up, np.maximum(rising, size), rising)
        falling = np.where(up, falling, np.maximum(falling, size))
    flat = high <= low
    return np.where(flat, 0.0, rising), np.where(flat, 0.0, falling)


def _penalty(left: Index, right: Index, num_values: int) -> Array:
    result: Array = np.sqrt(2.0 * np.log(np.e * (num_values + 2) / (right - left)))
    return result


def _valleys(falls: tuple[Index, Index], rises: tuple[Index, Index]) -> list[tuple[int, int]]:
    """For each disjoint fall-then-rise, read from the left: first and last rank."""
    found: list[tuple[int, int]] = []
    after = 0
    while True:
        usable = falls[0] >= after
        if not usable.any():
            return found
        fall = np.flatnonzero(usable)[np.argmin(falls[1][usable])]
        behind = rises[0] >= falls[1][fall]
        if not behind.any():
            return found
        rise = np.flatnonzero(behind)[np.argmin(rises[1][behind])]
        # The last fall before that rise ends nearest to the gap.
        before = (falls[1] <= rises[0][rise]) & usable
        nearest = np.flatnonzero(before)[np.argmax(falls[1][before])]
        found.append((int(falls[0][nearest]), int(rises[1][rise])))
        after = int(rises[0][rise])


def _cut(ordered: Array, low: int, high: int) -> Gap:
    """The widest spacing between two ranks, and how low the density is there.

    Densities are of a tenth of the smaller side's points at a time: fewer would make valleys and peaks of chance.
    """
    at, _ = _widest(ordered, low, high, max(1, math.isqrt(high - low) // 2))
    size = min(at, len(ordered) - at)
    step = max(1, size // _POINTS_PER_DENSITY)
    at, width = _widest(ordered, max(low - step, 0), min(high + step, len(ordered) - 1), step)
    # The widest spacing of single points within it, so that an empty gap is cut in its middle.
    first = max(at - step, 0)
    inner = np.diff(ordered[first : at + step + 1])
    widest = first + int(inner.argmax())
    cut = float((ordered[widest] + ordered[widest + 1]) / 2)
    below = widest + 1
    lower_peak = min(_peak(ordered[:below], step), _peak(ordered[below:], step))
    valley = 0.0 if math.isinf(lower_peak) else step / width / lower_peak if width > 0 else math.inf
    return Gap(cut, valley, below)


def _widest(ordered: Array, low: int, high: int, step: int) -> tuple[int, float]:
    """Middle rank and width of the widest run of ``step`` spacings between two ranks."""
    step = min(step, high - low)
    spacing = ordered[low + step : high + 1] - ordered[low : high + 1 - step]
    widest = int(spacing.argmax())
    return low + widest + step // 2, float(spacing[widest])


def _peak(side: Array, step: int) -> float:
    """Highest density of ``step`` spacings of a side; infinite where its values are equal or too few."""
    if len(side) <= step:
        return math.inf
    narrowest = float((side[step:] - side[:-step]).min())
    return step / narrowest if narrowest > 0 else math.inf

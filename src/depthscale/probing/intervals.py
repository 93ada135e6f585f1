"""A number with its interval, and how resampling makes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
NUM_RESAMPLES = 1000
#: Fewer rows give no interval.
FEWEST_ROWS = 3


@dataclass(frozen=True)
class Measured:
    """A figure.

    Attributes:
        value: the estimate; NaN where it does not exist.
        low, high: 95 % interval; equal to nothing (NaN) where too few rows came to make one.
        unit: of all three.
    """

    value: float
    low: float
    high: float
    unit: str = ""

    @property
    def has_interval(self) -> bool:
        """Both ends are known."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def above(self, threshold: float) -> bool:
        """The whole interval lies above; without one, never."""
        return self.has_interval and self.low > threshold

    def below(self, threshold: float) -> bool:
        """The whole interval lies below; without one, never."""
        return self.has_interval and self.high < threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def mean_of_rows(values: Sequence[float], unit: str = "", seed: int = 0) -> Measured:
    """Mean over rows of text with its bootstrap interval; rows that are not finite are left out."""
    array = np.asarray(values, dtype=np.float64)
    array = array[np.isfinite(array)]
    if not len(array):
        return Measured(np.nan, np.nan, np.nan, unit)
    value = float(array.mean())
    if len(array) < FEWEST_ROWS:
        return Measured(value, np.nan, np.nan, unit)
    drawn = np.random.default_rng(seed).integers(len(array), size=(NUM_RESAMPLES, len(array)))
    return with_draws(value, array[drawn].mean(axis=1), unit)


def with_draws(value: float, draws: Array, unit: str = "") -> Measured:
    """A figure with the percentile interval of its resamples; none where half of them or more do not exist."""
    known = draws[np.isfinite(draws)]
    if not np.isfinite(value) or 2 * len(known) <= len(draws):
        return Measured(value, np.nan, np.nan, unit)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Measured(value, float(low), float(high), unit)


def resampled(
    figure: Callable[[NDArray[np.intp]], float],
    num_rows: int,
    unit: str = "",
    seed: int = 0,
    count: int = NUM_RESAMPLES,
) -> Measured:
    """A figure of some rows, with the percentile interval over draws of rows with replacement.

    Args:
        figure: indices of rows, repeats allowed, to the figure.
        num_rows: how many there are; fewer than FEWEST_ROWS give no interval.
        unit: of the figure.
        seed: of the draws.
        count: of draws.
    """
    value = figure(np.arange(num_rows))
    if num_rows < FEWEST_ROWS or not np.isfinite(value):
        return Measured(value, np.nan, np.nan, unit)
    generator = np.random.default_rng(seed)
    return with_draws(
        value, np.array([figure(generator.integers(num_rows, size=num_rows)) for _ in range(count)]), unit
    )

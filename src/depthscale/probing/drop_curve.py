"""Excess loss against the number of dropped layers: what averaging and what a smooth flow predict.

Let n layers of a group add updates to a state, and drop k of them at random. The output error is the sum of the dropped
updates, and the divergence from the unchanged output is quadratic in it:

    uncorrelated updates   errors add as squares      divergence ~ k         rescaled ~ 1/(n-k) - 1/n
    one smooth flow        errors add as they are     divergence ~ k^2       rescaled ~ 0

Rescaled: the n - k kept updates are multiplied by n / (n - k). Of a smooth flow that restores nearly all; of averaged
noise it makes the output worse, by the factor n / (n - k), as a mean over fewer terms is worse. So the ratio of the
rescaled to the plain divergence tells the two apart without a fit.

Source: the 1/l of ensemble averaging is arXiv 2602.05970's; these predictions are depthscale's, and are checked on
teachers of both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.probing.intervals import FEWEST_ROWS, NUM_RESAMPLES, Measured, mean_of_rows, with_draws

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DropCurve:
    """One group's response.

    Attributes:
        group: its visits.
        counts: k of each point.
        excess, excess_rescaled: mean excess loss at each k, nats, with intervals over rows of text.
        divergence, divergence_rescaled: mean KL from the unchanged output, nats.
        exponent: of divergence ~ k^exponent up to a quarter of the group; 1 under averaging, 2 under a smooth flow.
        ratio: rescaled over plain divergence at the k nearest to half of the group.
        ratio_predicted: n / (n - k) there, what averaging predicts.
        averaging_misfit: root mean square of ln(rescaled divergence) about c (1/(n-k) - 1/n), c fitted.
    """

    group: tuple[int, ...]
    counts: tuple[int, ...]
    excess: tuple[Measured, ...]
    excess_rescaled: tuple[Measured, ...]
    divergence: tuple[Measured, ...]
    divergence_rescaled: tuple[Measured, ...]
    exponent: Measured
    ratio: Measured
    ratio_predicted: float
    averaging_misfit: float

    @property
    def relative_ratio(self) -> Measured:
        """The ratio in units of what averaging predicts: 1 under averaging, 0 under a smooth flow."""
        unit = self.ratio_predicted
        return Measured(self.ratio.value / unit, self.ratio.low / unit, self.ratio.high / unit)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def drop_curve(records: Sequence[Mapping[str, Any]], seed: int = 0) -> DropCurve:
    """The curve of one group from its measured drops.

    Args:
        records: of kind ``drop`` and ``drop_rescaled``, all of one group, over the same rows of text.
        seed: of the resamples, which draw rows of text and, within each k, choices of layers.
    """
    group = tuple(records[0]["group"])
    counts = sorted({len(record["visits"]) for record in records})
    table = {
        (kind, name): [
            np.array([r[name] for r in records if r["kind"] == kind and len(r["visits"]) == k], dtype=np.float64)
            for k in counts
        ]
        for kind in ("drop", "drop_rescaled")
        for name in ("excess", "divergence")
    }
    num_rows = table["drop", "excess"][0].shape[1]

    def points(kind: str, name: str, unit: str) -> tuple[Measured, ...]:
        return tuple(mean_of_rows(values.mean(axis=0).tolist(), unit, seed) for values in table[kind, name])

    plain, rescaled = table["drop", "divergence"], table["drop_rescaled", "divergence"]
    low_end = [i for i, k in enumerate(counts) if k <= max(len(group) / 4, counts[min(2, len(counts) - 1)])]
    middle = int(np.argmin([abs(k - len(group) / 2) for k in counts]))
    draws = _Draws(num_rows, seed)
    plain_draws = {i: draws.means(plain[i]) for i in {*low_end, middle}}
    slopes = _slopes([counts[i] for i in low_end], np.stack([plain_draws[i] for i in low_end]))
    ratios = _ratios(draws.means(rescaled[middle]), plain_draws[middle])
    divergence_rescaled = points("drop_rescaled", "divergence", "nats")
    return DropCurve(
        group=group,
        counts=tuple(counts),
        excess=points("drop", "excess", "nats"),
        excess_rescaled=points("drop_rescaled", "excess", "nats"),
        divergence=points("drop", "divergence", "nats"),
        divergence_rescaled=divergence_rescaled,
        exponent=draws.measured(slopes),
        ratio=draws.measured(ratios),
        ratio_predicted=len(group) / (len(group) - counts[middle]),
        averaging_misfit=_misfit(len(group), counts, [point.value for point in divergence_rescaled]),
    )


class _Draws:
    """Rows of text and, within each k, choices of layers, both drawn with replacement; entry 0 is all of them."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._few = num_rows < FEWEST_ROWS
        drawn = self._generator.integers(num_rows, size=(NUM_RESAMPLES, num_rows))
        self._rows = np.concatenate([np.arange(num_rows)[None], drawn])

    def means(self, values: Array) -> Array:
        """Means [1 + resamples] of values [choices, rows]."""
        count = len(values)
        drawn = self._generator.integers(count, size=(len(self._rows) - 1, count))
        choices = np.concatenate([np.arange(count)[None], drawn])
        result: Array = values[choices[:, :, None], self._rows[:, None, :]].mean(axis=(1, 2))
        return result

    def measured(self, values: Array) -> Measured:
        """The figure of all, with the interval of the resamples; none with too few rows of text."""
        return with_draws(float(values[0]), values[1:] if not self._few else np.full(1, np.nan))


def _slopes(counts: Sequence[int], values: Array) -> Array:
    """Of ln values [k, draws] against ln k; NaN where a value is not positive, or with one k only."""
    if len(counts) < 2:
        return np.full(values.shape[1], np.nan)
    good = (values > 0).all(axis=0)
    logs = np.log(np.where(good, values, 1.0))
    return np.where(good, np.polyfit(np.log(counts), logs, 1)[0], np.nan)


def _ratios(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _misfit(size: int, counts: Sequence[int], values: Sequence[float]) -> float:
    if min(values) <= 0:
        return np.nan
    predicted = np.log([1 / (size - k) - 1 / size for k in counts])
    return float(np.std(np.log(values) - predicted))

"""Row and cluster bootstrap: every replicate is refitted to its minimum in one batch, certified or counted out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.certificate import FitError, stationarity
from depthscale.laws.fitting import Fit, to_natural
from depthscale.laws.newton import minimize
from depthscale.laws.quantities import Quantity, evaluate

Array = NDArray[np.float64]

# Members that fit the cache together; larger batches run at the speed of memory.
_BATCH = 128
_FEWEST_GROUPS = 3
#: Share of replicates without a certificate above which no bootstrap interval is given.
LARGEST_DISCARDED = 0.1
_MORE_ITERATIONS = 1000  # for the few replicates that creep along a valley


@dataclass(frozen=True)
class Bootstrap:
    """Refitted parameters.

    Attributes:
        kind: rows or clusters.
        names: parameters in order.
        parameters: [B, P], natural units, certified replicates only.
        num_discarded: replicates that did not pass; they are in no figure.
        num_units: rows or clusters that were drawn from.
    """

    kind: Literal["rows", "clusters"]
    names: tuple[str, ...]
    parameters: Array
    num_discarded: int
    num_units: int

    @property
    def is_sound(self) -> bool:
        """Few enough replicates were discarded for an interval to mean something: at most a tenth."""
        return self.num_discarded <= LARGEST_DISCARDED * (self.num_discarded + len(self.parameters))

    def values(self, quantity: Quantity) -> Array:
        """The quantity in each replicate [B]."""
        return evaluate(quantity, self.names, self.parameters)

    def column(self, name: str) -> Array:
        """One parameter in each replicate [B]."""
        return self.parameters[:, self.names.index(name)]

    def errors(self) -> dict[str, float]:
        """Standard deviation of each parameter over the replicates, natural units."""
        return dict(zip(self.names, self.parameters.std(axis=0, ddof=1).tolist(), strict=True))

    def interval(self, quantity: Quantity, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval."""
        low, high = np.quantile(self.values(quantity), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


def bootstrap(fit: Fit, num_replicates: int = 1000, seed: int = 0, clusters: bool = False) -> Bootstrap:
    """Draw rows (or whole groups) with replacement and refit from the full fit's minimum.

    Args:
        fit: a certified fit.
        num_replicates: draws.
        seed: of the draws.
        clusters: draw ``data.groups`` instead of rows: for rows of one architecture or one run.

    Raises:
        FitError: the fit has no certificate, or no replicate passed.
        ConfigError: fewer than 3 groups to draw from.
    """
    fit.certificate.require()
    codes = fit.data.group_codes if clusters else np.arange(fit.data.num_rows)
    num_units = int(codes.max()) + 1
    if num_units < _FEWEST_GROUPS:
        raise ConfigError(f"{num_units} groups came to be drawn from; expected at least {_FEWEST_GROUPS}")
    counts = draw_counts(num_units, num_replicates, seed)
    kept, discarded = refit(fit, counts[:, codes] * fit.data.row_weights)
    if not len(kept):
        raise FitError(f"none of {num_replicates} replicates is certified; these rows do not determine the law")
    return Bootstrap("clusters" if clusters else "rows", fit.law.parameters, kept, discarded, num_units)


def draw_counts(num_units: int, num_replicates: int, seed: int) -> Array:
    """How often each unit is drawn [B, G]; each row sums to G."""
    generator = np.random.default_rng(seed)
    share = np.full(num_units, 1 / num_units)
    return generator.multinomial(num_units, share, size=num_replicates).astype(np.float64)


def refit(fit: Fit, weights: Array, observed: Array | None = None) -> tuple[Array, int]:
    """Refit under other weights [B, n] (and other losses [B, n], natural units).

    Returns:
        Natural parameters [certified, P], and how many replicates did not pass.
    """
    parameters, good = refit_each(fit, weights, observed)
    return parameters[good], int((~good).sum())


def refit_each(fit: Fit, weights: Array, observed: Array | None = None) -> tuple[Array, NDArray[np.bool_]]:
    """As :func:`refit`, in order and with the failed ones in place: parameters [B, P], certified [B]."""
    count = len(weights) if observed is None else len(observed)
    parameters, good = np.empty((count, len(fit.law.parameters))), np.empty(count, dtype=np.bool_)
    for first in range(0, count, _BATCH):
        rows = slice(first, min(first + _BATCH, count))
        problem = replace(fit.problem, weights=weights[rows] if len(weights) > 1 else weights)
        if observed is not None:
            problem = replace(problem, observed=observed[rows] / fit.problem.bound.loss_scale)
        start = np.repeat(fit.z[None], rows.stop - rows.start, axis=0)
        solution = minimize(problem, start)
        z, holds = solution.z, stationarity(problem, solution.z).holds
        slow = np.flatnonzero(~holds)
        if len(slow):
            z[slow] = minimize(problem.take(slow), z[slow], _MORE_ITERATIONS).z
            holds[slow] = stationarity(problem.take(slow), z[slow]).holds
        parameters[rows] = to_natural(problem, z)
        good[rows] = holds & np.isfinite(parameters[rows]).all(axis=1)
    return parameters, good


def finite_interval(result: Bootstrap, quantity: Quantity, level: float) -> list[float] | None:
    """Percentile interval over the replicates in which the quantity exists; None where it exists in none."""
    return percentiles(result.values(quantity), level)


def percentiles(values: Array, level: float) -> list[float] | None:
    """Percentile interval of the finite values [B]; None where there are none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]

"""Runs that share a seed are not independent: what that does to the interval of the edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ResultError

Array = NDArray[np.float64]

#: For each exponent whether the run of each seed trained.
Outcomes = Sequence[Mapping[int, bool]]


def seed_factor(x: Array, shares: Array, middle: float, outcomes: Outcomes) -> float:
    """Variance of p50 with the runs of a seed taken together, over that of independent runs; at least 1.

    g' I^-1 (sum_s u_s u_s') I^-1 g * S / (S - 1) / (g' I^-1 g) with u_s the sum of a seed's scores (y - share) (1, x),
    I the information of independent runs, and g = (1, p50), the direction in which p50 moves. An interval of the
    likelihood keeps its level where its quantile is multiplied by this.

    Args:
        x: exponents.
        shares: fitted at each, strictly between 0 and 1 somewhere.
        middle: p50 in the unit of ``x``.
        outcomes: of at least two seeds.

    Raises:
        ResultError: fewer than two seeds.

    Source: Rao and Scott, Annals of Statistics 15 (1987) 385-397 (one parameter); Liang and Zeger, Biometrika 73 (1986)
    13-22, for the variance by groups.

    Example:
        >>> x, alike = np.array([0.0, 1.0]), [{1: False, 2: True}, {1: False, 2: True}]
        >>> seed_factor(x, np.array([0.5, 0.5]), 0.5, alike)
        4.0
    """
    seeds = sorted({seed for at in outcomes for seed in at})
    if len(seeds) < 2:
        raise ResultError(f"runs of {len(seeds)} seeds came; expected at least 2 to see how they depend on each other")
    design = np.stack([np.ones_like(x), x], axis=1)
    scores = np.zeros((len(seeds), 2))
    information = np.zeros((2, 2))
    for row, share, at in zip(design, shares, outcomes, strict=True):
        information += len(at) * share * (1 - share) * np.outer(row, row)
        for seed, trained in at.items():
            scores[seeds.index(seed)] += (trained - share) * row
    toward = np.linalg.solve(information, np.array([1.0, middle]))
    spread = float(((scores @ toward) ** 2).sum()) * len(seeds) / (len(seeds) - 1)
    return max(1.0, spread / float(toward @ information @ toward))

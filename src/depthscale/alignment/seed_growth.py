"""Growth over rounds where every seed has a level and an exponent of its own."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from depthscale.alignment.growth import GrowthExponent, growth_exponent
from depthscale.laws import LAWS, Objective, Observations, search


def at_one_level(keys: Sequence[tuple[int, int]], values: Sequence[float]) -> list[float]:
    """Sizes with each seed's own level taken out, so that only growth within a seed is left to fit.

    A norm differs between initializations by a factor that all R of one seed share; kappa, which starts from 1 at
    R = 1, has no such level. An exponent is unchanged; the fit's interval, which is not told of the levels, is short
    by up to sqrt((n - 2) / (n - 1 - seeds)) for n points, see :func:`growth_over_seeds`. Seeds that were not all
    measured at the same R are left alone.

    Args:
        keys: (rounds, seed) of each value.
        values: positive.

    Example:
        >>> [round(v, 6) for v in at_one_level([(1, 0), (2, 0), (1, 1), (2, 1)], [1.0, 2.0, 4.0, 8.0])]
        [2.0, 4.0, 2.0, 4.0]
    """
    rounds_of = {seed: sorted(r for r, s in keys if s == seed) for _, seed in keys}
    if any(found != rounds_of[keys[0][1]] for found in rounds_of.values()) or not all(v > 0 for v in values):
        return list(values)
    own = {seed: statistics.fmean(math.log(v) for (_, s), v in zip(keys, values, strict=True) if s == seed)
           for seed in rounds_of}  # fmt: skip
    middle = statistics.fmean(own.values())
    return [v * math.exp(middle - own[seed]) for (_, seed), v in zip(keys, values, strict=True)]


def growth_over_seeds(keys: Sequence[tuple[int, int]], values: Sequence[float], level: float) -> GrowthExponent:
    """value ~ R^a over rounds and seeds; seeds, not points, are independent.

    A seed's points bend together, so that the fit's own interval covers too seldom (76 % of 95 % intervals where each
    of three seeds has an exponent of its own). It is widened to Student's interval of the seeds' exponents where that
    is the wider one.

    Args:
        keys: (rounds, seed) of each value.
        values: positive.
        level: of the interval.
    """
    fit = growth_exponent([float(rounds) for rounds, _ in keys], values, level)
    of_seeds = seed_exponents(keys, values)
    if len(of_seeds) < 2:
        return fit
    error = statistics.stdev(of_seeds) / math.sqrt(len(of_seeds))
    half_width = error * float(student.ppf((1 + level) / 2, len(of_seeds) - 1))
    lower, upper = min(fit.lower, fit.exponent - half_width), max(fit.upper, fit.exponent + half_width)
    return dataclasses.replace(fit, lower=lower, upper=upper)


def seed_exponents(keys: Sequence[tuple[int, int]], values: Sequence[float]) -> list[float]:
    """The exponent of each seed alone, where it has three points."""
    found = []
    for seed in sorted({seed for _, seed in keys}):
        own = [(float(r), value) for (r, s), value in zip(keys, values, strict=True) if s == seed]
        rounds, sizes = np.array(own).T
        if len(own) >= 3 and (sizes > 0).all():
            fit = search(LAWS["growth"], Observations({"x": rounds}, sizes), Objective("log_squares"))
            found.append(fit.uncertified_parameters["a"])
    return found

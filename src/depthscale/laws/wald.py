"""Are these constraints true, when rows of one group err together? A Wald test by the cluster sandwich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from scipy.stats import f as f_distribution

from depthscale.laws.fitting import Fit
from depthscale.laws.standard_errors import robust_covariance

_NOTHING: Mapping[str, float] = MappingProxyType({})


def group_p_value(
    fit: Fit, pairs: Sequence[tuple[str, str]] = (), fixed: Mapping[str, float] = _NOTHING
) -> float | None:
    """p of W (G - q) / (q (G - 1)) against F(q, G - q), for G groups and q constraints.

    A deviance counts every row as news; copies of a row then make anything significant. Here only groups count.

    Args:
        fit: the certified fit without the constraints.
        pairs: parameters that are equal under the hypothesis; coefficients are compared by their logs.
        fixed: exponents or floors that have a value under the hypothesis.

    Returns:
        None where the rows have no groups, or too few for that many constraints.

    Source: Hotelling's scaling of the Wald statistic for a covariance estimated from G clusters, as in Cameron and
        Miller, Journal of Human Resources 50 (2015), section VI.
    """
    degrees = len(pairs) + len(fixed)
    spare = fit.data.num_groups - degrees
    if fit.data.groups is None or spare < 1:
        return None
    covariance = robust_covariance(fit)
    contrast = np.zeros((degrees, len(covariance.names)))
    claimed = np.zeros(degrees)
    for row, (first, second) in enumerate(pairs):
        contrast[row, covariance.names.index(first)] = -1.0
        contrast[row, covariance.names.index(second)] = 1.0
    for row, (name, value) in enumerate(fixed.items(), start=len(pairs)):
        contrast[row, covariance.names.index(name)] = 1.0
        claimed[row] = value
    away = contrast @ fit.working - claimed
    spread = contrast @ covariance.matrix @ contrast.T
    # Scores summed within G groups span at most G - 1 directions: with more parameters there may be no inverse.
    if np.linalg.matrix_rank(spread) < degrees:
        return None
    statistic = float(away @ np.linalg.solve(spread, away))
    return float(f_distribution.sf(statistic * spare / (degrees * (fit.data.num_groups - 1)), degrees, spare))

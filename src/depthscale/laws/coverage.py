"""Do intervals hold what they promise? Coverage of each kind by simulation at a real design.

Losses are drawn around a fit's own predictions, refitted, and each kind of interval is asked for the parameter that
is then known. Three ways to draw the noise:

    resampled  residuals drawn anew with replacement: independent, one distribution
    wild       each row keeps its residual up to a random sign: spreads may differ from row to row
    clustered  one sign per group: rows of one architecture err together
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as t_distribution

from depthscale.errors import ConfigError, unknown_name
from depthscale.laws.fitting import Fit, from_natural
from depthscale.laws.profiling import profile
from depthscale.laws.quantities import parameter
from depthscale.laws.resampling import bootstrap, refit_each
from depthscale.laws.standard_errors import (
    Covariance,
    hessian_covariance,
    jacobian_covariance,
    relative_residuals,
    sandwich_covariance,
)

Array = NDArray[np.float64]
Noise = Literal["resampled", "wild", "clustered"]
INTERVALS = (
    "jacobian",
    "hessian",
    "sandwich",
    "cluster_sandwich",
    "profile",
    "row_bootstrap",
    "cluster_bootstrap",
)


_COVARIANCES: Mapping[str, Callable[[Fit], Covariance]] = {
    "jacobian": jacobian_covariance,
    "hessian": hessian_covariance,
    "sandwich": sandwich_covariance,
    "cluster_sandwich": partial(sandwich_covariance, clustered=True),
}


@dataclass(frozen=True)
class Coverage:
    """Shares of simulations whose interval holds the truth.

    Attributes:
        noise: how losses were drawn.
        level: that intervals aim at.
        num_simulations: drawn.
        num_certified: refits that count.
        shares: parameter to kind of interval to share.
        widths: likewise, median width in natural units; infinite where intervals are open.
        num_replicates: of the bootstraps.
    """

    noise: Noise
    level: float
    num_simulations: int
    num_certified: int
    shares: dict[str, dict[str, float]]
    widths: dict[str, dict[str, float]]
    num_replicates: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return {
            "noise": self.noise,
            "level": self.level,
            "num_simulations": self.num_simulations,
            "num_certified": self.num_certified,
            "num_replicates": self.num_replicates,
            "shares": self.shares,
            "widths": self.widths,
        }


def simulate_coverage(
    fit: Fit,
    names: Sequence[str],
    noise: Noise = "resampled",
    num_simulations: int = 200,
    num_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Coverage:
    """Simulate, refit and count.

    Args:
        fit: whose parameters are the truth and whose residuals are the noise.
        names: parameters to ask for.
        noise: see above; ``clustered`` uses ``data.groups``.
        num_simulations: data sets.
        num_replicates: of each bootstrap, per data set.
        level: of the intervals.
        seed: of everything.
    """
    if noise not in get_args(Noise):
        raise ConfigError(unknown_name("noise", str(noise), get_args(Noise)))
    truth = fit.parameters
    losses = draw_losses(fit, noise, num_simulations, seed)
    parameters, good = refit_each(fit, fit.data.row_weights[None], losses)
    kinds = [kind for kind in INTERVALS if fit.data.groups is not None or not kind.startswith("cluster")]
    inside = {name: dict.fromkeys(kinds, 0) for name in names}
    widths: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in names}
    for number in np.flatnonzero(good):
        refitted = _with_losses(fit, losses[number], parameters[number])
        for kind in kinds:
            found = _intervals(refitted, names, kind, num_replicates, level, seed + int(number))
            for name, (low, high) in found.items():
                inside[name][kind] += low <= truth[name] <= high
                widths[name][kind].append(high - low)
    certified = int(good.sum())
    return Coverage(
        noise,
        level,
        num_simulations,
        certified,
        {name: {kind: inside[name][kind] / max(certified, 1) for kind in kinds} for name in names},
        {name: {kind: float(np.median(widths[name][kind])) for kind in kinds} for name in names},
        num_replicates,
    )


def draw_losses(fit: Fit, noise: Noise, num_simulations: int, seed: int) -> Array:
    """Losses [B, n] around the fit's predictions; log residuals, scaled by sqrt(n / (n - P))."""
    generator = np.random.default_rng(seed)
    count = fit.data.num_rows
    residual = -relative_residuals(fit)
    if noise == "resampled":
        drawn = (residual - residual.mean())[generator.integers(count, size=(num_simulations, count))]
    else:
        codes = fit.data.group_codes if noise == "clustered" else np.arange(count)
        signs = generator.choice([-1.0, 1.0], size=(num_simulations, int(codes.max()) + 1))
        drawn = signs[:, codes] * residual
    result: Array = fit.predicted * np.exp(drawn)
    return result


def _with_losses(fit: Fit, losses: Array, parameters: Array) -> Fit:
    problem = replace(fit.problem, observed=losses[None] / fit.problem.bound.loss_scale)
    z = from_natural(problem, parameters[None])[0]
    return replace(fit, data=fit.data.with_loss(losses), problem=problem, z=z)


def _intervals(
    fit: Fit, names: Sequence[str], kind: str, num_replicates: int, level: float, seed: int
) -> dict[str, tuple[float, float]]:
    if kind == "profile":
        found = profile(fit, [parameter(fit, name) for name in names], level)
        return {interval.name: (interval.lower, interval.upper) for interval in found}
    if kind.endswith("bootstrap"):
        draws = bootstrap(fit, num_replicates, seed, clusters=kind == "cluster_bootstrap")
        return {name: draws.interval(parameter(fit, name), level) for name in names}
    covariance = _COVARIANCES[kind](fit)
    units = fit.data.num_groups if kind == "cluster_sandwich" else fit.data.num_rows
    spare = units - 1 if kind == "cluster_sandwich" else units - fit.num_free
    quantile = float(t_distribution.ppf((1 + level) / 2, max(spare, 1)))
    estimates, errors = fit.parameters, covariance.errors
    return {
        name: (estimates[name] - quantile * errors[name], estimates[name] + quantile * errors[name]) for name in names
    }

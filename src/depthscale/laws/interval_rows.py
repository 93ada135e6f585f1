"""Every interval of a number side by side, as plain data, and the name of the one that is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from depthscale.laws.fitting import Fit
from depthscale.laws.profiling import ProfileInterval
from depthscale.laws.quantities import Quantity
from depthscale.laws.resampling import Bootstrap, finite_interval
from depthscale.laws.standard_errors import hessian_covariance, jacobian_covariance, sandwich_covariance


def interval_kind(draws: Bootstrap | None) -> str:
    """Which interval is printed, in words."""
    if draws is None:
        return "profile likelihood, rows taken as independent"
    if draws.kind == "clusters":
        return f"cluster bootstrap over {draws.num_units} groups"
    return f"bootstrap over {draws.num_units} rows taken as independent"


def parameter_rows(
    fit: Fit,
    quantities: Sequence[Quantity],
    profiles: Sequence[ProfileInterval],
    draws: Bootstrap | None,
    level: float,
) -> list[dict[str, Any]]:
    """One row for each parameter, with the standard errors of every kind."""
    kinds = {
        "jacobian": jacobian_covariance(fit).errors,
        "hessian": hessian_covariance(fit).errors,
        "sandwich": sandwich_covariance(fit).errors,
    }
    if fit.data.groups is not None:
        kinds["cluster_sandwich"] = sandwich_covariance(fit, clustered=True).errors
    rows = []
    for quantity, interval in zip(quantities, profiles, strict=False):
        row = interval_row(quantity, interval, draws, level)
        row["errors"] = {kind: errors[quantity.name] for kind, errors in kinds.items()}
        rows.append(row)
    return rows


def interval_row(
    quantity: Quantity, interval: ProfileInterval, draws: Bootstrap | None, level: float
) -> dict[str, Any]:
    """Estimate, the interval that is printed, and the profile's beside it; an open end is infinite."""
    profiled = [interval.lower, interval.upper]
    printed: list[float] | None = profiled
    deviation = None
    if draws is not None:
        printed = finite_interval(draws, quantity, level)
        values = draws.values(quantity)
        deviation = float(values[np.isfinite(values)].std(ddof=1))
    return {
        "name": quantity.name,
        "estimate": interval.estimate,
        "interval": printed,
        "bootstrap_sd": deviation,
        "profile": profiled,
    }


def profile_data(interval: ProfileInterval) -> dict[str, Any]:
    """A profile with its points."""
    good = np.isfinite(interval.values)
    data = asdict(interval)
    return {**data, "values": interval.values[good].tolist(), "deviances": interval.deviances[good].tolist()}

"""What a law's columns cost, and what follows for spending: frontier by budget, isoFLOP curves and their parabola."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, DataError
from depthscale.laws.fitting import Fit
from depthscale.laws.frontier import (
    BLOCK_PARAMETERS,
    CHINCHILLA_FLOPS,
    WIDTH_DEPTH_TOKENS_FLOPS,
    Budget,
    frontier_exponent_quantity,
    optimal_loss,
    optimal_ratio_quantity,
    optimal_shape,
    optimal_size_quantity,
    smelt_flops,
)
from depthscale.laws.isoflop import fit_parabola, parabola_bias
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.observations import Observations
from depthscale.laws.quantities import Quantity, ratio
from depthscale.laws.resampling import Bootstrap, percentiles

Array = NDArray[np.float64]

_SHARES = (0.1, 0.5, 0.9)  # of the rows' budgets, at which isoFLOP curves are drawn
_NUM_SIZES = 41
_NUM_BUDGETS = 25
_MAP_REACH = 3.0
_MAP_LINES = 31
_REACH = 100.0  # the frontier is drawn this far beyond the largest budget


def closed_budget(law: AdditiveLaw, data: Observations, depth_offset: float = 0.0) -> Budget | None:
    """Training FLOPs over the law's columns, embeddings and attention left out; None for a law without that form.

    Columns that no budget moves (rounds, the active share) stay at the rows' median.

    Args:
        law: what is fitted.
        data: its rows.
        depth_offset: layers that the column ``depth`` leaves out; they cost as the others do.

    Raises:
        DataError: the rows loop, and what a round costs is not in the law's columns.
    """
    columns = set(law.columns)
    budget: Budget | None = None
    # A column read twice, as by an interaction, has no exponent of its own.
    if not law.reads_once:
        return None
    if columns == {"parameters", "tokens"}:
        budget = CHINCHILLA_FLOPS
    elif columns == {"width", "depth", "tokens"}:
        budget = WIDTH_DEPTH_TOKENS_FLOPS
    elif columns == {"unrolled_parameters", "tokens"}:
        budget = Budget({"unrolled_parameters": 1.0, "tokens": 1.0}, 6.0)
    elif columns == {"width", "blocks", "rounds", "tokens"}:
        rounds = float(np.median(data.column("rounds")))
        powers = {"width": 2.0, "blocks": 1.0, "tokens": 1.0}
        budget = Budget(powers, 6 * BLOCK_PARAMETERS, {"rounds": rounds}, {"rounds": 1.0})
    elif columns == {"flops_per_token", "active_share", "tokens"}:
        budget = smelt_flops(float(np.median(data.column("active_share"))))
    if budget is None:
        return None
    chosen = [law.factor_of(column) for column in budget.powers]
    # Two sizes in one term trade one for one at every budget: no optimum lies between them.
    if len({term.coefficient for term, _ in chosen}) < len(chosen):
        return None
    if {factor.kind for _, factor in chosen} != {"inverse_power"}:
        return None
    _require_rounds_counted(law, data, depth_offset)
    return replace(budget, offsets={"depth": depth_offset}) if depth_offset and "depth" in budget.powers else budget


def _require_rounds_counted(law: AdditiveLaw, data: Observations, depth_offset: float) -> None:
    """Refuse to count compute where blocks are visited more than once and the law's columns do not say so."""
    rounds = data.columns.get("rounds")
    if rounds is None or not (rounds > 1).any():
        return
    hidden = "parameters" in law.columns
    if "depth" in law.columns and "blocks" in data.columns:
        hidden = not np.allclose(data.column("depth") + depth_offset, data.column("blocks") * rounds)
    if hidden:
        raise DataError(
            f"rounds reach {rounds.max():g} and law '{law.name}' does not count them, so that 6 * parameters * tokens"
            " is not what the rows cost: no frontier and no compute is given; fit looped_chinchilla (column"
            " unrolled_parameters), which counts every round"
        )


def open_exponents(fit: Fit, budget: Budget) -> list[str]:
    """Budget columns whose exponent is not positive: loss does not fall in them, so there is no frontier."""
    law = _additive(fit)
    return [name for name in budget.powers if fit.parameters[law.factor_of(name)[1].exponent] <= 0]


def derived_quantities(law: AdditiveLaw, budget: Budget | None, compute: float) -> list[Quantity]:
    """What follows from the parameters: the ratio of size exponents, frontier exponent, optimal sizes at a budget."""
    found: list[Quantity] = []
    deep = next((name for name in ("depth", "blocks") if name in law.columns), None)
    if deep is not None and "width" in law.columns and law.reads_once:
        found.append(ratio(law.factor_of(deep)[1].exponent, law.factor_of("width")[1].exponent))
    if budget is None:
        return found
    if set(budget.powers) == {"parameters", "tokens"}:
        found.append(ratio(law.factor_of("parameters")[1].exponent, law.factor_of("tokens")[1].exponent))
    found.append(frontier_exponent_quantity(law, budget))
    found += [optimal_size_quantity(law, budget, column, compute) for column in budget.powers]
    if {"width", "depth"} <= set(budget.powers):
        found.append(optimal_ratio_quantity(law, budget, "width", "depth", compute))
    return found


def frontier_table(fit: Fit, draws: Bootstrap | None, budget: Budget, level: float) -> list[dict[str, Any]]:
    """Optimal columns, as built, and loss from the smallest budget of the rows to a hundred times the largest."""
    law = _additive(fit)
    computes = budget.spent(fit.data.columns)
    grid = np.geomspace(float(computes.min()), float(computes.max()) * _REACH, _NUM_BUDGETS)
    parameters = {name: np.asarray(value) for name, value in fit.parameters.items()}
    rows = []
    for compute in grid.tolist():
        shape = optimal_shape(law, parameters, budget, compute)
        row: dict[str, Any] = {
            "flops": compute,
            "beyond_data": compute / float(computes.max()),
            "loss": float(optimal_loss(law, parameters, budget, compute)),
            **_built(budget, shape),
        }
        if draws is not None:
            each = {name: draws.column(name) for name in draws.names}
            with np.errstate(all="ignore"):
                drawn = optimal_shape(law, each, budget, compute)
            for column, values in drawn.items():
                read = np.where(values > 0, values, np.nan)
                row[f"{column}_interval"] = percentiles(budget.as_built(column, read), level)
        rows.append(row)
    return rows


def isoflop_curves(fit: Fit, budget: Budget) -> list[dict[str, Any]]:
    """The law's loss over the first size at three budgets, with the parabola through it and the parabola's bias.

    Other sizes stay at their optimum of that budget, tokens take the rest. The grid of sizes is the rows' own range,
    as an experimenter's would be.
    """
    law = _additive(fit)
    computes = budget.spent(fit.data.columns)
    size = next(iter(budget.powers))
    values = fit.data.column(size)
    sizes = np.geomspace(float(values.min()), float(values.max()), _NUM_SIZES)
    parameters = fit.parameters
    arrays = {name: np.asarray(value) for name, value in parameters.items()}
    curves = []
    for compute in sorted({_rounded(float(c)) for c in np.quantile(computes, _SHARES)}):
        best = {name: float(v) for name, v in optimal_shape(law, arrays, budget, compute).items()}
        held = {name: v for name, v in best.items() if name not in (size, "tokens")}
        spread = Budget(
            {size: budget.powers[size], "tokens": budget.powers["tokens"]},
            budget.constant
            * math.prod(float(budget.as_built(name, np.asarray(v))) ** budget.powers[name] for name, v in held.items()),
            {**budget.held, **held},
        )
        tokens = compute / spread.constant / sizes ** spread.powers[size]
        columns = {size: sizes, "tokens": tokens, **{k: np.full(len(sizes), v) for k, v in spread.held.items()}}
        losses = law.predict(parameters, columns)
        try:
            parabola = fit_parabola(sizes, losses)
            bias = parabola_bias(law, parameters, spread, compute, size, sizes)
        except (DataError, ConfigError):
            continue
        logs = np.log(sizes)
        c0, c1, c2 = parabola.coefficients
        curves.append(
            {
                "flops": compute,
                "column": size,
                "held": _built(budget, held),
                "sizes": sizes.tolist(),
                "losses": losses.tolist(),
                "parabola": (c0 + c1 * logs + c2 * logs**2).tolist(),
                "optimum": best[size],
                "vertex": parabola.vertex,
                "verdict": parabola.verdict,
                "bias": bias,
            }
        )
    return curves


def closed_map(fit: Fit, budget: Budget, compute: float) -> dict[str, Any] | None:
    """Share of loss above the least over width and depth (as built) at one budget, tokens taking the rest."""
    deep = next((name for name in ("depth", "blocks") if name in budget.powers), None)
    if deep is None or "width" not in budget.powers:
        return None
    law = _additive(fit)
    arrays = {name: np.asarray(value) for name, value in fit.parameters.items()}
    best = optimal_shape(law, arrays, budget, compute)
    least = float(optimal_loss(law, arrays, budget, compute))
    factors = np.geomspace(1 / _MAP_REACH, _MAP_REACH, _MAP_LINES)
    widths, depths = float(best["width"]) * factors, float(best[deep]) * factors
    width, depth = (grid.ravel() for grid in np.meshgrid(widths, depths))
    columns = {"width": width, deep: depth, **{k: np.full(len(width), v) for k, v in budget.held.items()}}
    tokens = compute / budget.spent({**columns, "tokens": np.ones(len(width))})
    losses = law.predict(fit.parameters, {**columns, "tokens": tokens})
    above = (losses / least - 1).reshape(len(depths), len(widths))
    return {
        "flops": compute,
        "widths": widths.tolist(),
        "depths": budget.as_built(deep, depths).tolist(),
        "above_best": above.tolist(),
        "best": _built(budget, best),
    }


def _built(budget: Budget, shape: Mapping[str, Any]) -> dict[str, float]:
    """Columns as they are built, whatever the law leaves out of them."""
    return {name: float(budget.as_built(name, np.asarray(value))) for name, value in shape.items()}


def _additive(fit: Fit) -> AdditiveLaw:
    if not isinstance(fit.law, AdditiveLaw):
        raise ConfigError("a frontier needs a single additive law")
    return fit.law


def _rounded(value: float) -> float:
    """To two significant digits."""
    return float(f"{value:.1e}")

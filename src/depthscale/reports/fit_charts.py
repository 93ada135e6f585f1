"""Figures of a fitted law: what each term explains, and how far each number may move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.laws.law import AdditiveLaw, Term
from depthscale.laws.observations import Observations
from depthscale.reports.charts import (
    BAND,
    GRID,
    INK,
    Chart,
    drawing_settings,
    few_log_ticks,
    new_axes,
    render,
    style_of,
)

Array = NDArray[np.float64]

_SMALL = (3.4, 2.7)
_NUM_POINTS = 100
_POINT: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3.2, "alpha": 0.55, "markeredgewidth": 0}


def term_charts(result: Mapping[str, Any], rows: Observations) -> list[Chart]:
    """For each term: loss minus the floor and the other terms against its first column, on log-log axes."""
    law = AdditiveLaw.from_dict(result["fit"]["law"])
    return [_term_chart(law, term, result["fit"]["parameters"], rows) for term in law.terms if term.factors]


def term_values(term: Term, parameters: Mapping[str, float], columns: Mapping[str, Array]) -> Array:
    """One term at each row."""
    alone = AdditiveLaw(term.coefficient, (term,))
    return alone.predict({name: parameters[name] for name in alone.parameters}, columns)


def profile_charts(result: Mapping[str, Any]) -> list[Chart]:
    """Deviance over the value, for every exponent, the floor and the exponents that follow from them."""
    law = AdditiveLaw.from_dict(result["fit"]["law"])
    skipped = set(law.coefficients)
    depth = next((name for name in ("depth", "blocks") if name in law.columns), None)
    readers = [factor.exponent for term in law.terms for factor in term.factors if factor.column == depth]
    marked = {readers[0]: (1.0, 3.0)} if len(readers) == 1 else {}
    return [
        _profile_chart(result, profile, marked.get(profile["name"], ()))
        for profile in result["profiles"]
        if profile["name"] not in skipped and not profile["name"].startswith("optimal_") and len(profile["values"]) > 2
    ]


def _term_chart(law: AdditiveLaw, term: Term, parameters: Mapping[str, float], rows: Observations) -> Chart:
    column = term.factors[0].column
    x = rows.column(column)
    own = term_values(term, parameters, rows.columns)
    left = rows.loss - (law.predict(parameters, rows.columns) - own)
    # Other factors of the term are taken out at the rows' medians, so that one curve is the term.
    middle = {f.column: np.full(rows.num_rows, np.median(rows.column(f.column))) for f in term.factors[1:]}
    left = left / own * term_values(term, parameters, {**rows.columns, **middle})
    grid = np.geomspace(float(x.min()), float(x.max()), _NUM_POINTS) if (x > 0).all() else np.unique(x)
    held = {f.column: np.full(len(grid), np.median(rows.column(f.column))) for f in term.factors[1:]}
    curve = term_values(term, parameters, {column: grid, **held})
    shown = left > 0
    exponent = term.factors[0].exponent
    with drawing_settings():
        figure, axes = new_axes(*_SMALL)
        axes.plot(x[shown], left[shown], color=style_of(1)["color"], **_POINT)
        axes.plot(grid, curve, color=INK, linewidth=1.3)
        axes.set_yscale("log")
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        if term.factors[0].kind != "decay":
            axes.set_xscale("log")
            few_log_ticks(axes.xaxis, *axes.get_xlim())
        axes.set_xlabel(column.replace("_", " "))
        axes.set_ylabel("loss minus the rest, nats")
        axes.grid(color=GRID, linewidth=0.5)
        svg = render(figure)
    lost = int((~shown).sum())
    missing = f" {lost} rows lie at or below 0 and cannot be drawn." if lost else ""
    fixed = f" {', '.join(f.column for f in term.factors[1:])} at the rows' median." if term.factors[1:] else ""
    return Chart(
        f"term-{column}",
        f"Term of {column.replace('_', ' ')}: {exponent} = {parameters[exponent]:.4g}",
        f"Points: loss minus the floor and all other terms. Line: the fitted term.{fixed}{missing}",
        f"Log-log scatter of {len(x)} rows: loss left for the term of {column}, falling along a line with exponent"
        f" {parameters[exponent]:.4g}.",
        svg,
        (column, "loss_minus_rest", "term"),
        tuple(zip(x.tolist(), left.tolist(), own.tolist(), strict=True)),
    )


def _smooth(values: Array, deviances: Array, estimate: float) -> tuple[Array, Array]:
    """A fine curve through the points: the signed root of a deviance is nearly linear in the value."""
    grid = np.linspace(values.min(), values.max(), _NUM_POINTS)
    return grid, np.interp(grid, values, np.sign(values - estimate) * np.sqrt(deviances)) ** 2


def _profile_chart(result: Mapping[str, Any], profile: Mapping[str, Any], marked: Sequence[float]) -> Chart:
    critical, name = result["critical_deviance"], profile["name"]
    values, deviances = np.array(profile["values"]), np.array(profile["deviances"])
    keep = deviances <= 3 * critical
    low, high = profile["lower"], profile["upper"]
    with drawing_settings():
        figure, axes = new_axes(*_SMALL)
        left = values[keep].min() if profile["lower_open"] else low
        right = values[keep].max() if profile["upper_open"] else high
        axes.axvspan(left, right, color=BAND, linewidth=0)
        axes.plot(
            *_smooth(values[keep], deviances[keep], profile["estimate"]), color=style_of(1)["color"], linewidth=1.4
        )
        axes.axhline(critical, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        for value in marked:
            if values[keep].min() <= value <= values[keep].max():
                axes.axvline(value, color=style_of(2)["color"], linewidth=1.0, linestyle=":")
        if values[keep].min() > 0 and values[keep].max() > 20 * values[keep].min():
            axes.set_xscale("log")
            few_log_ticks(axes.xaxis, *axes.get_xlim())
        else:
            axes.locator_params(axis="x", nbins=5)
        axes.set_ylim(0, max(1.4 * critical, float(deviances[keep].max())))
        axes.set_xlabel(name)
        axes.set_ylabel("deviance")
        axes.grid(axis="y", color=GRID, linewidth=0.5)
        svg = render(figure)
    words = " to ".join("open" if end is None else f"{end:.4g}" for end in (low, high))
    theory = f" Dotted: {' and '.join(f'{v:g}' for v in marked)}." if marked else ""
    return Chart(
        f"profile-{name.replace('/', '-over-')}",
        f"Profile of {name}",
        f"Estimate {profile['estimate']:.4g}; the rows do not reject {words} at {100 * result['level']:g} %"
        f" (rows count as independent).{theory}",
        f"Deviance against {name}, a valley with its bottom at {profile['estimate']:.4g}; below the critical value"
        f" from {words}.",
        svg,
        (name, "deviance"),
        tuple(zip(values.tolist(), deviances.tolist(), strict=True)),
    )

"""A family's trend in the probe's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from depthscale.reports.charts import (
    GRID,
    Chart,
    drawing_settings,
    few_log_ticks,
    legend_below,
    new_axes,
    render,
    render_png,
    style_of,
)
from depthscale.reports.page import number
from depthscale.reports.probe_sections import ReportSection

_WORDS = {"state_angle": "mean angle, radians", "relative_update_norm": "mean update over state"}


def trend_sections(result: Mapping[str, Any]) -> list[ReportSection]:
    """One section from a result of kind ``probe_trend``."""
    quantities = list(dict.fromkeys(trend["quantity"] for trend in result["trends"]))
    return [
        ReportSection(
            "trend",
            "Trend over models",
            (
                *(_sentence(trend) for trend in result["trends"]),
                "Models of a family differ in width, data and training too; the slope is of all of that together.",
                *(f"{note}." for note in result["notes"]),
            ),
            tuple(trend_chart(result, quantity) for quantity in quantities),
        )
    ]


def trend_chart(result: Mapping[str, Any], quantity: str) -> Chart:
    """Layer means against depth on log-log axes, with both fitted lines."""
    trends = [trend for trend in result["trends"] if trend["quantity"] == quantity]
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, trend in enumerate(trends):
            style, words = style_of(index + 1), _layers(trend)
            depths = [depth for _, depth, _ in trend["points"]]
            values = [value for _, _, value in trend["points"]]
            axes.plot(depths, values, linestyle="none", marker=style["marker"], color=style["color"], label=words)
            if trend["slope"] is not None:
                grid = np.geomspace(min(depths), max(depths), 20)
                axes.plot(grid, trend["coefficient"] * grid ** trend["slope"], color=style["color"], linewidth=1.3)
            rows += [(words, name, depth, value) for name, depth, value in trend["points"]]
        axes.set_xscale("log")
        axes.set_yscale("log")
        if rows:
            few_log_ticks(axes.xaxis, *axes.get_xlim())
            few_log_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_xlabel("visits L")
        axes.set_ylabel(_WORDS.get(quantity, quantity))
        axes.grid(color=GRID)
        legend_below(figure, columns=2)
        svg, png = render(figure), render_png(figure)
    return Chart(
        f"trend-{quantity.replace('_', '-')}",
        f"{_name(quantity).capitalize()} against depth",
        "One point a model; lines: the fitted powers.",
        f"Log-log scatter of {len(result['models'])} models. {' '.join(_sentence(trend) for trend in trends)}",
        svg,
        ("layers", "model", "visits", quantity),
        tuple(rows),
        png,
    )


def _sentence(trend: Mapping[str, Any]) -> str:
    name = _name(trend["quantity"])
    if trend["slope"] is None:
        return f"No slope of the {name} over {_layers(trend)}: {trend['reason']}."
    ends = " to ".join("open" if end is None else number(end, 2) for end in (trend["lower"], trend["upper"]))
    return f"The {name} over {_layers(trend)} goes as L to the power {number(trend['slope'], 2)} ({ends})."


def _name(quantity: str) -> str:
    """Without its unit."""
    return _WORDS.get(quantity, quantity).split(",")[0]


def _layers(trend: Mapping[str, Any]) -> str:
    return "all layers" if trend["ends"] else "the layers between the ends"

"""Figures of what a law says about spending: isoFLOP curves, the frontier, the map of shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.laws.frontier import Budget
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.observations import Observations
from depthscale.reports.charts import (
    BAND,
    GRID,
    INK,
    Chart,
    drawing_settings,
    few_log_ticks,
    legend_below,
    new_axes,
    render,
    style_of,
)

Array = NDArray[np.float64]

_SMALL = (3.4, 2.7)
_MAP_LEVELS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
_NEAR_BUDGET = 1.5


def isoflop_chart(result: Mapping[str, Any], rows: Observations | None) -> Chart | None:
    """Loss over size at three budgets with the parabola through it; None for a law without a budget."""
    curves = result["isoflop"]
    if not curves:
        return None
    column = curves[0]["column"]
    table: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, curve in enumerate(curves, start=1):
            style = style_of(index)
            sizes, losses = np.array(curve["sizes"]), np.array(curve["losses"])
            if rows is not None:
                x, y = _laid_on(result, rows, curve)
                axes.plot(x, y, color=style["color"], linestyle="none", marker=style["marker"], markersize=3, alpha=0.5)
            axes.plot(sizes, losses, color=style["color"], label=f"{curve['flops']:.2g} FLOPs", linewidth=1.6)
            axes.plot(sizes, curve["parabola"], color=style["color"], linestyle=":", linewidth=1.3)
            axes.plot([curve["optimum"]], [np.interp(curve["optimum"], sizes, losses)], color=INK, marker="|", ms=11)
            table += [
                (curve["flops"], size, loss, bent)
                for size, loss, bent in zip(curve["sizes"], curve["losses"], curve["parabola"], strict=True)
            ]
        axes.set_xscale("log")
        few_log_ticks(axes.xaxis, min(curves[0]["sizes"]), max(curves[0]["sizes"]))
        axes.set_xlabel(column.replace("_", " "))
        axes.set_ylabel("loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    biases = "; ".join(
        f"{curve['flops']:.2g}: " + (curve["verdict"] if curve["bias"] is None else f"{100 * curve['bias']:+.1f} %")
        for curve in curves
    )
    held = sorted({name for curve in curves for name in curve["held"]})
    fixed = f" {', '.join(held).capitalize()} at the optimum of each budget." if held else ""
    points = " Points: rows near a budget, each laid on the curve with its own residual." if rows is not None else ""
    return Chart(
        "isoflop",
        "IsoFLOP curves and the parabola's bias",
        f"Solid: the law. Dotted: a parabola in the log of size through it, on the rows' range; its vertex is off by"
        f" {biases}. Bar: the law's optimum.{fixed}{points}",
        f"Loss against {column} at {len(curves)} budgets, each a valley; bias of the parabola's vertex {biases}.",
        svg,
        ("flops", column, "loss_nats", "parabola"),
        tuple(table),
    )


def frontier_charts(result: Mapping[str, Any]) -> list[Chart]:
    """Each optimal column against training FLOPs, with its interval and the end of the rows' budgets."""
    table = result["frontier"]
    if not table:
        return []
    largest, level = result["budget"]["largest"], f"{100 * result['level']:g} %"
    charts = []
    for column in result["budget"]["powers"]:
        flops = np.array([row["flops"] for row in table])
        values = np.array([row[column] for row in table])
        bands = [row.get(f"{column}_interval") for row in table]
        with drawing_settings():
            figure, axes = new_axes(*_SMALL)
            if all(bands):
                low, high = (np.array([np.nan if b[i] is None else b[i] for b in bands], dtype=float) for i in (0, 1))
                axes.fill_between(flops, low, high, color=BAND, linewidth=0)
            axes.plot(flops, values, color=style_of(1)["color"])
            axes.axvline(largest, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.set_xscale("log")
            axes.set_yscale("log")
            few_log_ticks(axes.xaxis, flops[0], flops[-1])
            few_log_ticks(axes.yaxis, *axes.get_ylim())
            axes.set_xlabel("training FLOPs")
            axes.set_ylabel(f"optimal {column.replace('_', ' ')}")
            axes.grid(color=GRID, linewidth=0.5)
            svg = render(figure)
        charts.append(
            Chart(
                f"frontier-{column}",
                f"Optimal {column.replace('_', ' ')}",
                f"Band: {level}, {result['interval_kind']}. Right of the dashed line no row has so large a budget.",
                f"Optimal {column} grows from {values[0]:.3g} to {values[-1]:.3g} between {flops[0]:.2g} and"
                f" {flops[-1]:.2g} FLOPs.",
                svg,
                ("flops", column, "low", "high"),
                tuple(
                    (row["flops"], row[column], *(band or (None, None))) for row, band in zip(table, bands, strict=True)
                ),
            )
        )
    return charts


def map_chart(
    name: str, title: str, data: Mapping[str, Any], best: tuple[float, float], rows: Observations | None
) -> Chart:
    """Lines of equal loss over width and depth, the optimum, and where the rows lie.

    Args:
        name: of the file.
        title: of the figure.
        data: widths, depths and the share above the least loss, [depths][widths], None where nothing fits.
        best: width and depth of the optimum.
        rows: their architectures are drawn where they are at hand.
    """
    widths, depths = np.array(data["widths"]), np.array(data["depths"])
    above = np.array([[np.nan if v is None else 100 * v for v in row] for row in data["above_best"]], dtype=float)
    with drawing_settings():
        figure, axes = new_axes()
        if min(above.shape) > 1:
            masked = np.ma.masked_invalid(above)
            axes.contourf(widths, depths, masked, levels=[-1.0, 1.0], colors=[BAND])
            lines = axes.contour(
                widths, depths, masked, levels=_MAP_LEVELS, colors=[style_of(1)["color"]],
                linewidths=[1.9 if level == 1.0 else 0.8 for level in _MAP_LEVELS],
            )  # fmt: skip
            axes.clabel(lines, fmt=lambda level: f"{level:g} %", fontsize=8)
        if rows is not None and "width" in rows.columns:
            deep = rows.columns.get("depth", rows.columns.get("blocks"))
            if deep is not None:
                axes.plot(
                    rows.column("width"), deep, color=style_of(0)["color"], linestyle="none", marker=".", markersize=4
                )
        axes.plot(*[[value] for value in best], color=style_of(2)["color"], marker="P", markersize=8, linestyle="none")
        axes.set_xscale("log")
        axes.set_yscale("log")
        if len(widths) > 1:
            axes.set_xlim(widths.min(), widths.max())
        if len(depths) > 1:
            axes.set_ylim(depths.min(), depths.max())
        few_log_ticks(axes.xaxis, *axes.get_xlim())
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_xlabel("width")
        axes.set_ylabel("depth, block visits")
        svg = render(figure)
    inside = int((above <= 1.0).sum())
    return Chart(
        name,
        title,
        "Lines: loss above the least, in percent; shaded: within 1 %. Cross: the optimum. Dots: the rows.",
        f"Contour map of loss over width and depth: a long valley around width {best[0]:.0f} and depth {best[1]:.0f};"
        f" {inside} of {int(np.isfinite(above).sum())} grid points lie within 1 %.",
        svg,
        ("width", "depth", "percent_above_best"),
        tuple(
            (float(widths[j]), float(depths[i]), float(above[i, j]))
            for i in range(len(depths))
            for j in range(len(widths))
            if math.isfinite(above[i, j])
        ),
    )


def _laid_on(result: Mapping[str, Any], rows: Observations, curve: Mapping[str, Any]) -> tuple[Array, Array]:
    """Rows whose budget is near the curve's: size, and the curve's loss there times the row's own residual."""
    law = AdditiveLaw.from_dict(result["fit"]["law"])
    budget = result["budget"]
    # Results of an older version know no cost of held columns and no offset.
    extras = budget.get("held_powers", {}), budget.get("offsets", {})
    costs = Budget(budget["powers"], budget["multiplier"], budget["held"], *extras)
    near = np.abs(np.log(costs.spent(rows.columns) / curve["flops"])) < math.log(_NEAR_BUDGET)
    x = rows.column(curve["column"])[near]
    residual = (rows.loss / law.predict(result["fit"]["parameters"], rows.columns))[near]
    return x, np.interp(np.log(x), np.log(curve["sizes"]), curve["losses"]) * residual

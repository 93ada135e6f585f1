"""The figure of a single ``depthscale align``: kappa over R, one line for each arm."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from depthscale.reports.alignment_charts import rounds_axis
from depthscale.reports.charts import (
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


def rounds_charts(result: Mapping[str, Any]) -> list[Chart]:
    """One chart, or none where every arm was measured at a single R.

    Args:
        result: of kind ``alignment``.
    """
    rows: list[tuple[Any, ...]] = []
    for arm in result["arms"]:
        for rounds in sorted({p["rounds"] for p in arm["points"]}):
            found = [p for p in arm["points"] if p["rounds"] == rounds]
            values = [p["kappa"] for p in found]
            rows.append((arm["arm"], found[0]["step"], rounds, len(values), statistics.fmean(values), *_ends(values)))
    every = sorted({row[2] for row in rows})
    if len(every) < 2:
        return []
    with drawing_settings():
        figure, axes = new_axes()
        for index, arm in enumerate(result["arms"]):
            own = [row for row in rows if row[0] == arm["arm"]]
            means, low, high = ([row[column] for row in own] for column in (4, 5, 6))
            below = [m - e for m, e in zip(means, low, strict=True)]
            above = [e - m for m, e in zip(means, high, strict=True)]
            axes.errorbar(
                [row[2] for row in own],
                means,
                yerr=[below, above],
                label=arm["arm"],
                capsize=2,
                markersize=4,
                **style_of(index),
            )
        axes.plot(every, every, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_yscale("log")
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        rounds_axis(axes, every)
        axes.set_ylabel("κ")
        axes.grid(color=GRID, linewidth=0.5)
        legend_below(figure)
        svg = render(figure)
    initial = result["source"] == "initialization"
    caution = " At initialization alone, where a near-identity stack aligns its visits trivially." if initial else ""
    return [
        Chart(
            "alignment-kappa",
            f"κ over R, {'at initialization' if initial else 'trained'}",
            f"Mean over seeds; bars from the lowest to the highest. Thin dots: κ = R.{caution}",
            "Log-log line chart of kappa against rounds. "
            + "; ".join(f"{row[0]}, R = {row[2]}: {row[4]:.2f}" for row in rows)
            + ".",
            svg,
            ("arm", "step", "rounds", "num_seeds", "mean_kappa", "lowest_kappa", "highest_kappa"),
            tuple(rows),
        )
    ]


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)

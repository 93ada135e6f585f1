"""Figures of an exponent sweep: shares that train, the map of outcomes, times at the floor, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Patch, Rectangle

from depthscale.reports.charts import (
    GRID,
    INK,
    OUTCOME_COLORS,
    OUTCOME_HATCHES,
    SERIES_COLORS,
    Chart,
    drawing_settings,
    legend_below,
    new_axes,
    render,
    style_of,
)

Cells = Sequence[Mapping[str, Any]]


def sweep_charts(result: Mapping[str, Any]) -> list[Chart]:
    """Every figure that the runs allow."""
    grid = [cell for cell in result["cells"] if cell["in_grid"] and cell["share"]]
    return [
        share_chart(result, grid),
        outcome_map(result["cells"]),
        escape_chart(result, grid),
        *([loss_chart(result, grid)] if any(cell["loss"]["num_runs"] for cell in grid) else []),
    ]


def share_chart(result: Mapping[str, Any], cells: Cells) -> Chart:
    """Share of runs that train over the exponent, a series for each rate, the paper's counts hollow."""
    rows: list[tuple[object, ...]] = []
    rates = result["setting"]["rates"]
    with drawing_settings():
        figure, axes = new_axes(height=3.6)
        for index, lr in enumerate(rates):
            style = style_of(index + 1)
            at = [cell for cell in cells if cell["lr"] == lr]
            shift = 0.006 * (index - (len(rates) - 1) / 2)
            for cell in at:
                share = cell["share"]
                low, high = share["wilson"]
                axes.plot([cell["p"] + shift] * 2, [low, high], color=style["color"], linewidth=0.8, alpha=0.6)
                rows.append(
                    (f"rate {lr:g}", cell["p"], share["num_trained"], share["num_runs"], low, high, *share["exact"])
                )
            axes.plot(
                [cell["p"] + shift for cell in at],
                [cell["share"]["num_trained"] / cell["share"]["num_runs"] for cell in at],
                color=style["color"], marker=style["marker"], markersize=4.5, linestyle="none", label=f"rate {lr:g}",
            )  # fmt: skip
            edge = next((e for e in result["edges"] if e["lr"] == lr), None)
            if edge and edge["kind"] == "crossing":
                low_p, high_p = (float(end) for end in (min(c["p"] for c in at), max(c["p"] for c in at)))
                axes.plot(
                    *_curve(edge, low_p, high_p), color=style["color"], linewidth=1.3, linestyle=style["linestyle"]
                )
        paper = result["paper"]
        shares = [k / n for k, n in zip(paper["trained"], paper["runs"], strict=True)]
        axes.plot(
            paper["exponents"], shares, color=INK, marker="o", markerfacecolor="none", markersize=6.5,
            linestyle="none", label="paper",
        )  # fmt: skip
        rows += [
            ("paper", p, k, n, None, None, None, None)
            for p, k, n in zip(paper["exponents"], paper["trained"], paper["runs"], strict=True)
        ]
        axes.axhline(0.5, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlabel("exponent p")
        axes.set_ylabel("share of runs that train")
        axes.grid(axis="y", color=GRID)
        legend_below(figure, columns=4)
        svg = render(figure)
    words = "; ".join(f"{row[0]}, p = {row[1]:g}: {row[2]} of {row[3]}" for row in rows)
    return Chart(
        "sweep-shares",
        "Runs that leave the unigram floor",
        "Bars: Wilson intervals. Lines: logistic fits, where the runs show a crossing. Hollow: the paper's five seeds"
        " each, of another size, rate and data.",
        f"Share of runs that train against the exponent. {words}.",
        svg,
        ("series", "p", "num_trained", "num_runs", "wilson_low", "wilson_high", "exact_low", "exact_high"),
        tuple(rows),
    )


def outcome_map(cells: Cells) -> Chart:
    """How runs ended at every exponent or arm and rate, each cell a bar of outcomes."""
    arms = list(dict.fromkeys(cell["arm"] for cell in cells))
    rates = sorted({cell["lr"] for cell in cells})
    labels = {cell["arm"]: f"{cell['p']:g}" if cell["in_grid"] else cell["arm"] for cell in cells}
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes(height=0.9 + 0.24 * len(arms))
        for cell in cells:
            column, row = rates.index(cell["lr"]), arms.index(cell["arm"])
            total, start = sum(cell["outcomes"].values()), column + 0.04
            for name, number in cell["outcomes"].items():
                width = 0.92 * number / total
                axes.add_patch(
                    Rectangle(
                        (start, row - 0.38), width, 0.76, facecolor=OUTCOME_COLORS[name], hatch=OUTCOME_HATCHES[name],
                        edgecolor=INK, linewidth=0.3,
                    )
                )  # fmt: skip
                start += width
            rows.append((cell["arm"], cell["p"], cell["lr"], *cell["outcomes"].values()))
        axes.set_xlim(0, len(rates))
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.set_xticks([index + 0.5 for index in range(len(rates))], [f"{lr:g}" for lr in rates])
        axes.set_yticks(range(len(arms)), [labels[arm] for arm in arms])
        axes.tick_params(length=0)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("exponent p, or arm")
        present = [name for name in OUTCOME_COLORS if any(cell["outcomes"][name] for cell in cells)]
        handles = [
            Patch(facecolor=OUTCOME_COLORS[n], hatch=OUTCOME_HATCHES[n], edgecolor=INK, linewidth=0.3) for n in present
        ]
        figure.legend(handles, present, loc="outside lower center", ncols=4, fontsize=9)
        svg = render(figure)
    words = "; ".join(f"{row[0]} at {row[2]:g}: {row[3]} finished, {row[4]} stuck, {row[5]} diverged" for row in rows)
    return Chart(
        "sweep-outcomes",
        "How runs ended",
        "Each cell is split by outcome: finished (below the floor), stuck at the unigram floor, diverged.",
        f"Map of outcomes by exponent and rate. {words}.",
        svg,
        ("arm", "p", "lr", "finished", "stuck", "diverged", "missing"),
        tuple(rows),
    )


def escape_chart(result: Mapping[str, Any], cells: Cells) -> Chart:
    """Share still at the floor over steps, at the main rate."""
    main, last = result["setting"]["main_rate"], result["setting"]["steps"]
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes(height=3.8)
        for index, cell in enumerate(cell for cell in cells if cell["lr"] == main):
            style, escape = style_of(index), cell["escape"]
            # A color that comes round again is dotted.
            dashes = style["linestyle"] if index < len(SERIES_COLORS) else ":"
            steps, shares = [0.0, *escape["steps"], float(last)], [1.0, *escape["at_floor"]]
            axes.plot(
                steps, [*shares, shares[-1]], drawstyle="steps-post", color=style["color"],
                linestyle=dashes, linewidth=1.4, label=f"p = {cell['p']:g}",
            )  # fmt: skip
            ends = zip(escape["steps"], escape["at_floor"], escape["lower"], escape["upper"], strict=True)
            rows += [(cell["p"], *point) for point in ends] or [(cell["p"], last, 1.0, None, None)]
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlim(0, last)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("share still at the floor")
        axes.grid(axis="y", color=GRID)
        legend_below(figure, columns=4)
        svg = render(figure)
    return Chart(
        "sweep-escape",
        f"Time at the unigram floor, rate {main:g}",
        "Kaplan-Meier estimate; runs that never pass below the floor are censored at the last step.",
        "Falling steps of the share of runs still at the floor, one line for each exponent.",
        svg,
        ("p", "step", "share_at_floor", "lower", "upper"),
        tuple(rows),
    )


def loss_chart(result: Mapping[str, Any], cells: Cells) -> Chart:
    """Mean final loss of the runs that train, by exponent and rate."""
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, lr in enumerate(result["setting"]["rates"]):
            style = style_of(index + 1)
            at = [cell for cell in cells if cell["lr"] == lr and cell["loss"]["num_runs"]]
            for cell in at:
                interval = cell["loss"]["interval"]
                if interval:
                    axes.plot([cell["p"]] * 2, [interval["low"], interval["high"]], color=style["color"], linewidth=0.8)
                ends = (interval["low"], interval["high"]) if interval else (None, None)
                rows.append((lr, cell["p"], cell["loss"]["mean"], *ends, cell["loss"]["num_runs"]))
            axes.plot(
                [cell["p"] for cell in at], [cell["loss"]["mean"] for cell in at], color=style["color"],
                marker=style["marker"], linestyle=style["linestyle"], markersize=4.5, label=f"rate {lr:g}",
            )  # fmt: skip
        axes.set_xlabel("exponent p")
        axes.set_ylabel("final loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    words = "; ".join(f"rate {row[0]:g}, p = {row[1]:g}: {row[2]:.3f} of {row[5]} runs" for row in rows)
    return Chart(
        "sweep-losses",
        "Loss of the runs that train",
        "Mean on the report split with Student's interval; runs that stayed at the floor or diverged are left out, so"
        " points rest on unequal numbers of runs.",
        f"Mean final loss against the exponent. {words}.",
        svg,
        ("lr", "p", "mean_loss_nats", "low", "high", "num_runs"),
        tuple(rows),
    )


def _curve(edge: Mapping[str, Any], low: float, high: float) -> tuple[Any, Any]:
    """The logistic curve of an edge; a step where its slope is not finite."""
    if edge["slope"] is None:
        return [low, edge["p50"], edge["p50"], high], [0.0, 0.0, 1.0, 1.0]
    grid = np.linspace(low, high, 100)
    return grid, 1 / (1 + np.exp(-np.clip(edge["slope"] * (grid - edge["p50"]), -500, 500)))

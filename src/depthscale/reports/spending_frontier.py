"""Loss against what a run spends: every cell of a study at its training FLOPs, and the best that each FLOPs gave."""

from __future__ import annotations

import math

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
from depthscale.reports.study_data import CellData, StudyData


def flops_chart(data: StudyData) -> Chart | None:
    """Mean loss of every cell against its training FLOPs; None unless cells differ in both."""
    cells = [cell for cell in data.cells if cell.summary["training_flops"] and cell.summary["loss_nats"]["mean"]]
    spent = {cell.summary["training_flops"] for cell in cells}
    if len(spent) < 2:
        return None
    frontier = _frontier(cells)
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, arm in enumerate(data.arms):
            own = sorted((cell for cell in cells if cell.arm == arm), key=lambda cell: cell.summary["training_flops"])
            if not own:
                continue
            style = style_of(index)
            points = [(cell.summary["training_flops"], cell.summary["loss_nats"]["mean"]) for cell in own]
            axes.plot(*zip(*points, strict=True), style["marker"], color=style["color"], markersize=6, label=arm)
            for cell, (flops, loss) in zip(own, points, strict=True):
                # Elsewhere cells of equal FLOPs lie above one another, and so would their names.
                if cell in frontier:
                    inward = 1 if flops < math.sqrt(min(spent) * max(spent)) else -1
                    axes.annotate(
                        f"{arm}, R = {cell.rounds}", (flops, loss), xytext=(5 * inward, -9),
                        textcoords="offset points", fontsize=7, ha="left" if inward > 0 else "right",
                    )  # fmt: skip
                rows.append((arm, cell.rounds, cell.summary.get("budget"), flops, cell.summary["tokens"],
                             cell.summary["tokens_per_parameter"], loss, cell in frontier))  # fmt: skip
        best = [(cell.summary["training_flops"], cell.summary["loss_nats"]["mean"]) for cell in frontier]
        axes.step(*zip(*best, strict=True), where="post", color=INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.margins(y=0.12)
        few_log_ticks(axes.xaxis, min(spent), max(spent))
        axes.set_xlabel("training FLOPs of a run")
        axes.set_ylabel("final loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    listed = "; ".join(
        f"{cell.arm} at R = {cell.rounds}: {cell.summary['loss_nats']['mean']:.3f} nats at"
        f" {cell.summary['training_flops']:.2e} FLOPs"
        for cell in frontier
    )
    return Chart(
        "loss-flops",
        "Loss against training FLOPs",
        "Every cell at the FLOPs of one of its runs, each of which ended its own schedule. The dotted line is the best"
        " mean loss at or below each FLOPs; it says nothing of how sure the order of two cells is.",
        f"Scatter of mean final loss against training FLOPs. Best: {listed}.",
        svg,
        (
            "arm",
            "rounds",
            "budget",
            "training_flops",
            "tokens",
            "tokens_per_parameter",
            "mean_loss_nats",
            "on_frontier",
        ),
        tuple(rows),
    )


def _frontier(cells: list[CellData]) -> list[CellData]:
    """Cells that no cell of at most their FLOPs betters, cheapest first. FLOPs within 1 % are the same."""
    found: list[CellData] = []
    for cell in sorted(cells, key=lambda c: (c.summary["training_flops"], c.summary["loss_nats"]["mean"])):
        if found and cell.summary["loss_nats"]["mean"] >= found[-1].summary["loss_nats"]["mean"]:
            continue
        if found and cell.summary["training_flops"] <= 1.01 * found[-1].summary["training_flops"]:
            found.pop()
        found.append(cell)
    return found

"""The table as one HTML page, with the style of depthscale's reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthscale.reports.charts import (
    GRID,
    Chart,
    drawing_settings,
    legend_below,
    new_axes,
    render,
    style_of,
)
from depthscale.reports.page import write_report


def write_table_page(directory: Path, table: Mapping[str, Any]) -> Path:
    """Write ``report.html`` and the figure of a table; return the path of the page."""
    chart = curve_chart(table)
    shape = table["settings"]["shape"]
    context = {"table": table, "shape": shape, "side": shape["box"] ** 2, "figures": [chart]}
    return write_report(
        directory, "page.html.j2", "Hierarchical reasoner", [chart], context, templates=Path(__file__).parent
    )


def curve_chart(table: Mapping[str, Any]) -> Chart:
    """Training loss of every cell of the table."""
    rows = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, arm in enumerate(table["arms"]):
            style = style_of(index)
            for seed, curve in arm["curves"].items():
                axes.plot(
                    [step for step, _ in curve], [loss for _, loss in curve], color=style["color"],
                    linestyle=style["linestyle"], linewidth=1.1, label=arm["rule"],
                )  # fmt: skip
                rows += [(arm["rule"], seed, step, loss) for step, loss in curve]
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("training loss, nats per blank")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    return Chart(
        "training-loss",
        "Loss in training",
        "Mean over the steps since the last point, all levels mixed; one line for each seed.",
        "Falling lines of the training loss, one for each rule and seed.",
        svg,
        ("rule", "seed", "step", "loss_nats"),
        tuple(rows),
    )

"""The table as one HTML page, with the style of depthscale's reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from depthscale.reports.charts import (
    GRID,
    Chart,
    drawing_settings,
    legend_below,
    new_axes,
    render,
    style_of,
    write_charts,
)
from depthscale.reports.page import FILTERS, drawn
from depthscale.runs.files import atomic_write_text


def write_table_page(directory: Path, table: Mapping[str, Any]) -> Path:
    """Write ``report.html`` and the figure of a table; return the path of the page."""
    loaders = [jinja2.FileSystemLoader(Path(__file__).parent), jinja2.PackageLoader("depthscale.reports", "templates")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(FILTERS)
    figures = [curve_chart(table)]
    write_charts(directory / "figures", figures)
    shape = table["settings"]["shape"]
    path = directory / "report.html"
    atomic_write_text(
        path,
        environment.get_template("page.html.j2").render(
            title="Hierarchical reasoner", table=table, shape=shape, side=shape["box"] ** 2, figures=figures, draw=drawn
        ),
    )
    return path


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

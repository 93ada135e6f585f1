"""The paper's table regenerated: its figures beside ours, a chart of both, and where runs depart from the recipe."""

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
from depthscale.reports.page import number, write_report
from depthscale.runs.results import read_result
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT
from depthscale.studies.words import count

PAGE = "recipe.html"


def build_recipe_report(directory: Path) -> Path:
    """Write ``recipe.html`` and ``figures/recipe-losses`` of a folder that holds a ``recipe`` result.

    Raises:
        ResultError: the result is missing or damaged.
    """
    result = read_result(directory, "recipe")
    chart = loss_chart(result)
    return write_report(
        directory,
        "recipe.html.j2",
        f"{result['name']}: the paper's table",
        [chart],
        {"result": result, "sentences": sentences(result), "figures": [chart]},
        PAGE,
    )


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What the table says, no more than its runs do."""
    cells = result["cells"]
    run = [cell for cell in cells if cell["num_as_the_recipe"]]
    found = [f"{len(run)} of {len(cells)} cells have been run as the recipe says."]
    departing = sum(bool(entry["departures"]) for cell in cells for entry in cell["runs"])
    if departing:
        found.append(
            f"{count(departing, 'run')} of {result['num_runs']} depart from the recipe; their losses are listed and not"
            " set against the paper's."
        )
    if result["num_other_runs"]:
        found.append(f"{count(result['num_other_runs'], 'run')} below this folder belong to no cell of the recipe.")
    if result["paper_size"] is None:
        found.append("The paper has no model of these blocks and this width, so nothing stands beside ours.")
    for gain in result["gains"]:
        if gain["mean_nats"] is not None:
            found.append(_gain_sentence(result["baseline"], gain))
    return found


def _gain_sentence(baseline: str, gain: Mapping[str, Any]) -> str:
    paper = "" if gain["paper_nats"] is None else f" (paper {number(gain['paper_nats'], 4)}, one seed)"
    what = f"At R = {gain['rounds']} {gain['arm']} is {number(gain['mean_nats'], 4)} nats below {baseline}{paper}"
    interval = gain["interval"]
    if interval is None:
        return f"{what}: one pair, so no interval and no verdict."
    ends = f"{number(interval['low'], 4)} to {number(interval['high'], 4)}"
    decided = gain["num_pairs"] >= MIN_PAIRS_FOR_VERDICT and not interval["low"] <= 0 <= interval["high"]
    verdict = "" if decided else "; not decided"
    return f"{what}, {100 * interval['confidence']:.4g} % interval {ends}, {count(gain['num_pairs'], 'pair')}{verdict}."


def loss_chart(result: Mapping[str, Any]) -> Chart:
    """Final loss against R: the paper's hollow and dashed, ours filled, where runs are as the recipe says."""
    arms = list(dict.fromkeys(cell["arm"] for cell in result["cells"]))
    with drawing_settings():
        figure, axes = new_axes()
        for index, arm in enumerate(arms):
            cells = [cell for cell in result["cells"] if cell["arm"] == arm]
            style = style_of(index)
            looks: tuple[tuple[str, str, dict[str, Any]], ...] = (
                ("paper_loss_nats", f"{arm}, paper", {**style, "linestyle": ":", "markerfacecolor": "none"}),
                ("mean_nats", f"{arm}, ours", {**style, "linestyle": "-"}),
            )
            for key, label, look in looks:
                points = [(cell["rounds"], cell[key]) for cell in cells if cell[key] is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), label=label, **look)
        axes.set_xticks(sorted({cell["rounds"] for cell in result["cells"]}))
        axes.set_xlabel("rounds R")
        axes.set_ylabel("final loss, nats per token")
        axes.grid(color=GRID)
        legend_below(figure, columns=2)
        svg = render(figure)
    return Chart(
        "recipe-losses",
        "Final loss against rounds",
        "Dotted, hollow: the paper's validation loss, one seed. Solid: mean of our runs on the report split, where they"
        " are as the recipe says.",
        f"Final loss over rounds for {', '.join(arms)}, the paper's and ours.",
        svg,
        ("arm", "rounds", "paper_nats", "ours_mean_nats", "ours_sd_nats", "ours_num_runs"),
        tuple(
            (
                cell["arm"],
                cell["rounds"],
                cell["paper_loss_nats"],
                cell["mean_nats"],
                cell["sd_nats"],
                cell["num_as_the_recipe"],
            )
            for cell in result["cells"]
        ),
    )

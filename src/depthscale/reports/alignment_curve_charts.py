"""How the visits' alignment moves while runs train: one chart for each R, from the runs that logged it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from depthscale.reports.curve_charts import Curve, mean_curve
from depthscale.reports.study_data import RunData, StudyData

_CAPTION = (
    "κ, largest over the sublayers, of the loss gradient on held-out rows: the mean over the runs of a cell and, as a"
    " band, its lowest and highest. Thin dots: κ = R, where all visits pull the same way. At step 0 a near-identity"
    " stack aligns its visits trivially, so that point says nothing alone."
)


def alignment_curve_charts(data: StudyData) -> list[Chart]:
    """One chart for each R above 1, where kappa is not 1 by definition; none where no run logged its alignment."""
    charts = []
    for rounds in data.rounds:
        series = [
            (cell.arm, data.arms.index(cell.arm), curves)
            for cell in data.at(rounds)
            if (curves := [curve for run in cell.runs if (curve := kappa_curve(run))])
        ]
        if series and rounds > 1:
            charts.append(_chart(f"alignment-r{rounds}", f"κ along training, R = {rounds}", rounds, series))
    return charts


def run_alignment_chart(run: RunData) -> list[Chart]:
    """The chart of a single run, or none."""
    rounds, curve = run.training["plan"]["num_rounds"], kappa_curve(run)
    if not curve or rounds < 2:
        return []
    return [_chart("alignment", "κ along training", rounds, [("this run", 1, [curve])])]


def kappa_curve(run: RunData) -> Curve:
    """Kappa by step; steps at which it could not be measured are left out."""
    return {
        record["step"]: record["loss"]["kappa"]
        for record in run.metrics
        if record["kind"] == "alignment" and "loss" in record and record["loss"]["kappa"] is not None
    }


def _chart(name: str, title: str, rounds: int, series: Sequence[tuple[str, int, list[Curve]]]) -> Chart:
    rows: list[tuple[Any, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for label, index, curves in series:
            style = style_of(index)
            points = mean_curve(curves)
            steps = [step for step, *_ in points]
            axes.plot(steps, [mean for _, mean, *_ in points], label=label, markersize=4, **style)
            if len(curves) > 1:
                ends = [low for *_, low, _ in points], [high for *_, high in points]
                axes.fill_between(steps, *ends, color=style["color"], alpha=0.13, linewidth=0)
            rows += [(label, rounds, *point, len(curves)) for point in points]
        axes.axhline(rounds, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_yscale("log")
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("κ")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    told = "; ".join(
        f"{label} from {own[0][3]:.2f} at step {own[0][2]} to {own[-1][3]:.2f} at step {own[-1][2]}"
        for label, *_ in series
        if (own := [row for row in rows if row[0] == label])
    )
    return Chart(
        name,
        title,
        _CAPTION,
        f"Line chart of kappa against the step. {told}.",
        svg,
        ("arm", "rounds", "step", "mean_kappa", "lowest_kappa", "highest_kappa", "num_runs"),
        tuple(rows),
    )

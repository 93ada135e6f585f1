"""Loss over training: every run thin, the mean of each cell thick."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.reports.charts import GRID, INK, Chart, drawing_settings, legend_below, new_axes, render, style_of
from depthscale.reports.study_data import CellData, RunData, StudyData

#: With fewer evaluations than this the training loss is drawn instead.
_MIN_EVALUATIONS = 4

Curve = dict[int, float]


def loss_curve_charts(data: StudyData) -> list[Chart]:
    """One chart for each R; empty where no run's metrics are at hand."""
    charts = []
    for rounds in data.rounds:
        named = [(cell.arm, data.arms.index(cell.arm), cell) for cell in data.at(rounds) if cell.runs]
        if named:
            charts.append(_chart(f"loss-r{rounds}", f"Loss over training, R = {rounds}", named))
    return charts


def run_loss_chart(run: RunData) -> Chart:
    """The loss of a single run."""
    cell = CellData({"arm": "this run", "rounds": run.training["plan"]["num_rounds"]}, (run,))
    return _chart("loss", "Loss over training", [(cell.arm, 1, cell)])


def evaluation_curve(records: Sequence[Mapping[str, Any]]) -> Curve:
    """Loss on the tuning split by step; an evaluation that was not finite is left out."""
    return {
        record["step"]: record["loss_nats"]
        for record in records
        if record["kind"] == "evaluation" and record["split"] == "tuning" and record["loss_nats"] is not None
    }


def training_curve(records: Sequence[Mapping[str, Any]]) -> Curve:
    """Training loss by step; steps that were not finite are left out."""
    return {
        record["step"]: record["loss_nats"]
        for record in records
        if record["kind"] == "train" and record["loss_nats"] is not None
    }


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float, float, float]]:
    """(step, mean, lowest, highest) at every step at which all runs have a loss.

    It ends where the first run ends: the mean of the survivors would fall when a bad run drops out.
    """
    if not curves:
        return []
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [
        (step, statistics.fmean(losses), min(losses), max(losses))
        for step in shared
        if (losses := [curve[step] for curve in curves])
    ]


def _chart(name: str, title: str, cells: Sequence[tuple[str, int, CellData]]) -> Chart:
    runs = [run for _, _, cell in cells for run in cell.runs]
    evaluated = statistics.median(len(evaluation_curve(run.metrics)) for run in runs) >= _MIN_EVALUATIONS
    read, split = (evaluation_curve, "tuning") if evaluated else (training_curve, "train")
    floor = runs[0].training["unigram_loss_nats"]["tuning"]
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        lowest = math.inf
        for label, index, cell in cells:
            style = style_of(index)
            curves = [curve for run in cell.runs if (curve := read(run.metrics))]
            for curve in curves:
                axes.plot(list(curve), list(curve.values()), color=style["color"], linewidth=0.6, alpha=0.45)
                lowest = min(lowest, *curve.values())
            means = mean_curve(curves)
            axes.plot(
                [point[0] for point in means],
                [point[1] for point in means],
                color=style["color"],
                linestyle=style["linestyle"],
                label=label,
            )
            rows += [(label, cell.rounds, split, *point, len(curves)) for point in means]
        axes.axhline(floor, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            "unigram floor", (1, floor), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", va="bottom", fontsize=8.5,
        )  # fmt: skip
        if lowest < floor:
            axes.set_ylim(lowest - 0.04 * (floor - lowest), floor + 0.14 * (floor - lowest))
        axes.set_xlim(left=0)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    what = "on the tuning split" if evaluated else "on the training batches"
    ends = "; ".join(f"{row[0]} {row[4]:.3f}" for row in _last_rows(rows))
    lines = " Thin lines are runs, thick ones the mean of a cell, drawn as long as all its runs go on."
    return Chart(
        name,
        title,
        f"Loss {what}.{lines if len(runs) > 1 else ''}"
        " The axis is cut just above the unigram floor, the loss of a model that only knows token frequencies.",
        f"Line chart of the loss {what} against the step. Mean at the last common step: {ends or 'none'}.",
        svg,
        ("arm", "rounds", "split", "step", "mean_loss_nats", "lowest_loss_nats", "highest_loss_nats", "num_runs"),
        tuple(rows),
    )


def _last_rows(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return list({row[0]: row for row in rows}.values())

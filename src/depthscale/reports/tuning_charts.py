"""How rates and weight decays were chosen: every value that was tried, in a chart and in a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from depthscale.reports.charts import (
    GRID,
    Chart,
    drawing_settings,
    legend_below,
    new_axes,
    plain_log_ticks,
    render,
    style_of,
)
from depthscale.reports.study_data import StudyData


class _Axis(NamedTuple):
    """One setting that was searched: its key in a point, the points' and the choice's in a cell, and words."""

    key: str
    points: str
    best: str
    name: str
    title: str
    label: str


_AXES = (
    _Axis("lr", "points", "best_lr", "tuning", "Choosing the rate", "peak learning rate"),
    _Axis(
        "weight_decay", "weight_decay_points", "best_weight_decay", "tuning-decay",
        "Choosing the weight decay, at the best rate", "weight decay",
    ),
)  # fmt: skip


def tuning_charts(data: StudyData) -> list[Chart]:
    """Loss against learning rate, and against weight decay, for each R; empty where nothing was tuned."""
    cells = data.tuning["cells"] if data.tuning else []
    return [
        _chart(data, [cell for cell in cells if cell["rounds"] == rounds and cell.get(axis.points)], axis)
        for axis in _AXES
        for rounds in sorted({cell["rounds"] for cell in cells if cell.get(axis.points)})
    ]


def tuning_rows(tuning: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a cell: how many runs it had to choose by, what it chose, and the mean loss of all that it tried."""
    return [
        {
            "arm": cell["arm"],
            "rounds": cell["rounds"],
            "runs": sum(len(cell.get(axis.points, ())) for axis in _AXES),
            "lr": cell["best_lr"],
            "weight_decay": cell.get("best_weight_decay"),
            "at_edge": cell["at_edge"] or cell.get("weight_decay_at_edge", False),
            "tried": [
                (axis.label if axis.key != "lr" else "rate", value, means.get(value))
                for axis in _AXES
                for means in [_mean_by(cell.get(axis.points, ()), axis.key)]
                for value in sorted({point[axis.key] for point in cell.get(axis.points, ())})
            ],
        }
        for cell in tuning["cells"]
    ]


def _mean_by(points: Iterable[Mapping[str, Any]], key: str) -> dict[float, float]:
    """Mean loss at each value, ascending; one at which a run diverged has no mean, and is never chosen."""
    losses: dict[float, list[float | None]] = {}
    for point in points:
        diverged = point["outcome"] == "diverged"
        losses.setdefault(point[key], []).append(None if diverged else point["loss_nats"])
    return {
        value: statistics.fmean(loss for loss in found if loss is not None)
        for value, found in sorted(losses.items())
        if None not in found
    }


def _chart(data: StudyData, cells: Sequence[Mapping[str, Any]], axis: _Axis) -> Chart:
    rounds = cells[0]["rounds"]
    rows: list[tuple[Any, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for cell in cells:
            style = style_of(data.arms.index(cell["arm"]) if cell["arm"] in data.arms else len(data.arms))
            means = _mean_by(cell[axis.points], axis.key)
            axes.plot(list(means), list(means.values()), **style, markersize=5, label=cell["arm"])
            if (best := cell[axis.best]) in means:
                axes.plot(best, means[best], "o", color=style["color"], markersize=12, markerfacecolor="none")
            rows += [
                (cell["arm"], rounds, p["lr"], p.get("weight_decay"), p["seed"], p["loss_nats"], p["outcome"])
                for p in cell[axis.points]
            ]
        values = sorted({point[axis.key] for cell in cells for point in cell[axis.points]})
        if values[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=values[1] if len(values) > 1 else 1.0)
        plain_log_ticks(axes.xaxis, _few(values))
        axes.set_xlabel(axis.label)
        axes.set_ylabel("loss on the tuning split, nats")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    chosen = "; ".join(f"{cell['arm']} {cell[axis.best]:.3g}" for cell in cells)
    return Chart(
        f"{axis.name}-r{rounds}",
        f"{axis.title}, R = {rounds}",
        "Mean loss over the tuning seeds, none of which is a seed of the comparison. A ring marks the choice.",
        f"Line chart of tuning loss against {axis.label}. Chosen: {chosen}.",
        svg,
        ("arm", "rounds", "lr", "weight_decay", "seed", "loss_nats", "outcome"),
        tuple(rows),
    )


def _few(values: Sequence[float]) -> list[float]:
    """Those of the values whose labels do not touch on a logarithmic axis: at most about six."""
    positive = [value for value in values if value > 0]
    apart = (positive[-1] / positive[0]) ** (1 / 6) if positive else 1.0
    kept = [value for value in values if value <= 0]
    for value in positive:
        if not kept or kept[-1] <= 0 or value >= kept[-1] * apart * (1 - 1e-9):
            kept.append(value)
    return kept

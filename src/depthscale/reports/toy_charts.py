"""Figures of a toy study: loss over depth, the exponent against temperature and steps, and what updates look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from depthscale.reports.charts import (
    GRID,
    INK,
    Chart,
    drawing_settings,
    few_log_ticks,
    legend_below,
    new_axes,
    plain_log_ticks,
    render,
    style_of,
)

Line = dict[str, Any]
Row = tuple[object, ...]

_WIDE = (4.7, 3.6)


def depth_charts(lines: Sequence[Line]) -> list[Chart]:
    """Loss over depth, one chart for each case."""
    cases = dict.fromkeys(line["case"] for line in lines)
    return [_depth_chart(case, [line for line in lines if line["case"] == case]) for case in cases]


def label(line: Line) -> str:
    """A line within its case."""
    heat = "" if line["temperature"] is None else f", T = {line['temperature']:g}"
    return f"{line['family'].replace('_', ' ')}{heat}"


def _with_exponent(line: Line) -> str:
    found = line["exponents"][-1]["value"]
    return f"{label(line)}: {'no exponent' if found is None else f'{found:.2f}'}"


def _depth_chart(case: str, lines: Sequence[Line]) -> Chart:
    rows: list[Row] = []
    with drawing_settings():
        figure, axes = new_axes(*_WIDE)
        for index, line in enumerate(lines):
            if line["mean_losses"] is None:
                continue
            style = style_of(index)
            depths, means = line["depths"], line["mean_losses"][-1]
            for single in line["losses"][-1]:
                axes.plot(depths, single, color=style["color"], linewidth=0.6, alpha=0.4)
            axes.plot(depths, means, **style, markersize=4, label=_with_exponent(line))
            if len(line["ends"]) > 1:
                axes.plot(depths, line["mean_losses"][-2], color=style["color"], linewidth=0.9, linestyle=(0, (1, 2)))
            for e, end in enumerate(line["ends"]):
                rows += [
                    (label(line), end, depth, mean) for depth, mean in zip(depths, line["mean_losses"][e], strict=True)
                ]
        _guides(axes, lines)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _depth_ticks(axes, [depth for line in lines for depth in line["depths"]])
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_ylabel("loss on fresh inputs")
        axes.grid(color=GRID, linewidth=0.5)
        legend_below(figure, columns=2)
        svg = render(figure)
    ends = "; ".join(_with_exponent(line) for line in lines)
    return Chart(
        f"toy-depth-{case}",
        f"{case.replace('_', ' ')}: loss over depth",
        "Thick: geometric mean over replicates at the last step; thin: each of them; dotted: the number of steps"
        " before. Gray guides fall with exponents 1 and 3.",
        f"Log-log lines of the loss over the student's depth. Exponents: {ends}.",
        svg,
        ("line", "steps", "depth", "mean_loss"),
        tuple(rows),
    )


def _guides(axes: Any, lines: Sequence[Line]) -> None:
    """Slopes 1 and 3 from the first point of the first line."""
    drawn = [line for line in lines if line["mean_losses"] is not None]
    if not drawn:
        return
    depths = np.array(drawn[0]["depths"], dtype=np.float64)
    top = drawn[0]["mean_losses"][-1][0] * 1.5
    low = min(min(line["mean_losses"][-1]) for line in drawn)
    for exponent in (1.0, 3.0):
        guide = top * (depths / depths[0]) ** -exponent
        shown = guide > low / 1.5
        axes.plot(depths[shown], guide[shown], color=INK, linewidth=0.7, alpha=0.35)
        axes.annotate(f"{exponent:g}", (depths[shown][-1], guide[shown][-1]), fontsize=8, alpha=0.6, ha="left")


def exponent_charts(lines: Sequence[Line]) -> list[Chart]:
    """The exponent against temperature, and against steps."""
    heated = [line for line in lines if line["temperature"] is not None and line["exponents"][-1]["value"] is not None]
    groups: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for line in heated:
        key = f"{line['case'].replace('_', ' ')}, {line['family'].replace('_', ' ')}"
        groups.setdefault(key, []).append((line["temperature"], line["exponents"][-1]))
    charts = []
    if any(len(points) > 1 for points in groups.values()):
        charts.append(_exponent_chart("toy-temperature", "Exponent against temperature", "temperature", groups))
    for teacher in _teachers(lines):
        grown = {}
        for line in lines:
            steps = zip(line["ends"], line["exponents"], strict=True)
            points = [(float(end), exponent) for end, exponent in steps if exponent["value"] is not None]
            if line["teacher"] == teacher and len(points) > 1:
                grown[_full_label(line)] = points
        if grown:
            name, title = f"toy-steps-{teacher}".replace(" ", "-"), f"Exponent against steps, {teacher} teacher"
            charts.append(_exponent_chart(name, title, "steps of the whole run", grown))
    return charts


def _exponent_chart(name: str, title: str, axis: str, groups: dict[str, list[tuple[float, dict[str, Any]]]]) -> Chart:
    rows: list[Row] = []
    values = [exponent["value"] for points in groups.values() for _, exponent in points]
    bottom, top = min(0.0, min(values) - 0.5), max(4.0, max(values) + 0.5)
    with drawing_settings():
        figure, axes = new_axes(*_WIDE)
        for index, (key, points) in enumerate(groups.items()):
            points = sorted(points, key=lambda point: point[0])
            style = style_of(index)
            # Neighbors in the same place would hide each other's intervals.
            x = np.array([point[0] for point in points]) * 1.02 ** (index - len(groups) / 2)
            y = np.array([point[1]["value"] for point in points])
            axes.plot(x, y, **style, markersize=4, label=key)
            for place, (_, exponent) in zip(x, points, strict=True):
                low = bottom if exponent["lower"] is None else max(exponent["lower"], bottom)
                high = top if exponent["upper"] is None else min(exponent["upper"], top)
                axes.plot([place, place], [low, high], color=style["color"], linewidth=0.9)
            rows += [(key, at, e["value"], e["lower"], e["upper"]) for at, e in points]
        for exponent_ in (1.0, 3.0):
            axes.axhline(exponent_, color=INK, linewidth=0.7, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        few_log_ticks(axes.xaxis, *axes.get_xlim())
        axes.set_ylim(bottom, top)
        axes.set_xlabel(axis)
        axes.set_ylabel("exponent of loss over depth")
        axes.grid(axis="y", color=GRID, linewidth=0.5)
        legend_below(figure, columns=1)
        svg = render(figure)
    said = "; ".join(f"{row[0]} at {row[1]:g}: {row[2]:.2f}" for row in rows)
    return Chart(
        name,
        title,
        "Bars cover the choice of form and every replicate; one that leaves the figure is open or very long."
        " Dashed: 1 (ensemble averaging) and 3 (a smooth flow).",
        f"Lines of the exponent. {said}.",
        svg,
        ("line", axis.split(" ")[0], "exponent", "lower", "upper"),
        tuple(rows),
    )


def map_charts(lines: Sequence[Line]) -> list[Chart]:
    """The exponent over temperature and steps, one map for each family that has both."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line["temperature"] is not None and len(line["ends"]) > 1:
            groups.setdefault((line["case"], line["family"]), []).append(line)
    return [_map_chart(*key, members) for key, members in groups.items() if len(members) > 1]


def _map_chart(case: str, family: str, lines: Sequence[Line]) -> Chart:
    lines = sorted(lines, key=lambda line: float(line["temperature"]))
    ends = lines[0]["ends"]
    values = np.array(
        [[np.nan if e["value"] is None else e["value"] for e in line["exponents"]] for line in lines], dtype=np.float64
    )
    with drawing_settings():
        figure, axes = new_axes(3.4, 2.7)
        axes.pcolormesh(values, vmin=0, vmax=4, cmap="cividis", edgecolors="white", linewidth=1.5)
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                color = "black" if value > 2 else "white"
                axes.text(
                    j + 0.5,
                    i + 0.5,
                    "none" if np.isnan(value) else f"{value:.2f}",
                    ha="center",
                    va="center",
                    color=color,
                )
        axes.set_xticks(np.arange(len(ends)) + 0.5, [f"{end:,}" for end in ends])
        axes.set_yticks(np.arange(len(lines)) + 0.5, [f"{line['temperature']:g}" for line in lines])
        axes.set_xlabel("steps of the whole run")
        axes.set_ylabel("temperature")
        svg = render(figure)
    rows = [
        (line["temperature"], end, e["value"], e["lower"], e["upper"])
        for line in lines
        for end, e in zip(ends, line["exponents"], strict=True)
    ]
    return Chart(
        f"toy-map-{case}-{family}",
        f"{case.replace('_', ' ')}, {family.replace('_', ' ')}: exponent over temperature and steps",
        "Every cell is a run of that many steps with its own fall of the rate. Dark 0 or less, light 4 or more.",
        f"Map of the exponent; from {np.nanmin(values):.2f} to {np.nanmax(values):.2f}."
        if np.isfinite(values).any()
        else "Map without any exponent.",
        svg,
        ("temperature", "steps", "exponent", "lower", "upper"),
        tuple(rows),
    )


def signature_charts(teachers: Sequence[dict[str, Any]], lines: Sequence[Line]) -> list[Chart]:
    """Angle of neighboring updates: over a teacher's layers, and of trained students over their depth."""
    rows: list[Row] = []
    with drawing_settings():
        figure, axes = new_axes(*_WIDE)
        for index, teacher in enumerate(teachers):
            angles = teacher["profile"]["update_angle"]
            axes.plot(
                range(1, len(angles) + 1), angles, color=style_of(index)["color"], label=f"{teacher['kind']} teacher"
            )
            rows += [(f"{teacher['kind']} teacher", place + 1, value) for place, value in enumerate(angles)]
        _angle_axes(axes, "layer")
        legend_below(figure)
        charts = [_angle_chart("toy-teacher-angles", "Angle of neighboring updates: teachers", "layer", rows, figure)]
    return charts + [_student_angles(kind, [x for x in lines if x["teacher"] == kind]) for kind in _teachers(lines)]


def _student_angles(teacher: str, lines: Sequence[Line]) -> Chart:
    rows: list[Row] = []
    with drawing_settings():
        figure, axes = new_axes(*_WIDE)
        for index, line in enumerate(lines):
            points = [(s["depth"], s["update_angle"]) for s in line["signatures"] if s["update_angle"] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), **style_of(index), markersize=4, label=_full_label(line))
                rows += [(_full_label(line), *point) for point in points]
        _angle_axes(axes, "")
        axes.set_xscale("log")
        _depth_ticks(axes, [depth for line in lines for depth in line["depths"]])
        legend_below(figure, columns=1)
        name = f"toy-student-angles-{teacher}".replace(" ", "-")
        return _angle_chart(
            name, f"Angle of neighboring updates: students of the {teacher} teacher", "depth", rows, figure
        )


def _teachers(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line["teacher"] for line in lines))


def _full_label(line: Line) -> str:
    return f"{line['case'].replace('_', ' ')}, {label(line)}"


def _depth_ticks(axes: Any, depths: Sequence[int]) -> None:
    axes.set_xlabel("depth, visits of blocks")
    plain_log_ticks(axes.xaxis, sorted(set(depths)))


def _angle_axes(axes: Any, name: str) -> None:
    axes.axhline(np.pi / 2, color=INK, linewidth=0.7, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 2.2)
    axes.set_xlabel(name)
    axes.set_ylabel("angle, radians")
    axes.grid(axis="y", color=GRID, linewidth=0.5)


def _angle_chart(name: str, title: str, column: str, rows: Sequence[Row], figure: Any) -> Chart:
    return Chart(
        name,
        title,
        "Dashed: \N{GREEK SMALL LETTER PI}/2, updates that know nothing of each other.",
        f"{title}: {len(rows)} values.",
        render(figure),
        ("line", column, "update_angle"),
        tuple(rows),
    )

"""Figures of kappa and of the maxima over R: initialization and training in one figure, or side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from depthscale.reports.alignment_data import AlignmentData
from depthscale.reports.charts import (
    GRID,
    INK,
    SERIES_COLORS,
    Chart,
    drawing_settings,
    few_log_ticks,
    legend_below,
    new_axes,
    plain_log_ticks,
    render,
    style_of,
)

_COLUMNS = ("arm", "step", "rounds", "num_seeds", "mean", "standard_error")


def kappa_charts(data: AlignmentData) -> list[Chart]:
    """One chart for each rule: kappa over R at every step, its untied control dashed."""
    return [_kappa_chart(data, arm) for arm in (*data.rules, *data.exponents)]


def maxima_charts(data: AlignmentData) -> list[Chart]:
    """max ||U|| and max ||G|| in units of beta/alpha over R, relative to R = 1, at the first and the last stage."""
    return [
        _maxima_chart(data, quantity, letter, step)
        for quantity, letter in (("relative_map_max", "U"), ("relative_gradient_max", "G"))
        for step in data.stages
    ]


def share_charts(data: AlignmentData) -> list[Chart]:
    """Each sublayer's share of the bound at one R, a bar for each rule, at the first and the last stage."""
    return [chart for step in data.stages if (chart := _share_chart(data, step)) is not None]


def draw_statistic(
    axes: Axes, condition: Mapping[str, Any], quantity: str, style: Mapping[str, Any], label: str
) -> None:
    """Means over seeds with their standard errors against R."""
    rows = condition["by_rounds"]
    axes.errorbar(
        [row["rounds"] for row in rows],
        [row[quantity]["mean"] for row in rows],
        yerr=[row[quantity]["standard_error"] or 0.0 for row in rows],
        label=label,
        capsize=2,
        markersize=4,
        elinewidth=0.8,
        **style,
    )


def statistic_rows(condition: Mapping[str, Any], quantity: str) -> list[tuple[object, ...]]:
    """The drawn numbers of one curve."""
    return [
        (
            condition["arm"],
            condition["step"],
            row["rounds"],
            row["num_seeds"],
            row[quantity]["mean"],
            row[quantity]["standard_error"],
        )
        for row in condition["by_rounds"]
    ]


def rounds_axis(axes: Axes, rounds: Sequence[int]) -> None:
    """A logarithmic axis of R with the measured numbers as its ticks."""
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis, [float(r) for r in sorted(set(rounds))])
    axes.set_xlabel("rounds R")


def _kappa_chart(data: AlignmentData, arm: Mapping[str, Any]) -> Chart:
    untied = data.untied(arm)
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes(3.6, 3.1)
        steps = data.steps(arm["name"])
        for index, step in enumerate(steps):
            condition = data.condition(arm["name"], step)
            assert condition is not None, "steps come from the conditions"
            draw_statistic(axes, condition, "kappa", {**style_of(index), "linestyle": "-"}, f"step {step}")
            rows += statistic_rows(condition, "kappa")
        control_steps = data.steps(untied["name"]) if untied else []
        for step in dict.fromkeys([*control_steps[:1], *control_steps[-1:]]):
            condition = data.condition(untied["name"], step) if untied else None
            if condition is not None:
                index = steps.index(step) if step in steps else len(steps)
                style = {**style_of(index), "linestyle": ":", "markerfacecolor": "none"}
                draw_statistic(axes, condition, "kappa", style, f"untied, {step}")
                rows += statistic_rows(condition, "kappa")
        rounds = arm["rounds"]
        axes.plot(rounds, rounds, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_yscale("log")
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        rounds_axis(axes, rounds)
        axes.set_ylabel("κ")
        axes.grid(color=GRID, linewidth=0.5)
        legend_below(figure)
        svg = render(figure)
    ends = "; ".join(f"step {row[1]}, R = {row[2]}: {row[4]:.2f}" for row in rows if row[2] == max(rounds[-2:]))
    return Chart(
        f"kappa-{arm['name']}",
        f"κ over R: {arm['name']}",
        "Largest over attention and MLP sublayers; mean over seeds with its standard error. Thin dots: κ = R, visits"
        f" aligned in full.{' Dotted: blocks of its own for every visit.' if untied else ''}",
        f"Log-log line chart of kappa against rounds for {arm['name']}. {ends}.",
        svg,
        _COLUMNS,
        tuple(rows),
    )


def _maxima_chart(data: AlignmentData, quantity: str, letter: str, step: int) -> Chart:
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes(3.6, 3.3)
        for index, arm in enumerate(data.rules):
            condition = data.condition(arm["name"], step)
            if condition is None:
                continue
            first = condition["by_rounds"][0][quantity]["mean"]
            at = condition["by_rounds"]
            axes.plot(
                [row["rounds"] for row in at],
                [row[quantity]["mean"] / first for row in at],
                label=arm["name"],
                markersize=4,
                **style_of(index),
            )
            rows += statistic_rows(condition, quantity)
        axes.axhline(1.0, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_yscale("log")
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        rounds_axis(axes, [r for arm in data.rules for r in arm["rounds"]])
        axes.set_ylabel(f"max ‖{letter}‖ / (β/α), relative")
        axes.grid(color=GRID, linewidth=0.5)
        legend_below(figure, columns=2)
        svg = render(figure)
    return Chart(
        f"maxima-{letter}-step-{step}",
        f"Is max ‖{letter}‖ of the order β/α? {_stage(step)}",
        "Flat is what the paper assumes; where a curve moves, (1 + γ)/4 is no threshold. Means over seeds, each over"
        " its own value at the fewest rounds; the file holds them as measured.",
        f"Log-log line chart of the largest norm of {letter} in units of beta/alpha against rounds, one line for each"
        f" rule, at step {step}.",
        svg,
        _COLUMNS,
        tuple(rows),
    )


def _share_chart(data: AlignmentData, step: int) -> Chart | None:
    found = [
        (arm["name"], condition)
        for arm in data.rules
        if (condition := data.condition(arm["name"], step)) is not None
    ]  # fmt: skip
    common = set.intersection(*({row["rounds"] for row in c["by_rounds"]} for _, c in found)) if found else set()
    if not common:
        return None
    rounds = max(common)
    names = [s["name"] for s in found[0][1]["by_rounds"][0]["sublayers"]]
    bars = {
        arm: {s["name"]: s["share"] for s in next(r for r in c["by_rounds"] if r["rounds"] == rounds)["sublayers"]}
        for arm, c in found
    }
    with drawing_settings():
        figure, axes = new_axes(4.7, 0.9 + 0.34 * len(bars))
        left = dict.fromkeys(bars, 0.0)
        for index, name in enumerate(names):
            widths = [shares.get(name, 0.0) for shares in bars.values()]
            axes.barh(
                list(bars),
                widths,
                left=list(left.values()),
                color=SERIES_COLORS[index % len(SERIES_COLORS)],
                hatch="////" if index >= len(SERIES_COLORS) else "",
                edgecolor="white",
                linewidth=0.5,
                label=name,
            )
            left = {arm: left[arm] + width for arm, width in zip(bars, widths, strict=True)}
        axes.set_xlim(0, 1)
        axes.invert_yaxis()
        axes.set_xlabel(f"share of the bound, R = {rounds}")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        legend_below(figure)
        svg = render(figure)
    every = [
        (arm, step, row["rounds"], s["name"], s["share"], s["kappa"]["mean"])
        for arm, c in found
        for row in c["by_rounds"]
        for s in row["sublayers"]
    ]
    return Chart(
        f"shares-step-{step}",
        f"Which sublayers make the bound: {_stage(step)}",
        "Share of R·κ·max‖U‖·max‖G‖ summed over sublayers, norm gains among them; κ alone is blind to size. The file"
        " holds every R.",
        f"Stacked bars, one for each rule, of sublayers' shares of the bound at {rounds} rounds and step {step}.",
        svg,
        ("arm", "step", "rounds", "sublayer", "share", "kappa"),
        tuple(every),
    )


def _stage(step: int) -> str:
    return "at initialization" if step == 0 else f"after {step} steps"

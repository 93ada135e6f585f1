"""Figures of exponents: gamma along training, a real step over R, and where p meets its own threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.reports.alignment_charts import rounds_axis
from depthscale.reports.alignment_data import AlignmentData
from depthscale.reports.charts import (
    BAND,
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

#: Curves of a real step, and how they are called.
_STEP_CURVES = {
    "actual": "measured",
    "first_order": "first order",
    "bound": "bound",
    "predicted_in_full": "from ‖ΣU‖·‖Δφ‖",
    "predicted": "from κ",
    "predicted_aligned": "κ = R",
}


def gamma_charts(data: AlignmentData) -> list[Chart]:
    """gamma against the step, tied and untied apart."""
    untied = [control for arm in data.rules if (control := data.untied(arm)) is not None]
    groups = [("gamma", "γ along training", data.rules), ("gamma-untied", "γ along training, untied control", untied)]
    return [_gamma_chart(data, name, title, arms) for name, title, arms in groups if arms]


def step_charts(data: AlignmentData) -> list[Chart]:
    """The change that one real step makes, over R."""
    return [_step_chart(record) for record in data.result["one_steps"]]


def exponent_charts(data: AlignmentData) -> list[Chart]:
    """(1 + gamma) / 4 against the exponent it was measured under, for each batch size."""
    record = data.result["self_consistent"]
    if record is None:
        return []
    points = record["kappa_common"]["points"]
    sizes = sorted({point["batch_rows"] for point in points})
    return [_exponent_chart(record, [q for q in points if q["batch_rows"] == rows], rows) for rows in sizes]


def _gamma_chart(data: AlignmentData, name: str, title: str, arms: Sequence[Mapping[str, Any]]) -> Chart:
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, arm in enumerate(arms):
            fits = [
                (step, condition["growth"]["kappa"])
                for step in data.steps(arm["name"])
                if (condition := data.condition(arm["name"], step)) is not None
            ]
            known = [(step, fit) for step, fit in fits if "reason" not in fit]
            rows += [(arm["name"], step, fit["exponent"], fit["lower"], fit["upper"]) for step, fit in known]
            if not known:
                continue
            # Beside each other, so that bars of several arms can be told apart.
            shift = (index - (len(arms) - 1) / 2) * 0.006 * max(1, *(step for step, _ in known))
            axes.errorbar(
                [step + shift for step, _ in known],
                [fit["exponent"] for _, fit in known],
                yerr=[
                    [fit["exponent"] - _or(fit["lower"], fit["exponent"]) for _, fit in known],
                    [_or(fit["upper"], fit["exponent"]) - fit["exponent"] for _, fit in known],
                ],
                label=arm["name"],
                capsize=2,
                markersize=4,
                elinewidth=0.8,
                **style_of(index),
            )
        for value in (0.0, 1.0):
            axes.axhline(value, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("γ of κ ~ R^γ")
        axes.grid(axis="y", color=GRID, linewidth=0.5)
        legend_below(figure, columns=2)
        svg = render(figure)
    return Chart(
        name,
        title,
        f"Fitted over R and seeds with its {100 * data.result['level']:g} % interval. Dotted: orthogonal visits (0) and"
        " aligned ones (1). The bend in the table says whether one power of R fits.",
        "Line chart of gamma against the step. "
        + "; ".join(f"{row[0]} at step {row[1]}: {row[2]:.2f}" for row in rows)
        + ".",
        svg,
        ("arm", "step", "gamma", "lower", "upper"),
        tuple(rows),
    )


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _step_chart(record: Mapping[str, Any]) -> Chart:
    at = record["by_rounds"]
    drawn = [name for name in _STEP_CURVES if name in at[0]]
    with drawing_settings():
        figure, axes = new_axes(3.6, 3.3)
        for index, name in enumerate(drawn):
            style = {**style_of(index), "linestyle": "-" if name == "actual" else "--"}
            axes.plot(
                [row["rounds"] for row in at],
                [row[name]["mean"] for row in at],
                label=_STEP_CURVES[name],
                markersize=6 if name == "first_order" else 4,
                markerfacecolor="none" if name != "actual" else style["color"],
                **style,
            )
        axes.set_yscale("log")
        few_log_ticks(axes.yaxis, *axes.get_ylim())
        rounds_axis(axes, [row["rounds"] for row in at])
        axes.set_ylabel("‖F(φ+Δφ) − F(φ)‖")
        axes.grid(color=GRID, linewidth=0.5)
        legend_below(figure, columns=2)
        svg = render(figure)
    optimizer = {"sgd": "SGD", "adamw": "AdamW"}[record["optimizer"]]
    when = "at initialization" if record["step"] == 0 else f"after {record['step']} steps"
    rows = [
        (
            record["arm"],
            record["optimizer"],
            record["step"],
            row["rounds"],
            *(value for name in _STEP_CURVES for value in _statistic(row.get(name))),
        )
        for row in at
    ]
    return Chart(
        f"step-{record['arm']}-{record['optimizer']}-{record['step']}",
        f"One {optimizer} step under {record['arm']}, {when}",
        f"Change of the final states by one real step of the shared matrices at rate {record['lr']:g}; means over"
        " seeds. Predictions have their constant from R = 1.",
        "Log-log line chart of the change of the final states against rounds: measured"
        f" {at[0]['actual']['mean']:.3g} at R = {at[0]['rounds']}, {at[-1]['actual']['mean']:.3g} at R ="
        f" {at[-1]['rounds']}.",
        svg,
        ("arm", "optimizer", "step", "rounds", *(c for name in _STEP_CURVES for c in (name, f"{name}_standard_error"))),
        tuple(rows),
    )


def _statistic(found: Mapping[str, Any] | None) -> tuple[object, object]:
    return (None, None) if found is None else (found["mean"], found["standard_error"])


def _exponent_chart(record: Mapping[str, Any], points: Sequence[Mapping[str, Any]], batch_rows: int) -> Chart:
    steps = sorted({point["step"] for point in points})
    exponents = sorted({point["p"] for point in points})
    solution = record["kappa_common"]["solution"]
    with drawing_settings():
        figure, axes = new_axes(4.2, 3.4)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.9)
        if record["edge"]:
            axes.axvspan(*record["edge"], color=BAND, linewidth=0)
        for index, step in enumerate(steps):
            own = sorted((q for q in points if q["step"] == step), key=lambda q: float(q["p"]))
            axes.errorbar(
                [q["p"] for q in own],
                [(1 + q["gamma"]) / 4 for q in own],
                yerr=[1.96 * q["standard_error"] / 4 for q in own],
                label=f"step {step}",
                capsize=2,
                markersize=4,
                elinewidth=0.8,
                **style_of(index),
            )
        margin = 0.1 * (exponents[-1] - exponents[0]) or 0.05
        axes.set_xlim(exponents[0] - margin, exponents[-1] + margin)
        heights = [(1 + q["gamma"]) / 4 for q in points]
        axes.set_ylim(min(*heights, exponents[0]) - 0.05, max(*heights, exponents[-1]) + 0.05)
        axes.set_xlabel("exponent p that γ was measured under")
        axes.set_ylabel("(1 + γ) / 4")
        axes.grid(color=GRID, linewidth=0.5)
        legend_below(figure)
        svg = render(figure)
    crossings = [c for c in solution.get("crossings", []) if c["batch_rows"] == batch_rows]
    words = "; ".join(
        f"step {c['step']}: {c['estimate']:.3f}" if c["estimate"] is not None else f"step {c['step']}: none"
        for c in crossings
    )
    band = " Gray: the sweep's measured edge." if record["edge"] else ""
    return Chart(
        f"self-consistent-{batch_rows}-rows",
        f"Where p meets its own threshold, {batch_rows} rows",
        f"p* is where a curve crosses the line (1 + γ)/4 = p, with γ of κ_common. Bars: 1.96 standard errors.{band}",
        f"Line chart of (1 + gamma)/4 against p. Crossings: {words or 'none'}.",
        svg,
        ("p", "step", "batch_rows", "gamma", "standard_error", "threshold"),
        tuple(
            (q["p"], q["step"], q["batch_rows"], q["gamma"], q["standard_error"], (1 + q["gamma"]) / 4) for q in points
        ),
    )

"""Final losses and paired differences, with what so many pairs could have found."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from depthscale.reports.charts import BAND, GRID, INK, Chart, drawing_settings, legend_below, new_axes, render, style_of
from depthscale.reports.study_data import StudyData
from depthscale.studies.named_comparisons import TERMS
from depthscale.studies.words import at_budget, decimal

#: Letters of a row's name that leave the axes enough width beside it.
_LONGEST_BESIDE = 30
#: Letters of a line that fit above a row.
_LONGEST_ABOVE = 78


def final_loss_chart(data: StudyData, trained_only: bool = False) -> Chart:
    """Final loss against R per arm: every run a small mark, means joined; all runs, or those that finished."""
    summary_key = "loss_nats_trained" if trained_only else "loss_nats"
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, arm in enumerate(data.arms):
            style = style_of(index)
            shift = min(0.07, 0.4 / len(data.arms)) * (index - (len(data.arms) - 1) / 2)
            cells = sorted((cell for cell in data.longest if cell.arm == arm), key=lambda cell: cell.rounds)
            means = []
            for cell in cells:
                position = math.log2(cell.rounds) + shift
                for run in cell.summary["runs"]:
                    trained = run["outcome"] == "finished"
                    if trained_only and not trained:
                        continue
                    face = style["color"] if trained else "none"
                    axes.plot(position, run["loss_nats"], style["marker"], color=style["color"],
                              markersize=3.4, markerfacecolor=face, alpha=0.6, linestyle="none")  # fmt: skip
                    rows.append((arm, cell.rounds, run["seed"], run["outcome"], run["loss_nats"]))
                if cell.summary[summary_key]["mean"] is not None:
                    means.append((position, cell.summary[summary_key]["mean"]))
            if means:
                axes.plot(*zip(*means, strict=True), **style, markersize=6.5, label=arm)
        axes.set_xticks([math.log2(rounds) for rounds in data.rounds], [str(rounds) for rounds in data.rounds])
        axes.margins(x=0.12)
        axes.set_xlabel("rounds R (log scale)")
        axes.set_ylabel("final loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    listed = "; ".join(
        f"{cell.arm} at R = {cell.rounds}: {cell.summary[summary_key]['mean']:.3f}"
        for cell in data.longest
        if cell.summary[summary_key]["mean"] is not None
    )
    many = len(data.longest) < len(data.cells)
    over = "finished runs only" if trained_only else "all runs, hollow where one was stuck or diverged"
    return Chart(
        "final-loss-trained" if trained_only else "final-loss",
        "Final loss of the runs that train" if trained_only else "Final loss against rounds",
        f"{'Runs of the largest budget. ' if many else ''}Large marks are means, small ones single runs ({over})."
        " Arms are set apart sideways for legibility. More"
        " rounds cost more FLOPs: nothing here is at equal FLOPs.",
        f"Mean final loss in nats per token. {listed}.",
        svg,
        ("arm", "rounds", "seed", "outcome", "loss_nats"),
        tuple(rows),
    )


def looping_chart(data: StudyData) -> Chart | None:
    """Each arm looped against itself unlooped."""
    pairs = [pair for pair in data.comparison["pairs"] if pair["question"] == "looping"]
    labels = [_cell_name(pair["a"]) for pair in pairs]
    return _forest(
        data,
        "difference-looping",
        "What looping changes",
        pairs,
        labels,
        "Each arm at R rounds minus itself at R = 1, on the same seeds and token order.",
    )


def rule_chart(data: StudyData) -> Chart | None:
    """Each arm against the baseline at the same R."""
    pairs = [pair for pair in data.comparison["pairs"] if pair["question"] == "rule"]
    labels = [_cell_name(pair["a"]) for pair in pairs]
    return _forest(
        data,
        "difference-rule",
        f"What the rule changes, against {data.comparison['baseline']}",
        pairs,
        labels,
        f"Each arm minus {data.comparison['baseline']} at the same R, on the same seeds and token order.",
    )


def control_chart(data: StudyData) -> Chart | None:
    """The equivalence tests at R = 1 with their margin."""
    controls = data.comparison["controls"]
    margin = data.comparison["equivalence_margin"]
    return _forest(
        data,
        "control",
        f"Control at R = 1, against {data.comparison['baseline']}",
        controls,
        [control["a"]["arm"] + _budget(control["a"]) for control in controls],
        f"Intervals of the two one-sided tests. Equivalent means that the whole interval lies inside the"
        f" dashed margin of ±{decimal(margin)} nats.",
        margin=margin,
    )


def named_chart(data: StudyData) -> Chart | None:
    """The comparisons that the study named beforehand."""
    named = data.comparison.get("named", [])
    return _forest(
        data,
        "difference-named",
        "On equal terms",
        named,
        [_named_label(entry) for entry in named],
        "The first side minus the second, on the same seeds and token order, each run at the end of its own schedule.",
    )


def _named_label(entry: Mapping[str, Any]) -> str:
    a, b = entry["a"], entry["b"]
    terms = f"{TERMS[entry['question']]}{at_budget(a.get('budget'))}"
    return f"{terms}: {a['arm']}, R = {a['rounds']}, against {b['arm']}, R = {b['rounds']}"


def _wrapped(label: str) -> str:
    return textwrap.fill(label, _LONGEST_ABOVE)


def _cell_name(names: Mapping[str, Any]) -> str:
    return f"{names['arm']}, R = {names['rounds']}{_budget(names)}"


def _budget(names: Mapping[str, Any]) -> str:
    return f", {names['budget']:,} steps" if names.get("budget") else ""


def _forest(
    data: StudyData,
    name: str,
    title: str,
    items: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    caption: str,
    margin: float | None = None,
) -> Chart | None:
    """Differences as points with intervals, one row each; None where no pair is known yet."""
    if not any(item["interval"] or item.get("differences") for item in items):
        return None
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        # Long names stand above their rows, where they take no width from the axes.
        above = max(map(len, labels)) > _LONGEST_BESIDE
        lines = max(_wrapped(label).count("\n") for label in labels) + 1
        figure, axes = new_axes(height=1.25 + (0.36 + 0.14 * lines if above else 0.36) * len(items))
        if margin is not None:
            axes.axvspan(-margin, margin, color=BAND, linewidth=0)
            for edge in (-margin, margin):
                axes.axvline(edge, color=INK, linewidth=0.7, linestyle="--")
        for row, (item, label) in enumerate(zip(items, labels, strict=True)):
            color = style_of(data.arms.index(item["a"]["arm"]))["color"]
            detectable = item.get("smallest_detectable")
            if detectable is not None:
                axes.barh(row, 2 * detectable, left=-detectable, height=0.4 if above else 0.62, color=BAND, linewidth=0)
            differences = item.get("differences", [])
            axes.plot(differences, [row] * len(differences), "|", color=color, markersize=9, alpha=0.55)
            interval = item["interval"]
            if interval is not None:
                axes.plot([interval["low"], interval["high"]], [row, row], color=color, linewidth=2.2)
                axes.plot(interval["mean"], row, "o", color=color, markersize=6)
            found = interval or {"mean": None, "low": None, "high": None, "confidence": None, "num_pairs": 0}
            rows.append((label, *found.values(), detectable if margin is None else margin, item["verdict"]))
        axes.axvline(0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(items)), [""] * len(items) if above else labels)
        axes.set_ylim(len(items) - 0.5, -0.75 if above else -0.5)
        if above:
            for row, label in enumerate(labels):
                at = axes.get_yaxis_transform()
                above_row = axes.text(0.0, row - 0.36, _wrapped(label), transform=at, va="bottom", fontsize=7.2)
                above_row.set_in_layout(False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        # From the right end leftwards: below long names of rows the axes are narrower than the words.
        axes.set_xlabel("difference in loss, nats per token", loc="right")
        axes.set_title("◂ lower loss", loc="left", fontsize=8.5)
        axes.set_title("higher loss ▸", loc="right", fontsize=8.5)
        axes.grid(axis="x", color=GRID)
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        svg = render(figure)
    reading = "Points are mean differences, lines their intervals"
    if margin is None:
        reading += (
            ", ticks single pairs. The shaded bar is the smallest true difference that so many pairs find with"
            " 80 % power"
        )
    return Chart(
        name,
        title,
        f"{caption} {reading}.",
        " ".join(item["words"] for item in items),
        svg,
        (
            "comparison",
            "mean_nats",
            "low_nats",
            "high_nats",
            "confidence",
            "num_pairs",
            "smallest_detectable_nats" if margin is None else "margin_nats",
            "verdict",
        ),
        tuple(rows),
    )

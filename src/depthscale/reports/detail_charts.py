"""How runs ended, and what the stream looks like visit by visit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from depthscale.reports.charts import (
    GRID,
    OUTCOME_COLORS,
    OUTCOME_HATCHES,
    Chart,
    drawing_settings,
    legend_below,
    new_axes,
    plain_log_ticks,
    render,
    style_of,
)
from depthscale.reports.study_data import RunData, StudyData

#: Key of a visits record -> (name, title, axis label, first visit, log scale where values span decades, caption).
_VISIT_MEASURES: dict[str, tuple[str, str, str, int, bool, str]] = {
    "state_rms": (
        "state-rms",
        "Size of the stream",
        "RMS of the state",
        0,
        True,
        "Root mean square of the raw state after each visit; 0 is the embedding. Post and sandwich placements"
        " normalize every visit's output.",
    ),
    "relative_update": (
        "relative-update",
        "Size of each update",
        "RMS of update / RMS of state",
        1,
        True,
        "What a visit adds, relative to the state that it meets.",
    ),
    "update_cosine": (
        "update-cosine",
        "Alignment of consecutive updates",
        "cosine",
        2,
        False,
        "Cosine between the updates of a visit and of the one before it.",
    ),
}


def outcome_chart(data: StudyData) -> Chart:
    """How many runs of each cell finished, stuck, diverged or are missing."""
    cells = data.by_rounds
    labels = [cell.label for cell in cells]
    with drawing_settings():
        figure, axes = new_axes(height=1.2 + 0.3 * len(cells))
        left = [0] * len(cells)
        for name, color in OUTCOME_COLORS.items():
            counts = [cell.summary["outcomes"][name] for cell in cells]
            if any(counts):
                axes.barh(
                    range(len(cells)), counts, left=left, height=0.62, color=color, label=name,
                    hatch=OUTCOME_HATCHES[name], linewidth=0,
                )  # fmt: skip
            left = [before + number for before, number in zip(left, counts, strict=True)]
        axes.set_yticks(range(len(cells)), labels)
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.set_xticks(range(max(left) + 1))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("runs")
        legend_below(figure, columns=4)
        svg = render(figure)
    names = tuple(OUTCOME_COLORS)
    rows = tuple((c.arm, c.rounds, *(c.summary["outcomes"][name] for name in names)) for c in cells)
    told = "; ".join(
        f"{label}: {', '.join(f'{n} {name}' for name in names if (n := cell.summary['outcomes'][name]))}"
        for label, cell in zip(labels, cells, strict=True)
    )
    return Chart(
        "outcomes",
        "How the runs ended",
        "A stuck run never got under the unigram floor; a diverged one became non-finite or rose far above its start."
        " Both are results and count in every mean and difference of the main table.",
        f"Stacked bars of outcomes. {told}.",
        svg,
        ("arm", "rounds", *names),
        rows,
    )


def visit_charts(data: StudyData) -> list[Chart]:
    """One chart for each R and measure, over the runs that measured their visits."""
    charts = []
    for rounds in data.rounds:
        for key, (name, title, *_) in _VISIT_MEASURES.items():
            series = [
                (cell.arm, data.arms.index(cell.arm), profile)
                for cell in data.at(rounds)
                if (profile := _mean_profile(cell.runs, key))
            ]
            if series:
                charts.append(_visit_chart(key, f"{name}-r{rounds}", f"{title}, R = {rounds}", series))
    return charts


def run_visit_charts(run: RunData) -> list[Chart]:
    """The visits of a single run."""
    return [
        _visit_chart(key, name, title, [("this run", 1, profile)])
        for key, (name, title, *_) in _VISIT_MEASURES.items()
        if (profile := _mean_profile([run], key))
    ]


def _visit_chart(key: str, name: str, title: str, series: Sequence[tuple[str, int, list[float | None]]]) -> Chart:
    _, _, label, first, log_scale, caption = _VISIT_MEASURES[key]
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes(width=3.8, height=2.8)
        for arm, index, profile in series:
            style = style_of(index)
            visits = range(first, first + len(profile))
            values = [float("nan") if value is None else value for value in profile]
            axes.plot(list(visits), values, **style, markersize=4 if len(values) <= 20 else 0, label=arm)
            rows += [(arm, visit, value) for visit, value in zip(visits, profile, strict=True)]
        drawn = [value for *_, profile in series for value in profile if value is not None]
        if log_scale and drawn and 0 < 10 * min(drawn) < max(drawn):
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        last = max(first + len(profile) - 1 for *_, profile in series)
        axes.set_xlim(first - 0.4, last + 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("visit")
        axes.set_ylabel(label)
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg = render(figure)
    ends = "; ".join(
        f"{arm} from {_number(profile[0])} to {_number(profile[-1])}" for arm, _, profile in series if profile
    )
    return Chart(name, title, caption, f"Line chart over the visits. {ends}.", svg, ("arm", "visit", key), tuple(rows))


def _mean_profile(runs: Sequence[RunData], key: str) -> list[float | None]:
    profiles = [run.training["visits"][key] for run in runs if run.training["visits"]]
    return [
        None if None in values else statistics.fmean(value for value in values if value is not None)
        for values in zip(*profiles, strict=True)
    ]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"

"""The causal trace in the probe's report: averages by role, and the map of each prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from depthscale.reports.charts import (
    GRID,
    Chart,
    drawing_settings,
    legend_below,
    new_axes,
    render,
    render_png,
    style_of,
)
from depthscale.reports.page import number, percent, significant, whole
from depthscale.reports.probe_sections import ReportSection

#: Maps drawn in the report; the tables of all prompts are in the result file.
MOST_MAPS = 4


def trace_sections(result: Mapping[str, Any]) -> list[ReportSection]:
    """One section from a result of kind ``probe_trace``."""
    charts = [role_chart(result)] if result["roles"] else []
    charts += [map_chart(prompt, index + 1) for index, prompt in enumerate(result["prompts"][:MOST_MAPS])]
    return [ReportSection("trace", "Causal trace", trace_sentences(result), tuple(charts))]


def trace_sentences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What the noise does, and where it is undone."""
    total, settings, count = result["total_effect"], result["settings"], len(result["prompts"])
    interval = "" if total["low"] is None else f" ({significant(total['low'])} to {significant(total['high'])})"
    sentences = [
        f"Noise of {settings['noise']:g} standard deviations on the subject takes {significant(total['value'])}"
        f"{interval} from the probability of the answer, over {whole(count)} prompts and {settings['num_draws']} draws"
        " each."
    ]
    for role in result["roles"]:
        if role["layers"] is not None:
            first, last = role["layers"]
            sentences.append(
                f"The {role['role']}: layers with at least half of the largest effect lie between {percent(first)} and"
                f" {percent(last)} of the depth, over {whole(role['num_prompts'])} prompts."
            )
    if result["num_unaffected"]:
        sentences.append(
            f"For {whole(result['num_unaffected'])} prompts the noise made the answer hardly less likely; they are in"
            " no average over roles."
        )
    return tuple(sentences)


def role_chart(result: Mapping[str, Any]) -> Chart:
    """Mean effect by layer for each role."""
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, role in enumerate(result["roles"]):
            style = style_of(index)
            layers = range(1, len(role["by_layer"]) + 1)
            low, high = ([_float(layer[end]) for layer in role["by_layer"]] for end in ("low", "high"))
            axes.fill_between(layers, low, high, color=style["color"], alpha=0.13, linewidth=0)
            values = [_float(layer["value"]) for layer in role["by_layer"]]
            axes.plot(layers, values, **style, markersize=4 if len(values) <= 26 else 0, label=role["role"])
            rows += [
                (role["role"], layer, one["value"], one["low"], one["high"])
                for layer, one in zip(layers, role["by_layer"], strict=True)
            ]
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("layer whose output is restored")
        axes.set_ylabel("gain of p(answer)")
        axes.grid(axis="y", color=GRID)
        legend_below(figure, columns=2)
        svg, png = render(figure), render_png(figure)
    return Chart(
        "trace-roles",
        "Where the subject acts",
        "Mean over prompts of the effect of one restored state, for the role's token that restores most; bands: 95 %.",
        "Line chart over layers, one line for each role of a token.",
        svg,
        ("role", "layer", "effect", "low", "high"),
        tuple(rows),
        png,
    )


def map_chart(prompt: Mapping[str, Any], index: int) -> Chart:
    """Effects over layer and token of one prompt."""
    tokens = [f"{token}*" if _in_subject(prompt, at) else token for at, token in enumerate(prompt["tokens"])]
    effects = prompt["effects"]
    by_token = [[_float(row[at]) for row in effects] for at in range(len(tokens))]
    with drawing_settings():
        figure, axes = new_axes(height=max(2.0, 0.24 * len(tokens) + 1.2))
        edges = np.arange(len(effects) + 1) + 0.5
        image = axes.pcolormesh(edges, np.arange(len(tokens) + 1) - 0.5, by_token, cmap="Purples", vmin=0)
        axes.invert_yaxis()
        axes.set_yticks(range(len(tokens)), tokens)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("layer whose output is restored")
        bar = figure.colorbar(image, ax=axes)
        assert bar.solids is not None, "a color mesh has them"
        bar.solids.set_rasterized(False)
        bar.set_label("gain of p(answer)")
        svg, png = render(figure), render_png(figure)
    return Chart(
        f"trace-map-{index}",
        f"p({prompt['answer_token'].strip()}) after: {prompt['prompt']}",
        f"Gain of one restored state, mean over draws; * marks the subject. Clean {number(prompt['clean'])}, with noise"
        f" {number(prompt['noised']['value'])}.",
        f"Heat map over {len(effects)} layers and {len(tokens)} tokens.",
        svg,
        ("layer", "position", "token", "effect", "low", "high"),
        tuple(
            (layer + 1, at, token, row[at], prompt["low"][layer][at], prompt["high"][layer][at])
            for layer, row in enumerate(effects)
            for at, token in enumerate(prompt["tokens"])
        ),
        png,
    )


def _in_subject(prompt: Mapping[str, Any], at: int) -> bool:
    first, end = prompt["subject"]
    return bool(first <= at < end)


def _float(value: float | None) -> float:
    return math.nan if value is None else value

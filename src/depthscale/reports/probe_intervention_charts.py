"""Figures of interventions: cost by layer, drops against averaging, loops, and maps over pairs of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from depthscale.reports.charts import (
    GRID,
    INK,
    Chart,
    drawing_settings,
    few_log_ticks,
    legend_below,
    new_axes,
    render,
    render_png,
    style_of,
)

_LAYER_KINDS = {"remove": "removed", "repeat": "repeated", "swap": "swapped with the next"}


def layer_chart(result: Mapping[str, Any]) -> Chart:
    """Excess loss of removing, repeating and swapping each layer, with block influence beside."""
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, (kind, words) in enumerate(_LAYER_KINDS.items()):
            own = [one for one in result["interventions"] if one["kind"] == kind and one["single"]]
            layers = [one["visits"][0] + 1 for one in own]
            _band(axes, layers, [one["excess"] for one in own], index + 1, words)
            rows += [
                (kind, layer, *_triple(one["excess"]), one["prediction"])
                for layer, one in zip(layers, own, strict=True)
            ]
        axes.axhline(0, color=INK, linewidth=0.7)
        # The ends cost tens of times what the others do.
        _signed_log(axes, [row[2] for row in rows])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("layer")
        axes.set_ylabel("excess loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg, png = render(figure), render_png(figure)
    return Chart(
        "layer-interventions",
        "What each layer is worth",
        "Loss with one layer changed less loss without; bands: 95 % over documents. Linear near 0, logarithmic beyond.",
        f"Line chart of excess loss over {result['num_visits']} layers for three interventions.",
        svg,
        ("intervention", "layer", "excess", "low", "high", "block_influence"),
        tuple(rows),
        png,
    )


def drop_chart(name: str, title: str, drops: Mapping[str, Any]) -> Chart:
    """Divergence against the number of dropped layers, plain and rescaled, beside what averaging predicts."""
    size, counts = len(drops["group"]), drops["counts"]
    plain = [point["value"] for point in drops["divergence"]]
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, (kind, words) in enumerate(
            (("divergence", "as they are"), ("divergence_rescaled", "kept rescaled"))
        ):
            _band(axes, counts, drops[kind], index + 1, words)
            rows += [(kind, k, *_triple(point)) for k, point in zip(counts, drops[kind], strict=True)]
        first = plain[0]
        if first is not None and first > 0:
            axes.plot(
                counts, [first * k for k in counts], color=INK, linewidth=0.9, linestyle=":", label="averaging: k"
            )
            axes.plot(
                counts,
                [first * k * size / (size - k) for k in counts],
                color=INK,
                linewidth=0.9,
                linestyle="--",
                label="averaging, rescaled: k n / (n - k)",
            )
            axes.plot(
                counts,
                [first * k**2 for k in counts],
                color=INK,
                linewidth=0.9,
                linestyle="-.",
                label="smooth: k squared",
            )
        axes.set_xscale("log")
        few_log_ticks(axes.xaxis, *axes.get_xlim())
        positive = [row[2] for row in rows if isinstance(row[2], float) and row[2] > 0]
        if positive:
            axes.set_yscale("log")
            axes.set_ylim(min(positive) / 2, max(positive) * 3)
            few_log_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_xlabel(f"dropped layers k, of {size}")
        axes.set_ylabel("divergence, nats per token")
        axes.grid(color=GRID)
        legend_below(figure, columns=2)
        svg, png = render(figure), render_png(figure)
    return Chart(
        name,
        title,
        "Mean over random choices of the dropped layers; bands: 95 % over documents. Lines of the theories pass through"
        " the first point of the plain curve.",
        f"Log-log chart of divergence over k = {counts[0]} to {counts[-1]} dropped of {size} layers.",
        svg,
        ("curve", "dropped", "divergence", "low", "high"),
        tuple(rows),
        png,
    )


def loop_chart(result: Mapping[str, Any]) -> Chart:
    """Loss against the rounds of a looped span, with updates as they are and divided by R."""
    loops = [one for one in result["interventions"] if one["kind"] == "loop"]
    spans = list(dict.fromkeys(tuple(one["visits"]) for one in loops))
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, span in enumerate(spans):
            for scaled in (False, True):
                own = [
                    one
                    for one in loops
                    if tuple(one["visits"]) == span
                    and (one["rounds"] == 1 or math.isclose(one["branch_scale"], 1 / one["rounds"] if scaled else 1.0))
                ]
                words = f"layers {span[0] + 1}-{span[-1] + 1}, updates {'/ R' if scaled else 'whole'}"
                style = {**style_of(index + 1), "linestyle": ":" if scaled else "-"}
                rounds = [one["rounds"] for one in own]
                axes.plot(rounds, [_float(one["excess"]["value"]) for one in own], **style, markersize=4, label=words)
                rows += [(words, one["rounds"], one["branch_scale"], *_triple(one["excess"])) for one in own]
        _signed_log(axes, [row[3] for row in rows])
        axes.axhline(0, color=INK, linewidth=0.7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("rounds R of the span")
        axes.set_ylabel("excess loss, nats per token")
        axes.grid(axis="y", color=GRID)
        legend_below(figure, columns=2)
        svg, png = render(figure), render_png(figure)
    return Chart(
        "looped-spans",
        "Spans looped in a model that was not trained to loop",
        "Excess loss when a span runs R times; updates whole, or divided by R. Linear near 0, logarithmic beyond.",
        f"Line chart of excess loss over rounds for {len(spans)} spans.",
        svg,
        ("span", "rounds", "branch_scale", "excess", "low", "high"),
        tuple(rows),
        png,
    )


def similarity_chart(similarity: Mapping[str, Any]) -> Chart:
    """Cosine of block l's update with block l''s own, on the state before l'."""
    return _map_chart(
        "layer-similarity",
        "Do layers do the same to one state?",
        "Cosine of the update that a block makes on another layer's state with that layer's own update there.",
        similarity["cosines"],
        ("block of layer", "state before layer", "cosine"),
        (-1.0, 1.0),
        "RdBu_r",
    )


def later_change_chart(result: Mapping[str, Any]) -> Chart:
    """How much each later update changes when one layer is removed."""
    size = result["num_visits"]
    grid: list[list[float | None]] = [
        [None] * (removed + 1) + row for removed, row in enumerate(result["later_change"])
    ]
    known = [value for row in grid for value in row if value is not None]
    return _map_chart(
        "later-change",
        "Do later layers notice a missing one?",
        "Size of the change of a later layer's update over the size of that update, with one layer removed.",
        [row[:size] for row in grid],
        ("removed layer", "later layer", "relative change"),
        (0.0, min(max(known, default=1.0), 2.0)),
        "cividis",
    )


def _map_chart(
    name: str,
    title: str,
    caption: str,
    grid: Sequence[Sequence[float | None]],
    labels: tuple[str, str, str],
    limits: tuple[float, float],
    colors: str,
) -> Chart:
    values = [[_float(value) for value in row] for row in grid]
    size = len(values)
    with drawing_settings():
        figure, axes = new_axes(height=3.8)
        edges = np.arange(size + 1) + 0.5
        image = axes.pcolormesh(edges, edges, values, cmap=colors, vmin=limits[0], vmax=limits[1])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylabel(labels[0])
        axes.set_xlabel(labels[1])
        bar = figure.colorbar(image, ax=axes)
        assert bar.solids is not None, "a color mesh has them"
        bar.solids.set_rasterized(False)
        bar.set_label(labels[2])
        svg, png = render(figure), render_png(figure)
    off = [v for i, row in enumerate(values) for j, v in enumerate(row) if i != j and math.isfinite(v)]
    mean = f"{sum(off) / len(off):.3g}" if off else "unknown"
    return Chart(
        name,
        title,
        caption,
        f"Heat map over {size} by {size} layers; mean off the diagonal {mean}.",
        svg,
        tuple(label.replace(" ", "_") for label in labels),
        tuple((i + 1, j + 1, value) for i, row in enumerate(grid) for j, value in enumerate(row)),
        png,
    )


def _band(axes: Axes, x: Sequence[float], points: Sequence[Mapping[str, Any]], series: int, label: str) -> None:
    style = style_of(series)
    low, high = ([_float(point[end]) for point in points] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
    axes.plot(x, [_float(p["value"]) for p in points], **style, markersize=4 if len(x) <= 26 else 0, label=label)


def _signed_log(axes: Axes, values: Sequence[Any]) -> None:
    """A vertical axis that is logarithmic to both sides, and linear below the decade of the middle value."""
    sizes = sorted(abs(value) for value in values if value)
    decade = math.floor(math.log10(sizes[len(sizes) // 2])) if sizes else 0
    top = math.ceil(math.log10(sizes[-1])) if sizes else 1
    axes.set_yscale("symlog", linthresh=10.0**decade, linscale=0.7)
    step = max(1, math.ceil((top - decade) / 3))
    powers = [10.0**power for power in range(decade, top + 1, step)]
    axes.yaxis.set_major_locator(FixedLocator([*(-power for power in reversed(powers)), 0.0, *powers]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _triple(measured: Mapping[str, Any]) -> tuple[object, object, object]:
    return measured["value"], measured["low"], measured["high"]


def _float(value: float | None) -> float:
    return math.nan if value is None else value

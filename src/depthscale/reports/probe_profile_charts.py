"""Figures of a profile: quantities over layers with their bands, exit losses, and angles over layer and position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

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

Quantities = Mapping[str, Mapping[str, Any]]

#: name -> title, axis label, quantities with their legends, log scale, caption.
_PROFILES: dict[str, tuple[str, str, dict[str, str], bool, str]] = {
    "norms": (
        "Size of states and updates",
        "norm",
        {"hidden_state_norm": "state h_l", "update_norm": "update h_l+1 - h_l"},
        True,
        "Norm of each raw state and of the update that follows it.",
    ),
    "angles": (
        "Angles between neighbors",
        "angle, radians",
        {"state_angle": "h_l and h_l+1", "update_angle": "update l and update l+1"},
        False,
        "Angle between consecutive states and between consecutive updates. In many dimensions random directions are"
        " orthogonal too (dotted line), so an angle of pi/2 alone proves nothing.",
    ),
    "block-influence": (
        "Block influence",
        "1 - cos(h_l, h_l+1)",
        {"block_influence": "block influence"},
        True,
        "How far a block turns the state.",
    ),
    "way-to-end": (
        "Way from start to end",
        "share",
        {"projection_on_total": "projection of h_l - h_0", "update_total_cosine": "cosine of update l"},
        False,
        "Projection of h_l - h_0 on h_N - h_0, in units of its length, and cosine of each update with it.",
    ),
    "angle-to-end": (
        "Angle to the last state",
        "angle, radians",
        {"angle_to_end": "to raw h_N", "angle_to_normed_end": "to h_N after the final norm"},
        False,
        "Both are shown since the library's last hidden state is taken after the final norm.",
    ),
    "sublayer-norms": (
        "Updates of attention and MLP",
        "norm",
        {"attention_update_norm": "attention", "mlp_update_norm": "MLP"},
        True,
        "The two parts of each block's update.",
    ),
    "sublayer-angles": (
        "Angles of attention's and the MLP's updates",
        "angle, radians",
        {
            "attention_mlp_angle": "within a block",
            "attention_update_angle": "attention, next block",
            "mlp_update_angle": "MLP, next block",
        },
        False,
        "Within a block between its two parts, and between the same part of consecutive blocks.",
    ),
    "exit-loss": (
        "Loss of an early exit",
        "loss, nats per token",
        {"logit_lens_loss": "logit lens", "last_block_lens_loss": "last-block lens"},
        False,
        "Next-token loss from layer l, by the final norm and head alone (logit lens) and through the last block first"
        " (last-block lens). Both end at the model's own loss.",
    ),
}
_ORTHOGONAL = {"angles", "sublayer-angles", "angle-to-end"}
#: Losses of single tokens are spread too wide for a band to say anything.
_WITHOUT_BAND = {"exit-loss"}


def profile_charts(quantities: Quantities) -> list[Chart]:
    """One chart for each group of quantities that was measured."""
    return [
        _profile_chart(name, {key: quantities[key] for key in wanted if key in quantities})
        for name, (_, _, wanted, _, _) in _PROFILES.items()
        if any(key in quantities for key in wanted)
    ]


def position_chart(name: str, title: str, tables: Mapping[str, Any]) -> Chart | None:
    """A heat map of one angle over layer and position; None where it was not measured."""
    values = tables["mean"].get(name)
    if not values or not tables["ranges"]:
        return None
    ranges = [f"{first}" if first == last else f"{first}-{last}" for first, last in tables["ranges"]]
    grid = [[math.nan if cell is None else cell for cell in row] for row in values]
    with drawing_settings():
        figure, axes = new_axes(height=3.0)
        image = axes.imshow(grid, aspect="auto", origin="lower", cmap="cividis", interpolation="nearest")
        axes.set_xticks(range(len(ranges)), ranges, rotation=45, ha="right", rotation_mode="anchor")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("position in the document")
        axes.set_ylabel("layer l")
        bar = figure.colorbar(image, ax=axes)
        bar.set_label("angle, radians")
        svg, png = render(figure), render_png(figure)
    rows = tuple((layer, ranges[column], cell) for layer, row in enumerate(values) for column, cell in enumerate(row))
    first, rest = _column_mean(values, 0), _column_mean(values, len(ranges) - 1)
    return Chart(
        f"{name.replace('_', '-')}-by-position",
        title,
        "Mean over the tokens of each range of positions.",
        f"Heat map over layer and position. Mean over layers: {first} at position {ranges[0]}, {rest} at {ranges[-1]}.",
        svg,
        ("layer", "positions", name),
        rows,
        png,
    )


def _profile_chart(name: str, shown: Quantities) -> Chart:
    title, label, legends, log_scale, caption = _PROFILES[name]
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        drawn: list[float] = []
        for index, (key, values) in enumerate(shown.items()):
            style = style_of(index + 1)
            means = _floats(values["mean"])
            layers = range(len(means))
            low, high = _floats(values["quantiles"]["0.05"]), _floats(values["quantiles"]["0.95"])
            if name not in _WITHOUT_BAND:
                axes.fill_between(layers, low, high, color=style["color"], alpha=0.16, linewidth=0)
                drawn += [*low, *high]
            axes.plot(layers, means, **style, markersize=4 if len(means) <= 26 else 0, label=legends[key])
            drawn += means
            rows += [
                (key, layer, mean, error, *(values["quantiles"][level][layer] for level in values["quantiles"]))
                for layer, (mean, error) in enumerate(zip(values["mean"], values["standard_error"], strict=True))
            ]
        if name in _ORTHOGONAL:
            axes.axhline(math.pi / 2, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        positive = [value for value in drawn if value > 0 and math.isfinite(value)]
        if log_scale and positive and max(positive) > 10 * min(positive):
            axes.set_yscale("log")
            few_log_ticks(axes.yaxis, min(positive), max(positive))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("layer l")
        axes.set_ylabel(label)
        axes.grid(axis="y", color=GRID)
        legend_below(figure, columns=2)
        svg, png = render(figure), render_png(figure)
    band = "" if name in _WITHOUT_BAND else " Line: mean over tokens; band: 5 to 95 % of tokens."
    ends = "; ".join(f"{legends[key]} {_ends(values['mean'])}" for key, values in shown.items())
    levels = next(iter(shown.values()))["quantiles"]
    return Chart(
        name,
        title,
        caption + band,
        f"Line chart over layers. {ends}.",
        svg,
        ("quantity", "layer", "mean", "standard_error", *(f"quantile_{level}" for level in levels)),
        tuple(rows),
        png,
    )


def _floats(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _ends(values: Sequence[float | None]) -> str:
    first, last = values[0], values[-1]
    return "unknown" if first is None or last is None else f"from {first:.3g} to {last:.3g}"


def _column_mean(values: Sequence[Sequence[float | None]], column: int) -> str:
    known = [cell for row in values if (cell := row[column]) is not None]
    return f"{sum(known) / len(known):.3g}" if known else "unknown"

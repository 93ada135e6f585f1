"""Token clusters in the probe's report: the answer, the scatter, what each group of tokens does over depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from depthscale.reports.page import number, percent, whole
from depthscale.reports.probe_sections import ReportSection, ReportTable

_GROUPS = {"large": "the large group", "small": "the small group"}


def cluster_sections(result: Mapping[str, Any]) -> list[ReportSection]:
    """One section from a result of kind ``probe_clusters``."""
    return [
        ReportSection(
            "clusters",
            "Groups of tokens",
            cluster_sentences(result),
            (scatter_chart(result), group_profile_chart(result)),
            _tables(result),
        )
    ]


def cluster_sentences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The answer first, then how sure it is."""
    tokens = f"{whole(result['num_tokens'])} tokens of {whole(result['num_documents'])} documents"
    left_out = result["num_invalid"]
    notes = [f"{whole(left_out)} tokens were left out, since a zero state has no angle."] if left_out else []
    if result["num_groups"] == 1:
        return (f"The {tokens} are one group: {result['reason']}.", *notes)
    small, large, interval = result["small"], result["large"], result["share_interval"]
    share = f"{percent_of_tokens(result['share'])} of them"
    if interval is not None:
        share += f" ({percent_of_tokens(interval[0])} to {percent_of_tokens(interval[1])} over halves of the documents)"
    sentences = [
        f"The {tokens} fall into two groups, {share} in the small one: {result['reason']}.",
        f"{percent(small['first_share'])} of the small group are first tokens of documents, against"
        f" {percent(large['first_share'])} of the large one; {whole(small['num_distinct'])} of its"
        f" {whole(small['num_tokens'])} vectors differ from each other.",
    ]
    depths = small["stop_depth"], large["stop_depth"]
    if None not in depths:
        sentences.append(
            f"A token of the small group has done 90 % of its turning after {percent(depths[0])} of the layers between"
            f" the ends, one of the large group after {percent(depths[1])}; even turning would take 90 %."
        )
    stability = result["stability"]
    if stability is None:
        sentences.append("There are too few documents to say how stable the split is.")
    else:
        sentences.append(
            f"Of {stability['num_resamples']} halves of the documents, {percent(stability['found'])} show two groups"
            f" again, with a mean overlap of the small groups of {number(stability['jaccard'], 2)}."
        )
    return (*sentences, *notes)


def percent_of_tokens(share: float) -> str:
    """A share small enough to need two decimals.

    Example:
        >>> percent_of_tokens(0.00402)
        '0.40 %'
    """
    return f"{100 * share:.2f} %"


def scatter_chart(result: Mapping[str, Any]) -> Chart:
    """Tokens on the first two components."""
    points = result["scatter"]
    with drawing_settings():
        figure, axes = new_axes()
        for index, (name, in_small) in enumerate((("large", False), ("small", True))):
            own = [(x, y) for x, y, small in points if small == in_small]
            if own:
                style = style_of(index + 1)
                axes.plot(
                    *zip(*own, strict=True),
                    linestyle="none",
                    marker=style["marker"],
                    color=style["color"],
                    markersize=3,
                    alpha=0.35 if not in_small else 0.9,
                    markeredgewidth=0,
                    label=_GROUPS[name],
                )
        shares = [percent(share) for share in result["explained"]]
        axes.set_xlabel(f"component 1 ({shares[0]} of variance), radians")
        axes.set_ylabel(f"component 2 ({shares[1]}), radians" if len(shares) > 1 else "")
        axes.grid(color=GRID)
        legend_below(figure)
        svg, png = render(figure), render_png(figure)
    return Chart(
        "token-clusters",
        "Tokens by their layer angles",
        "Each mark is a token; of large groups a random part is drawn.",
        f"Scatter of {len(points)} tokens on the first two principal components: {result['num_groups']} group(s).",
        svg,
        ("component_1", "component_2", "in_small_group"),
        tuple(tuple(point) for point in points),
        png,
    )


def group_profile_chart(result: Mapping[str, Any]) -> Chart:
    """Mean angle of each layer in each group."""
    rows: list[tuple[object, ...]] = []
    with drawing_settings():
        figure, axes = new_axes()
        for index, (name, words) in enumerate(_GROUPS.items()):
            if result[name] is not None:
                profile: Sequence[float] = result[name]["profile"]
                style = style_of(index + 1)
                axes.plot(range(len(profile)), profile, **style, markersize=4 if len(profile) <= 26 else 0, label=words)
                rows += [(name, layer, value) for layer, value in enumerate(profile)]
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("layer l")
        axes.set_ylabel("angle of h_l and h_l+1, radians")
        axes.grid(axis="y", color=GRID)
        legend_below(figure)
        svg, png = render(figure), render_png(figure)
    return Chart(
        "token-cluster-profiles",
        "Turning over depth, by group",
        "Mean angle of each layer over the tokens of a group.",
        "Line chart of the mean angle over layers, one line for each group of tokens.",
        svg,
        ("group", "layer", "mean_angle"),
        tuple(rows),
        png,
    )


def _tables(result: Mapping[str, Any]) -> tuple[ReportTable, ...]:
    groups = [name for name in _GROUPS if result[name] is not None]
    count = len(result["large"]["positions"])
    positions = ReportTable(
        "Share of each group's tokens at the first positions of a document.",
        ("Position", *(_GROUPS[name] for name in groups)),
        tuple((str(at), *(percent(result[name]["positions"][at]) for name in groups)) for at in range(count)),
    )
    if result["small"] is None:
        return (positions,)
    tokens = ReportTable(
        "Most frequent tokens of the small group.",
        ("Token", "Id", "Times"),
        tuple(
            (
                f"{token['text']!r}" if token["text"] is not None else str(token["id"]),
                str(token["id"]),
                str(token["count"]),
            )
            for token in result["small"]["top_tokens"]
        ),
    )
    return positions, tokens

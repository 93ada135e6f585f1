"""Regime and interventions in the probe's report: the verdict in words, evidence beside its nulls, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from depthscale.reports.page import significant, whole, with_ends
from depthscale.reports.probe_intervention_charts import (
    drop_chart,
    later_change_chart,
    layer_chart,
    loop_chart,
    similarity_chart,
)
from depthscale.reports.probe_sections import ReportSection, ReportTable

_FIGURES: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]] = {
    "Cosine of neighboring updates, bulk": lambda e: e["geometry"]["update_cosine"],
    "Cosine of the first two updates": lambda e: e["geometry"]["end_update_cosine"][0],
    "Cosine of the last two updates": lambda e: e["geometry"]["end_update_cosine"][1],
    "Angle of neighboring states, bulk, rad": lambda e: e["geometry"]["angle"],
    "Angle of the first layer, rad": lambda e: e["geometry"]["end_angles"][0],
    "Angle of the last layer, rad": lambda e: e["geometry"]["end_angles"][1],
    "Straightness of the bulk's way": lambda e: e["geometry"]["straightness"],
    "Spread of stop depths": lambda e: e["geometry"]["stop_spread"],
    "Exponent of divergence in dropped layers": lambda e: _of(e, "drops", "exponent"),
    "Rescaled over plain divergence": lambda e: _of(e, "drops", "ratio"),
    "Change of later updates": lambda e: e.get("later_change"),
    "Excess loss, most bulk layers dropped, nats": lambda e: e.get("contribution"),
    "Excess loss, one bulk layer removed, nats": lambda e: e.get("bulk_removal"),
    "Excess loss, first layer removed, nats": lambda e: e["end_removal"][0] if "end_removal" in e else None,
    "Excess loss, last layer removed, nats": lambda e: e["end_removal"][1] if "end_removal" in e else None,
    "Loss, nats": lambda e: e.get("loss"),
}


def intervention_sections(result: Mapping[str, Any]) -> list[ReportSection]:
    """Two sections from a result of kind ``probe_interventions``."""
    drops = result["evidence"]["model"]["drops"]
    charts = [layer_chart(result), loop_chart(result), later_change_chart(result)]
    if result["similarity"] is not None:
        charts.append(similarity_chart(result["similarity"]))
    groups = [
        drop_chart(f"drops-group-{index + 1}", f"Layers dropped from {_layers(group['group'])}", group)
        for index, group in enumerate(result["groups"])
    ]
    return [
        ReportSection(
            "regime",
            "Which regime",
            regime_sentences(result),
            (drop_chart("drops-bulk", "Layers dropped from the bulk", drops),),
            (evidence_table(result), _condition_table(result)),
        ),
        ReportSection(
            "interventions", "Interventions", intervention_sentences(result), (*charts, *groups), (_span_table(result),)
        ),
    ]


def regime_sentences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The verdict and what it rests on."""
    missing = [name for name in ("untrained", "shuffled") if result["evidence"][name] is None]
    notes = [f"Not measured: the null of {' and '.join(missing)}."] if missing else []
    visits = result["num_visits"]
    ends = " but the first and the last" if len(result["bulk"]) < visits else ", too few to leave the ends out"
    return (
        result["verdict"]["sentence"],
        f"From {whole(result['num_tokens'])} tokens of {whole(result['num_rows'])} documents; the bulk is all of the"
        f" {visits} layers{ends}. Thresholds are from teachers of known regimes; that of later updates is set by"
        " hand.",
        *notes,
    )


def intervention_sentences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """How well block influence predicts cost, and which layers are alike."""
    sentences = [
        f"Block influence and the excess loss of {kind} have a rank correlation of"
        f" {significant(found['rank_correlation'], 2)} over {found['num']} (p = {significant(found['p_value'], 2)})."
        for kind, found in result["prediction_ranks"].items()
    ]
    similarity = result["similarity"]
    if similarity is not None:
        if similarity["silhouette"] is None:
            sentences.append("By what they do to each other's states, the layers are one group.")
        else:
            labels = similarity["groups"]
            groups = [[v for v, own in enumerate(labels) if own == label] for label in sorted(set(labels))]
            sentences.append(
                f"By what they do to each other's states, the layers form {len(groups)} groups (mean silhouette"
                f" {significant(similarity['silhouette'], 2)}): {'; '.join(_layers(group) for group in groups)}."
            )
    broken = sum(one["num_not_finite"] for one in result["interventions"])
    if broken:
        sentences.append(f"{whole(broken)} losses of single documents were no numbers any more and are left out.")
    return tuple(sentences)


def evidence_table(result: Mapping[str, Any]) -> ReportTable:
    """Every figure of the evidence, of the model and of each null."""
    evidence = {name: found for name, found in result["evidence"].items() if found is not None}
    asked = {name: {"geometry": found} if name == "random directions" else found for name, found in evidence.items()}
    rows = tuple((words, *(with_ends(read(found)) for found in asked.values())) for words, read in _FIGURES.items())
    caption = "Evidence beside its nulls; 95 % over documents, for the change of later updates over the removed layers."
    return ReportTable(caption, ("Figure", *asked), rows)


def _span_table(result: Mapping[str, Any]) -> ReportTable:
    words = {"remove": "removed", "repeat": "repeated", "swap": "first half swapped with second"}
    rows = tuple(
        (_layers(one["visits"]), words[one["kind"]], with_ends(one["excess"]), significant(one["prediction"]))
        for one in result["interventions"]
        if one["kind"] in words and not one["single"]
    )
    return ReportTable(
        "Spans changed: excess loss in nats per token, 95 % over documents.",
        ("Layers", "Intervention", "Excess loss", "Block influence"),
        rows,
    )


def _condition_table(result: Mapping[str, Any]) -> ReportTable:
    holds = {True: "yes", False: "no", None: "open"}
    verdict = result["verdict"]
    rows = [("any", verdict["works"]["what"], holds[verdict["works"]["holds"]])]
    rows += [
        (regime, condition["what"], holds[condition["holds"]])
        for regime, conditions in verdict["conditions"].items()
        for condition in conditions
    ]
    return ReportTable(
        "What each regime asks for, and whether it holds.", ("Regime", "Condition", "Holds"), tuple(rows)
    )


def _of(evidence: Mapping[str, Any], *path: str) -> Mapping[str, Any] | None:
    found: Any = evidence
    for name in path:
        found = None if found is None else found.get(name)
    return found


def _layers(visits: list[int]) -> str:
    """Layers from 1, runs as ranges."""
    runs: list[list[int]] = []
    for visit in sorted(visits):
        if runs and visit == runs[-1][-1] + 1:
            runs[-1].append(visit)
        else:
            runs.append([visit])
    words = [f"{run[0] + 1}" if len(run) == 1 else f"{run[0] + 1}-{run[-1] + 1}" for run in runs]
    return ("layers " if len(visits) > 1 else "layer ") + ", ".join(words)

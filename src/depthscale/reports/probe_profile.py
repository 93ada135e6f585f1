"""The profile's section of the probe's report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from depthscale.reports.page import number, significant, whole
from depthscale.reports.probe_profile_charts import position_chart, profile_charts
from depthscale.reports.probe_sections import ReportSection, ReportTable


def profile_sections(result: Mapping[str, Any]) -> list[ReportSection]:
    """Profile, early exit and positions, from the result of a probe."""
    charts = profile_charts(result["quantities"])
    exits = tuple(chart for chart in charts if chart.name == "exit-loss")
    profiles = tuple(chart for chart in charts if chart.name != "exit-loss")
    maps = (
        position_chart("state_angle", "Angle of states by position", result["position_ranges"]),
        position_chart("update_angle", "Angle of updates by position", result["position_ranges"]),
    )
    sections = [
        ReportSection("profile", "Profile over layers", profile_sentences(result), profiles, (_layer_table(result),))
    ]
    if exits:
        sections.append(ReportSection("exit", "Early exit", exit_sentences(result), exits))
    drawn = tuple(chart for chart in maps if chart is not None)
    if drawn:
        sections.append(ReportSection("positions", "Layer and position", (), drawn))
    return sections


def profile_sentences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What the profile says, ends and bulk apart."""
    angles = result["quantities"]["state_angle"]["mean"]
    # A single visit has no neighbor.
    updates = result["quantities"].get("update_angle", {"mean": []})["mean"]
    bulk, bulk_updates = angles[1:-1], updates[1:-1]
    if len(angles) == 1:
        sentences = [f"The only block turns the state by {number(angles[0])} radians."]
    else:
        sentences = [
            f"The first block turns the state by {number(angles[0])} radians and the last by {number(angles[-1])}"
            + (f"; those between turn it by {number(_mean(bulk))} on average." if bulk else "."),
        ]
    if bulk_updates:
        sentences.append(
            f"Consecutive updates between the ends stand at {number(_mean(bulk_updates))} radians to each other"
            f" (pi/2 is {number(math.pi / 2)}). Whether that is more than chance is for the nulls to say."
        )
    undefined = {
        name: sum(values["num_undefined"])
        for name, values in result["quantities"].items()
        if sum(values["num_undefined"])
    }
    if undefined:
        listed = ", ".join(f"{whole(count)} of {name}" for name, count in undefined.items())
        sentences.append(f"Left out, since a zero vector has no direction: {listed}.")
    sentences += [f"{name} is not available: {reason}." for name, reason in result["not_available"].items()]
    return tuple(sentences)


def exit_sentences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What an early exit loses."""
    quantities = result["quantities"]
    lens = quantities["logit_lens_loss"]
    own, tokens = lens["mean"][-1], lens["num_tokens"]
    every = result["data"]["tokens"]
    some = f" of {whole(every)}, in the longest of the first documents" if tokens < every else ""
    sentences = [f"The model's own loss is {number(own)} nats per token, over {whole(tokens)} tokens{some}."]
    for name, words in (("logit_lens_loss", "logit lens"), ("last_block_lens_loss", "last-block lens")):
        if name in quantities:
            means = quantities[name]["mean"]
            half = len(means) // 2
            sentences.append(f"An exit at layer {half} by the {words} loses {number(means[half] - own)} nats.")
    return tuple(sentences)


def provenance(result: Mapping[str, Any]) -> dict[str, str]:
    """What was measured on what, for the facts at the end of the report."""
    model, data = result["model"], result["data"]
    left_out = f"{whole(data['one_token'])} of one token, {whole(data['empty'])} empty"
    return {
        "Model": f"{model['name']}{'' if model['revision'] is None else ' at ' + model['revision']}",
        "Architecture": f"{model['family']}, {model['residual']} residual, {model['num_blocks']} blocks,"
        f" {model['num_visits']} visits, width {model['width']}, {whole(model['num_parameters'])} parameters",
        "Weights": f"{model['weights_format']}, {model['dtype']} in memory, SHA-256 {model['weights_sha256']}",
        "Corpus": f"{data['corpus']}, SHA-256 of the texts read {data['text_sha256']}",
        "Tokens": f"{whole(data['tokens'])} count, of {whole(data['documents'])} documents cut at"
        f" {whole(data['context_length'])} tokens ({whole(data['cut'])} were longer); left out: {left_out}",
        "Beginning-of-sequence tokens": f"{whole(data['bos'])} for {whole(data['documents'])} documents"
        f" (asked for: {data['bos_choice']})",
        "Padding": f"{whole(data['padding'])} pads, made of the {data['pad_source']}, masked and never counted",
        "Check": f"last raw state through norm and head gives the model's logits to"
        f" {significant(model['largest_logit_error'])}",
        "Speed": f"{whole(result['tokens_per_second'])} tokens/s",
    }


def _layer_table(result: Mapping[str, Any]) -> ReportTable:
    quantities = result["quantities"]
    shown = [
        name
        for name in ("hidden_state_norm", "update_norm", "state_angle", "update_angle", "block_influence")
        if name in quantities
    ]
    columns = ("Layer l", *(f"{quantities[name]['formula']}" for name in shown))
    rows = []
    for layer in range(result["model"]["num_visits"] + 1):
        cells = [
            _with_error(quantities[name], layer) if layer < len(quantities[name]["mean"]) else "" for name in shown
        ]
        rows.append((str(layer), *cells))
    return ReportTable("Means with their standard errors, documents taken as independent.", columns, tuple(rows))


def _with_error(values: Mapping[str, Any], layer: int) -> str:
    mean, error = values["mean"][layer], values["standard_error"][layer]
    return (
        significant(mean, 4) if error is None else f"{significant(mean, 4)} \N{PLUS-MINUS SIGN} {significant(error, 2)}"
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

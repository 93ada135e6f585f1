"""The report of a probe: one page of sections, each from a result file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from depthscale.errors import ResultError
from depthscale.reports.page import whole, write_report
from depthscale.reports.probe_cluster_charts import cluster_sections
from depthscale.reports.probe_intervention_report import intervention_sections
from depthscale.reports.probe_profile import profile_sections, provenance
from depthscale.reports.probe_sections import ReportSection
from depthscale.reports.probe_trace_charts import trace_sections
from depthscale.reports.probe_trend_charts import trend_sections
from depthscale.runs.results import read_result, result_path

#: Kind of result -> its sections, in the order of the page. What was not measured has no section.
SECTION_BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], list[ReportSection]]] = MappingProxyType(
    {
        "probe": profile_sections,
        "probe_clusters": cluster_sections,
        "probe_interventions": intervention_sections,
        "probe_trace": trace_sections,
        "probe_trend": trend_sections,
    }
)


def holds_probe(directory: Path) -> bool:
    """Whether any result of the probe's room lies there."""
    return any(result_path(directory, kind).exists() for kind in SECTION_BUILDERS)


def build_probe_report(directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of a directory of probe results and return the path of the page.

    Raises:
        ResultError: there is none, or one is damaged.
    """
    results = {kind: read_result(directory, kind) for kind in SECTION_BUILDERS if result_path(directory, kind).exists()}
    if not results:
        raise ResultError(f"no probe in {directory}; run depthscale probe first")
    sections = [
        section
        for kind, result in results.items()
        for section in _with_origin(SECTION_BUILDERS[kind](result), result, results.get("probe"))
    ]
    heading, subtitle = _heading(directory, results)
    return write_report(
        directory,
        "probe.html.j2",
        f"{heading}: probe",
        (chart for section in sections for chart in section.charts),
        {
            "heading": heading,
            "subtitle": subtitle,
            "sections": sections,
            "provenance": provenance(results["probe"]) if "probe" in results else {},
            "definitions": _definitions(results),
            "versions": next(iter(results.values()))["versions"],
        },
    )


def _with_origin(
    sections: list[ReportSection], result: Mapping[str, Any], probe: Mapping[str, Any] | None
) -> list[ReportSection]:
    """Sections that say so first where their result is of other weights than the profile that names the page."""
    model = result.get("model")
    if probe is None or model is None or model["weights_sha256"] == probe["model"]["weights_sha256"]:
        return sections
    words = f"Measured on other weights than the profile: {_model_name(model)} in {model['dtype']}, SHA-256"
    origin = f"{words} {model['weights_sha256']}."
    return [replace(section, paragraphs=(origin, *section.paragraphs)) for section in sections]


def _model_name(model: Mapping[str, Any]) -> str:
    return str(model["name"]) if model["revision"] is None else f"{model['name']} at {model['revision']}"


def _heading(directory: Path, results: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    if "probe" in results:
        model, data = results["probe"]["model"], results["probe"]["data"]
        return _model_name(model), (
            f"How it uses its depth: {whole(model['num_blocks'])} blocks, {whole(model['num_visits'])} visits, width"
            f" {whole(model['width'])}, measured on {whole(data['tokens'])} tokens of {data['corpus']}."
        )
    return directory.resolve().name, "How its models use their depth."


def _definitions(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    definitions: dict[str, str] = {}
    for result in results.values():
        definitions |= result.get("definitions", {})
    for name, quantity in results.get("probe", {}).get("quantities", {}).items():
        definitions[name] = f"{quantity['formula']}{', ' + quantity['unit'] if quantity['unit'] else ''}"
    return definitions

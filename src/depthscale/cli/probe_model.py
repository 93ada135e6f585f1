"""A model for the verbs that look into one: where it comes from, and the text it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from depthscale.probing.corpus import RowCounts
    from depthscale.probing.loading import LoadedModel, ModelSource
    from depthscale.probing.located import LocatedModel
    from depthscale.probing.settings import ModelSettings


def model_source(name: str, revision: str | None, settings: ModelSettings) -> ModelSource:
    """Which weights are meant, and how they are loaded."""
    from depthscale.probing.loading import ModelSource

    return ModelSource(
        name=name,
        revision=revision,
        dtype=settings.dtype,
        device_map=settings.device_map,
        gguf_file=settings.gguf_file,
        allow_bin=settings.allow_bin,
        tokenizer=settings.tokenizer,
        trust_remote_code=settings.trust_remote_code,
    )


def open_model(name: str, revision: str | None, settings: ModelSettings, console: Console) -> tuple[LoadedModel, Any]:
    """Load a model, find its parts and hold them against its own forward pass.

    Returns:
        What was loaded, and the :class:`~depthscale.probing.located.LocatedModel`.
    """
    from depthscale.probing.loading import load_for_probing
    from depthscale.probing.probe import locate_loaded

    loaded = load_for_probing(model_source(name, revision, settings))
    located: LocatedModel = locate_loaded(loaded, settings).located
    console.print(
        f"{name}: {located.family}, {located.num_blocks} blocks, {located.num_visits} visits, width {located.width}",
        soft_wrap=True,
    )
    return loaded, located


def note_shortfall(counts: RowCounts, asked: int | None, context_length: int, console: Console) -> None:
    """Say so where the text held fewer tokens that count than were asked for."""
    if asked is not None and counts.tokens < asked:
        console.print(
            f"Note: {counts.tokens:,} tokens count, {asked:,} were asked for; the text has no more in its"
            f" {counts.documents:,} documents cut at {context_length:,} tokens ({counts.cut:,} were longer).",
            soft_wrap=True,
        )


def model_settings(options: dict[str, Any]) -> ModelSettings:
    """Checked settings from a command's options, among which they are; one that was not given keeps its default."""
    from depthscale.probing.settings import ModelSettings
    from depthscale.runs.config_file import validate

    given = {name: options[name] for name in ModelSettings.model_fields if options[name] is not None}
    return validate(ModelSettings, given, "options")


def describe_model(loaded: LoadedModel, located: LocatedModel) -> dict[str, Any]:
    """What a result file says of the model."""
    from depthscale.probing.loading import weight_hashes

    return {
        "name": loaded.source.name,
        "revision": loaded.source.revision,
        "family": located.family,
        "num_blocks": located.num_blocks,
        "num_visits": located.num_visits,
        "width": located.width,
        "weights_format": loaded.weights_format,
        "dtype": str(next(located.blocks[0].parameters()).dtype).removeprefix("torch."),
        "weights_sha256": weight_hashes(loaded.model).whole,
    }


def write_figures(home: Path, kind: str, console: Console) -> None:
    """The probe's report anew where there is a probe in ``home``; else the figures of this kind of result alone."""
    from depthscale.reports.charts import write_charts
    from depthscale.reports.probe_intervention_report import intervention_sections
    from depthscale.reports.probe_report import build_probe_report
    from depthscale.reports.probe_trace_charts import trace_sections
    from depthscale.runs.results import read_result, result_path

    if result_path(home, "probe").exists():
        console.print(f"report: {build_probe_report(home)}", soft_wrap=True)
        return
    sections = {"probe_interventions": intervention_sections, "probe_trace": trace_sections}[kind]
    charts = [chart for section in sections(read_result(home, kind)) for chart in section.charts]
    write_charts(home / "figures", charts)
    console.print(f"figures: {home / 'figures'} (a report needs `depthscale probe` in the same --out)", soft_wrap=True)

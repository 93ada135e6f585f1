"""The result of a probe as plain data, and its tables as tidy CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscale.probing.catalog import QUANTITIES, names_of, num_layers
from depthscale.probing.loading import LoadedModel, weight_hashes
from depthscale.probing.probe import Probe, peak_memory_bytes
from depthscale.probing.profile import Profile
from depthscale.probing.settings import ProbeSettings
from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import write_result

RESULT_KIND = "probe"
PROFILE_TABLE = "profile.csv"
POSITION_TABLE = "positions.csv"
HISTOGRAM_TABLE = "histograms.csv"
TOKEN_FILE = "tokens.parquet"

#: Positions of a document that a heat map shows: each of the first, then ranges that double.
_FIRST_POSITIONS = 4

DEFINITIONS = {
    "h_0": "input of the first visited block: the embedding output, positions and embedding norm included",
    "h_l": "raw output of visit l of N, never after the final norm",
    "Dh_l": "h_{l+1} - h_l",
    "counted": "position t counts when t and t + 1 are real tokens of the same document",
    "standard_error": "of the mean over tokens, documents taken as independent",
    "quantiles": "from histograms: angles to 0.13 degrees, cosines to 0.002, other values to 2.3 %",
}


def probe_result(loaded: LoadedModel, measured: Probe, settings: ProbeSettings) -> dict[str, Any]:
    """Everything that is known of one probe."""
    located = measured.checked.located
    hashes = weight_hashes(loaded.model)
    profile = measured.profile
    return {
        "model": {
            "name": loaded.source.name,
            "revision": loaded.source.revision,
            "family": located.family,
            "residual": located.residual,
            "num_blocks": located.num_blocks,
            "num_visits": measured.checked.located.num_visits,
            "blocks_of_visits": list(measured.checked.blocks),
            "visits_with_injection": list(measured.checked.injects),
            "width": located.width,
            "num_parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
            "final_norm": None if located.final_norm is None else type(located.final_norm).__name__,
            "dtype": str(next(located.blocks[0].parameters()).dtype).removeprefix("torch."),
            "weights_format": loaded.weights_format,
            "weights_sha256": hashes.whole,
            "matrix_sha256": dict(hashes.matrices),
            "largest_logit_error": measured.checked.largest_logit_error,
        },
        "data": {
            "corpus": settings.corpus,
            "subset": settings.subset,
            "context_length": measured.context_length,
            "bos_choice": settings.bos,
            "bos_id": measured.special.bos,
            "pad_source": measured.special.pad_source,
            "seed": settings.seed,
            **measured.counts.to_dict(),
        },
        "settings": settings.model_dump(mode="json"),
        "definitions": DEFINITIONS,
        "quantities": profile.to_dict(),
        "not_available": _not_available(measured, settings),
        "position_ranges": _position_tables(profile),
        "seconds": measured.seconds,
        "tokens_per_second": measured.counts.tokens / measured.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def write_probe(directory: Path, result: dict[str, Any], profile: Profile) -> Path:
    """Write the result file and its tables, and return the path of the result file."""
    atomic_write_text(directory / PROFILE_TABLE, _table(*_profile_rows(result)))
    atomic_write_text(directory / POSITION_TABLE, _table(*_position_rows(result)))
    atomic_write_text(directory / HISTOGRAM_TABLE, _table(*_histogram_rows(profile)))
    return write_result(directory, RESULT_KIND, result)


def _not_available(measured: Probe, settings: ProbeSettings) -> dict[str, str]:
    """Quantities that were asked for and could not be had, each with the reason."""
    located, names = measured.checked.located, measured.profile.names
    reasons: dict[str, str] = {}
    for name in QUANTITIES:
        if name in names:
            continue
        if located.num_visits is not None and num_layers(name, located.num_visits) == 0:
            if settings.sublayers or name not in names_of("sublayer"):
                reasons[name] = "a single visit has no neighbor"
        elif name in names_of("sublayer"):
            if settings.sublayers:
                reasons[name] = "attention and MLP are not told apart in this architecture"
        elif name == "angle_to_normed_end" and located.final_norm is None:
            reasons[name] = "the model has no final norm"
        elif name == "last_block_lens_loss" and settings.lenses:
            reasons[name] = "the last block reads something else than the state before it"
    return reasons


def position_ranges(num_positions: int) -> list[tuple[int, int]]:
    """First and last position of each range: 0, 1, 2, 3, then 4-7, 8-15, ...

    Example:
        >>> position_ranges(10)
        [(0, 0), (1, 1), (2, 2), (3, 3), (4, 7), (8, 9)]
    """
    ranges = [(position, position) for position in range(min(_FIRST_POSITIONS, num_positions))]
    start = _FIRST_POSITIONS
    while start < num_positions:
        ranges.append((start, min(2 * start, num_positions) - 1))
        start *= 2
    return ranges


def _position_tables(profile: Profile) -> dict[str, Any]:
    """Means and tokens by layer and range of positions, for heat maps."""
    # A row's last token predicts nothing, so the last position never counts.
    ranges = position_ranges(profile.num_positions - 1)
    tables: dict[str, Any] = {"ranges": [list(limits) for limits in ranges], "num_tokens": {}, "mean": {}}
    for name in profile.names:
        mean, count = profile.mean_by_position(name)
        totals = _over_ranges(mean.nan_to_num() * count, ranges)
        counts = _over_ranges(count, ranges)
        tables["mean"][name] = (totals / counts).tolist()
        tables["num_tokens"][name] = counts.long().tolist()
    return tables


def _over_ranges(values: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    return torch.stack([values[:, first : last + 1].sum(dim=1) for first, last in ranges], dim=1)


def _profile_rows(result: dict[str, Any]) -> tuple[tuple[str, ...], Iterator[Sequence[Any]]]:
    levels = next(iter(result["quantities"].values()))["quantiles"].keys()
    statistics = ("mean", "standard_error", "standard_deviation", "minimum", "maximum", "num_undefined")
    columns = ("quantity", "unit", "layer", *statistics, *(f"quantile_{level}" for level in levels))

    def rows() -> Iterator[Sequence[Any]]:
        for name, values in result["quantities"].items():
            for layer in range(len(values["mean"])):
                yield (
                    name,
                    values["unit"],
                    layer,
                    *(values[statistic][layer] for statistic in statistics),
                    *(values["quantiles"][level][layer] for level in levels),
                )

    return columns, rows()


def _position_rows(result: dict[str, Any]) -> tuple[tuple[str, ...], Iterator[Sequence[Any]]]:
    tables = result["position_ranges"]

    def rows() -> Iterator[Sequence[Any]]:
        for name, mean in tables["mean"].items():
            for layer, by_range in enumerate(mean):
                for index, (first, last) in enumerate(tables["ranges"]):
                    if count := tables["num_tokens"][name][layer][index]:
                        yield name, layer, first, last, count, by_range[index]

    return ("quantity", "layer", "first_position", "last_position", "num_tokens", "mean"), rows()


def _histogram_rows(profile: Profile) -> tuple[tuple[str, ...], Iterator[Sequence[Any]]]:
    def rows() -> Iterator[Sequence[Any]]:
        for name in profile.names:
            histogram = profile.histogram(name)
            edges = histogram.edges.tolist()
            for layer, index in histogram.counts.nonzero().tolist():
                yield name, layer, edges[index], edges[index + 1], int(histogram.counts[layer, index])

    return ("quantity", "layer", "low", "high", "num_tokens"), rows()


def _table(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    # What is not known is an empty cell.
    writer.writerows(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row] for row in rows)
    return buffer.getvalue()

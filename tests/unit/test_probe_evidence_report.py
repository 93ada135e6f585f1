"""From measurement to page: results through their files into sections, with every answer that there can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_probe_clusters import angle_vectors
from test_probe_interventions import batch, made
from test_probe_trace import tokens

from depthscale.probing.causal_trace import TraceSettings, trace
from depthscale.probing.cluster_reader import ClusterReader
from depthscale.probing.errors import ProbingError
from depthscale.probing.family import FITTED, family_result
from depthscale.probing.intervention_result import InterventionSettings, intervene
from depthscale.probing.ledger import Ledger
from depthscale.probing.located import locate
from depthscale.probing.nulls import untrained
from depthscale.probing.quantities import measure_tokens
from depthscale.probing.states import TokenBatch, collect_states
from depthscale.reports.charts import Chart, write_charts
from depthscale.reports.probe_cluster_charts import cluster_sections
from depthscale.reports.probe_intervention_report import intervention_sections, regime_sentences
from depthscale.reports.probe_report import _with_origin
from depthscale.reports.probe_sections import ReportSection
from depthscale.reports.probe_trace_charts import trace_sections
from depthscale.reports.probe_trend_charts import trend_sections
from depthscale.runs.results import read_result, write_result


def stored(directory: Path, kind: str, result: dict[str, Any]) -> dict[str, Any]:
    write_result(directory, kind, result)
    return read_result(directory, kind)


def charts_of(sections: list[ReportSection]) -> list[Chart]:
    found = [chart for section in sections for chart in section.charts]
    assert len({chart.name for chart in found}) == len(found)
    for chart in found:
        assert chart.rows
        assert all(len(row) == len(chart.columns) for row in chart.rows)
        # A page holds no second document: images inside a chart would need one.
        assert "data:image" not in chart.svg
        assert chart.inline_svg.startswith("<svg")
    for section in sections:
        assert section.paragraphs
        assert all(len(row) == len(table.columns) for table in section.tables for row in table.rows)
    return found


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_both_answers_about_clusters_are_told(tmp_path: Path, share: float) -> None:
    reader = ClusterReader()
    reader.vectors, _ = angle_vectors(0, share, num_documents=24, length=100)
    sections = cluster_sections(stored(tmp_path, "probe_clusters", reader.result()))
    assert len(charts_of(sections)) == 2
    words = sections[0].paragraphs[0]
    assert ("are one group" in words) == (share == 0)
    assert ("1.00 % of them" in words) == (share > 0)


def test_the_reader_takes_each_token_s_angles_with_its_place() -> None:
    model, _ = made("llama")
    located = locate(model)
    rows = batch(padded=True)
    reader = ClusterReader()
    for part in measure_tokens(located, rows, ("state_angle",), 1 << 20):
        reader.add(part, torch.tensor([40, 41, 42]))
    assert reader.vectors is not None
    sample = reader.vectors.sample
    assert sample.vectors.shape == (int(rows.counted.sum()), 5)
    states = [state.double() for state in collect_states(located, rows).states]
    row, position = 2, 4
    cosine = torch.nn.functional.cosine_similarity(states[1][row, position], states[2][row, position], dim=-1)
    at = np.flatnonzero((sample.documents == 42) & (sample.positions == position))
    assert sample.vectors[at, 1] == pytest.approx(float(cosine.arccos()), abs=1e-5)
    assert sample.token_ids[at] == rows.input_ids[row, position].item()


def probe_of(name: str, depth: int, sha: str = "", corpus: str = "stdlib") -> dict[str, Any]:
    means = [1.5, *[3 / depth] * (depth - 2), 1.5]
    return {
        "model": {
            "name": name,
            "revision": None,
            "weights_sha256": sha or name,
            "num_visits": depth,
            "num_blocks": depth,
            "width": 8,
        },
        "data": {"corpus": corpus, "tokens": 100},
        "quantities": {quantity: {"mean": means} for quantity in FITTED},
    }


def test_a_family_s_trend_goes_from_result_files_to_the_page(tmp_path: Path) -> None:
    probes = [probe_of(f"m{depth}", depth) for depth in (4, 8, 16)]
    result = stored(tmp_path, "probe_trend", family_result([*probes, probe_of("copy", 16, sha="m16")]))
    assert [model["name"] for model in result["models"]] == ["m4", "m8", "m16"]
    assert "copy has the weights of m16" in result["notes"][0]
    between = [trend for trend in result["trends"] if not trend["ends"]]
    assert all(trend["slope"] == pytest.approx(-1, abs=1e-6) for trend in between)
    sections = trend_sections(result)
    assert len(charts_of(sections)) == len(FITTED)
    few = trend_sections(stored(tmp_path, "probe_trend", family_result(probes[:2])))
    charts_of(few)
    assert "3 different depths" in few[0].paragraphs[0]
    with pytest.raises(ProbingError, match="one corpus"):
        family_result([probes[0], probe_of("other", 8, corpus="shakespeare")])
    with pytest.raises(ProbingError, match="no probe"):
        family_result([])


def test_interventions_with_their_nulls_go_to_the_page_and_resume(tmp_path: Path) -> None:
    model, _ = made("llama")
    located, fresh = locate(model), locate(untrained(model, 5))
    rows = batch(rows=6, tokens=8)
    settings = InterventionSettings(num_draws=2, similarity_tokens=20)
    path = tmp_path / "interventions.jsonl"
    parts: dict[str, list[int]] = {}
    found = intervene(
        located,
        fresh,
        [rows],
        False,
        Ledger(path, {}),
        settings,
        lambda what, done, _: parts.setdefault(what, []).append(done),
    )
    assert {"evidence", "single layers", "loops", "similarity", "untrained", "shuffled"} <= set(parts)
    lines = path.read_text().count("\n")
    again = intervene(located, fresh, [rows], False, Ledger(path, {}), settings)
    assert path.read_text().count("\n") == lines
    result = stored(tmp_path, "probe_interventions", found)
    assert json.dumps(result["interventions"]) == json.dumps(
        stored(tmp_path, "probe_interventions", again)["interventions"]
    )
    assert result["num_tokens"] == 6 * 7
    assert result["similarity"]["num_tokens"] == 20
    ones = [one for one in result["interventions"] if one["kind"] == "loop" and one["rounds"] == 1]
    assert ones
    assert all(one["excess"]["value"] == 0 for one in ones)
    sections = intervention_sections(result)
    names = {chart.name for chart in charts_of(sections)}
    assert {"drops-bulk", "layer-interventions", "looped-spans", "later-change", "layer-similarity"} <= names
    assert sections[0].paragraphs[0] == result["verdict"]["sentence"]


def test_without_nulls_the_evidence_does_not_decide(tmp_path: Path) -> None:
    model, _ = made("gpt2")
    settings = InterventionSettings(num_draws=1, similarity_tokens=0, nulls=False)
    found = intervene(locate(model), None, [batch()], False, Ledger(None, {}), settings)
    sections = intervention_sections(stored(tmp_path, "probe_interventions", found))
    charts_of(sections)
    assert sections[0].paragraphs[0].startswith("The evidence does not decide")
    assert "Not measured: the null of untrained and shuffled" in sections[0].paragraphs[-1]


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_a_trace_goes_to_the_page_also_without_any_effect(tmp_path: Path, noise: float) -> None:
    model, _ = made("llama")
    prompts = [tokens(), tokens(5, (1, 4))]
    found = trace(locate(model), prompts, Ledger(None, {}), TraceSettings(num_draws=3, noise=noise))
    sections = trace_sections(stored(tmp_path, "probe_trace", found.to_dict()))
    assert len(charts_of(sections)) >= 2
    if noise == 0:
        assert found.num_unaffected == 2
        assert "2 prompts the noise made" in sections[0].paragraphs[-1]


def test_a_single_document_gives_figures_without_intervals(tmp_path: Path) -> None:
    model, _ = made("llama")
    one = TokenBatch(batch().input_ids[:1])
    settings = InterventionSettings(num_draws=1, similarity_tokens=0)
    found = intervene(locate(model), locate(untrained(model)), [one], True, Ledger(None, {}), settings)
    result = stored(tmp_path, "probe_interventions", found)
    assert result["interventions"][0]["excess"]["low"] is None
    assert result["verdict"]["regime"] is None
    charts_of(intervention_sections(result))


def test_every_figure_is_an_image_too_and_always_the_same(tmp_path: Path) -> None:
    result = stored(tmp_path, "probe_trend", family_result([probe_of(f"m{depth}", depth) for depth in (4, 8, 16)]))
    first, second = (charts_of(trend_sections(result)) for _ in range(2))
    assert [chart.png for chart in first] == [chart.png for chart in second]
    write_charts(tmp_path, first)
    image = (tmp_path / "trend-state-angle.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert b"matplotlib" not in image


def test_revisions_that_share_a_weight_are_in_no_trend() -> None:
    def at(revision: str, depth: int, **hashes: str) -> dict[str, Any]:
        probe = probe_of("series", depth, sha="|".join(hashes.values()))
        probe["model"] |= {"revision": revision, "matrix_sha256": hashes}
        return probe

    probes = [at("step1", 8, a="1", b="final"), at("step2", 8, a="2", b="2"), at("step1000", 8, a="3", b="final")]
    result = family_result([*probes, probe_of("m4", 4), probe_of("m16", 16)])
    assert [model["name"] for model in result["models"]] == ["series at step2", "m4", "m16"]
    assert "series at step1 shares weights with step1000 and is left out" in result["notes"]


def test_a_section_of_other_weights_says_so() -> None:
    sections = [ReportSection("a", "A", ("first",))]
    model = {"name": "other", "revision": "step1", "dtype": "float32", "weights_sha256": "ab"}
    probe = {"model": {"name": "mine", "revision": None, "dtype": "float32", "weights_sha256": "cd"}}
    (changed,) = _with_origin(sections, {"model": model}, probe)
    assert changed.paragraphs[0].startswith("Measured on other weights than the profile: other at step1 in float32")
    assert changed.paragraphs[1:] == ("first",)
    assert _with_origin(sections, {"model": model}, {"model": model}) == sections
    assert _with_origin(sections, {"model": model}, None) == sections


def test_a_bulk_of_all_layers_is_called_so() -> None:
    model, _ = made("llama")
    located = locate(model)
    settings = InterventionSettings(num_draws=1, similarity_tokens=0, nulls=False)
    found = intervene(located, None, [batch()], False, Ledger(None, {}), settings)
    assert "5 layers but the first and the last." in regime_sentences(found)[1]
    few = {**found, "num_visits": 3, "bulk": [0, 1, 2]}
    assert "3 layers, too few to leave the ends out." in regime_sentences(few)[1]

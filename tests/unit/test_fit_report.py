"""The report of a fit: well-formed, self-contained, the same numbers as the result, whole without the rows."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from depthscale.laws import LAWS, DataCard, Observations
from depthscale.laws.analysis import Question, analyze
from depthscale.laws.preparation import RowRule, prepare
from depthscale.laws.rows_file import ROWS_FILE, read_rows, write_rows
from depthscale.reports.charts import few_log_ticks, new_axes
from depthscale.reports.fit_charts import term_charts
from depthscale.reports.fit_report import build_fit_report, formula
from depthscale.reports.fit_words import regime_words, sentences
from depthscale.runs.results import read_result, write_result

LAW = LAWS["width_depth_tokens"]
TRUTH = dict(zip(LAW.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
HOSTILE = '<script>alert("x")</script>'


def rows() -> Observations:
    grid = np.meshgrid(np.array([256.0, 512, 1024, 2048]), np.geomspace(3, 48, 7).round(), np.geomspace(1e9, 1e11, 3))
    columns = dict(zip(LAW.columns, (a.ravel() for a in grid), strict=True))
    noise = np.exp(0.003 * np.random.default_rng(1).standard_normal(grid[0].size))
    return Observations(columns, LAW.predict(TRUTH, columns) * noise)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    prepared = prepare(rows(), LAW, RowRule(), DataCard(tokenizer=HOSTILE), None)
    _, answers = analyze(LAW, prepared, DataCard(tokenizer=HOSTILE), Question(num_replicates=80))
    result = {
        "sources": [{"name": HOSTILE}],
        "columns": None,
        "cut": {"rule": "every row", "depth_offset": 0.0},
        "context": None,
        **answers,
    }
    write_result(folder, "fit", result)
    write_rows(folder / ROWS_FILE, prepared.base)
    build_fit_report(folder)
    return folder


def test_rows_are_read_back_to_the_bit(directory: Path) -> None:
    result = read_result(directory, "fit")
    back = read_rows(directory / ROWS_FILE)
    assert back.digest == result["fit"]["data_sha256"]
    assert int(back.group_codes.max()) + 1 == result["fit"]["num_groups"] == 28


def test_page_is_self_contained_and_escapes(directory: Path) -> None:
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert HOSTILE not in page
    references = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert references
    for reference in references:
        assert (directory / reference).exists(), reference
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for link in re.findall(r'<a href="#([^"]+)"', page):
        assert link in ids


def test_page_and_charts_say_what_the_result_says(directory: Path) -> None:
    result = read_result(directory, "fit")
    page = (directory / "report.html").read_text(encoding="utf-8")
    exponent = result["fit"]["parameters"]["alpha_l"]
    assert f"alpha_l = {exponent:.4g}" in page
    assert "cluster bootstrap over 28 groups" in page
    # Seven depths over a factor 16, noise far below the term: the regime is decided.
    assert result["regime"]["verdict"] in {"ensemble_averaging", "neither"}
    for path in (directory / "figures").glob("*.svg"):
        ElementTree.parse(path)
        with path.with_suffix(".csv").open(newline="") as file:
            assert len(list(csv.reader(file))) > 2


def test_term_charts_draw_the_term_and_the_residual(directory: Path) -> None:
    result = read_result(directory, "fit")
    data = read_rows(directory / ROWS_FILE)
    predicted = LAW.predict(result["fit"]["parameters"], data.columns)
    for chart in term_charts(result, data):
        _, left, term = (np.array(column, dtype=float) for column in zip(*chart.rows, strict=True))
        np.testing.assert_allclose(left - term, data.loss - predicted, atol=1e-12)


def test_a_published_fit_has_a_report_without_its_rows(directory: Path, tmp_path: Path) -> None:
    write_result(tmp_path, "fit", {k: v for k, v in read_result(directory, "fit").items() if k != "kind"})
    page = build_fit_report(tmp_path).read_text(encoding="utf-8")
    assert "What each term explains" not in page
    assert "IsoFLOP" in page
    assert not list((tmp_path / "figures").glob("term-*"))


def test_report_is_the_same_text_every_time(directory: Path) -> None:
    first = (directory / "report.html").read_text(encoding="utf-8")
    assert build_fit_report(directory).read_text(encoding="utf-8") == first


def test_words_of_a_regime_that_is_not_identifiable(directory: Path) -> None:
    regime = dict(read_result(directory, "fit")["regime"])
    regime["reasons"] = ["depths span a factor 3.92, at least 8 is needed"]
    words = regime_words(regime)
    assert words.startswith("not identifiable: depths span")
    assert "held at 1" in words
    assert "held at 3" in words
    assert regime_words({"failed": "no"}) == "not tested: no."


def test_sentences_name_the_interval(directory: Path) -> None:
    said = dict(sentences(read_result(directory, "fit")))
    assert "cluster bootstrap over 28 groups" in said["Exponent of depth"]
    assert "certified" in said["Fit"]


def test_formula_of_every_named_law() -> None:
    assert formula(LAW.to_dict()) == "L = L_0 + c_m · width^−alpha_m + c_l · depth^−alpha_l + c_D · tokens^−alpha_D"
    assert formula(LAWS["saturating"].to_dict()) == "L = L_inf + Z · exp(−z rounds)"
    assert formula(LAWS["growth"].to_dict()) == "L = c · x^a"


@pytest.mark.parametrize(("low", "high", "most"), [(700, 5200, 6), (1e9, 3e11, 3), (10.2, 13.0, 6), (1, 1e9, 3)])
def test_few_log_ticks_fit_under_an_axis(low: float, high: float, most: int) -> None:
    _, axes = new_axes()
    axes.set_xscale("log")
    few_log_ticks(axes.xaxis, low, high)
    ticks = axes.xaxis.get_major_locator()()
    assert 1 <= len(ticks) <= most
    assert all(low <= tick <= high for tick in ticks)

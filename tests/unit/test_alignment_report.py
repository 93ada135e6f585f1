"""The report of an alignment study, from a result file alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from synthetic_alignment import cell_results, study_file

from depthscale.alignment.study import study_result
from depthscale.errors import ResultError
from depthscale.reports import alignment_words
from depthscale.reports.alignment_data import AlignmentData, read_alignment_data
from depthscale.reports.alignment_report import build_alignment_report
from depthscale.runs.results import read_result, result_path, write_result


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("alignment")
    file = study_file()
    write_result(directory, "alignment_study", study_result(file, cell_results(file)))
    build_alignment_report(directory)
    return directory


def rows(directory: Path, name: str) -> list[dict[str, str]]:
    with (directory / "figures" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_page_holds_every_section_and_every_figure(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    for words in (
        "κ over rounds, at initialization and along training",
        "γ and the stability threshold",
        "Which sublayers make the bound",
        "A real step over R",
        "What κ depends on, one thing at a time",
        "Earlier figures",
        '<th scope="col">Bend</th>',
        "base: deeploop, post",
        "1.36",
    ):
        assert words in page, words
    figures = sorted(path.stem for path in (directory / "figures").glob("*.svg"))
    assert figures == sorted(path.stem for path in (directory / "figures").glob("*.csv"))
    for name in figures:
        assert f'id="chart-{name}-title"' in page, name
    assert {"kappa-deeploop", "gamma", "gamma-untied", "shares-step-0", "shares-step-200", "maxima-U-step-0",
            "maxima-U-step-200", "maxima-G-step-0", "maxima-G-step-200", "step-deepnorm-sgd-0",
            "self-consistent-4-rows"} <= set(figures)  # fmt: skip
    assert "http" not in page.replace("http://www.w3.org", "")


def test_initialization_and_training_stand_in_one_figure_with_the_untied_control(directory: Path) -> None:
    drawn = rows(directory, "kappa-deeploop")
    assert {(row["arm"], row["step"]) for row in drawn} == {
        (arm, step) for arm in ("deeploop", "untied") for step in ("0", "200")
    }
    at_eight = {row["arm"]: float(row["mean"]) for row in drawn if (row["step"], row["rounds"]) == ("200", "8")}
    assert at_eight["deeploop"] == pytest.approx(8**0.75, rel=0.01)
    assert at_eight["untied"] == pytest.approx(1.0, rel=0.01)
    gammas = {(row["arm"], row["step"]): float(row["gamma"]) for row in rows(directory, "gamma")}
    assert gammas["deepnorm", "0"] == pytest.approx(1.0, abs=0.01)
    shares = [float(row["share"]) for row in rows(directory, "shares-step-200")
              if (row["arm"], row["rounds"]) == ("deeploop", "8")]  # fmt: skip
    assert sum(shares) == pytest.approx(1.0)


def test_a_report_is_rebuilt_byte_for_byte(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.rglob("*") if path.suffix in (".html", ".svg", ".csv")}
    build_alignment_report(directory)
    after = {path.name: path.read_bytes() for path in directory.rglob("*") if path.suffix in (".html", ".svg", ".csv")}
    assert before == after


def result_of(directory: Path) -> dict[str, Any]:
    return read_result(directory, "alignment_study")


def said(result: dict[str, Any]) -> dict[str, str]:
    return dict(alignment_words.sentences(AlignmentData(result)))


def test_sentences_come_from_the_numbers(directory: Path) -> None:
    found = said(result_of(directory))
    assert "deeploop 0.75 at step 0, 0.75 at step 200" in found["Growth of alignment"]
    assert "given in 6 of 6 conditions" in found["Stability threshold"]
    assert "deeploop at step 0 −0.25 against −0.25" in found["One SGD step"]
    assert "deepnorm at step 0 0.50 against 0.50" in found["One AdamW step"]
    assert "The bound holds" in found["One SGD step"]
    agrees = found["Exponent that agrees with itself"]
    assert "p* = (1 + γ(p*))/4 is 0.45" in agrees
    assert "2 exponents were measured; 4 are needed" in agrees
    assert "no recommendation" in agrees


def test_no_answers_are_said(directory: Path) -> None:
    result = result_of(directory)
    for c in result["conditions"]:
        c["threshold"] = {"value": None, "lower": None, "upper": None, "failed": ["max ||U|| grows"]}
    result["one_steps"][0]["bound_holds"] = False
    solution = result["self_consistent"]["kappa_common"]["solution"]
    solution |= {"estimate": None, "estimate_outside": "above", "upper": None, "upper_outside": "above"}
    result["self_consistent"]["edge"] = [0.3, 0.35]
    found = said(result)
    assert found["Stability threshold"].startswith("none: in each of 6 conditions")
    # Which of them fails most was not counted.
    assert "mostly" not in found["Stability threshold"]
    assert "The bound is broken in 1 of 2 groups" in found["One SGD step"]
    agrees = found["Exponent that agrees with itself"]
    assert "is above those measured" in agrees
    assert "0.300 to 0.350; too little was measured" in agrees
    solution["missing"] = []
    assert "0.300 to 0.350; p* does not predict it" in said(result)["Exponent that agrees with itself"]
    result["conditions"] = [c for c in result["conditions"] if c["step"] == 0]
    assert "Only initialization was measured" in said(result)["Growth of alignment"]
    for c in result["conditions"]:
        c["step"] = 7
    assert said(result)["Growth of alignment"].endswith("Step 7 alone was measured in every arm.")
    for c in result["conditions"]:
        c["threshold"] = {"reason": "too few points"}
    assert said(result)["Stability threshold"].startswith("none: no condition has the points")
    solution["missing"] = ["1 batch sizes were measured; 2 are needed"]
    assert "too little was measured, so p* is no recommendation" in said(result)["Exponent that agrees with itself"]
    result["self_consistent"] = None
    assert "Exponent that agrees with itself" not in said(result)


def test_an_exponent_without_an_answer_is_a_dash() -> None:
    assert alignment_words.interval({"reason": "too few points"}) == "—"
    assert alignment_words.interval({"exponent": 0.5, "lower": None, "upper": 0.7}) == "0.50 [open, 0.70]"
    assert alignment_words.bend({"bend": None}) == "—"
    assert alignment_words.bend({"bend": -0.4, "bend_error": 0.1}) == "−0.40 ± 0.10"
    assert alignment_words.threshold({"threshold": {"reason": "x"}}) == "none"


def test_damage_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no alignment_study result"):
        read_alignment_data(tmp_path)
    path = result_path(tmp_path, "alignment_study")
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(ResultError, match="damaged"):
        build_alignment_report(tmp_path)

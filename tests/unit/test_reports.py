"""Reports: well-formed, self-contained, and saying what the intervals say."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from synthetic_study import LOSSES, give_two_budgets, write_synthetic_study

from depthscale.errors import ResultError
from depthscale.reports import charts
from depthscale.reports.comparison_report import build_report
from depthscale.reports.run_report import build_run_report
from depthscale.runs.metrics import append_metric
from depthscale.runs.results import read_result

VOID = {"meta", "br", "img", "hr", "link", "input", "col"}
HOSTILE = '<script>alert("x")</script>&$\\frac{1}{2}$</style>'


class Page(HTMLParser):
    """Checks nesting while it reads; keeps ids, references, headings and text outside style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.references.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_synthetic_study(
        tmp_path_factory.mktemp("study"), outcomes={("deepnorm", 4, 2): "stuck", ("deeploop", 1, 3): "diverged"}
    )
    build_report(directory)
    return directory


@pytest.fixture(scope="module")
def page(study: Path) -> Page:
    return Page((study / "report.html").read_text(encoding="utf-8"))


def test_the_verdict_of_the_page_is_that_of_the_intervals(study: Path, page: Page) -> None:
    comparison = read_result(study, "comparison")
    for pair in comparison["pairs"]:
        interval = pair["interval"]
        direction = {"a_better": interval["high"] < 0, "b_better": interval["low"] > 0}
        assert direction.get(pair["verdict"], interval["low"] <= 0 <= interval["high"])
        assert pair["words"] in page.text
    assert "Lower loss with pre" in page.text
    assert page.text.count("not decided") >= sum(p["verdict"] == "not_decided" for p in comparison["pairs"])
    assert all(warning in page.text for warning in comparison["warnings"])


def test_the_page_is_self_contained(page: Page) -> None:
    assert "script" not in page.tags
    assert "link" not in page.tags
    for reference in page.references:
        assert reference.startswith(("#", "figures/")), reference
    assert all(reference[1:] in page.ids for reference in page.references if reference.startswith("#"))


def test_the_style_loads_nothing(study: Path) -> None:
    text = (study / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_ids_are_unique_and_references_inside_figures_resolve(study: Path, page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    text = (study / "report.html").read_text(encoding="utf-8")
    for target in re.findall(r"url\(#([^)]*)\)", text):
        assert target in page.ids
    for targets in re.findall(r'aria-labelledby="([^"]*)"', text):
        assert set(targets.split()) <= set(page.ids)


def test_headings_descend_one_level_at_a_time(page: Page) -> None:
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_every_figure_has_its_numbers_beside_it(study: Path, page: Page) -> None:
    drawn = sorted(path.stem for path in (study / "figures").glob("*.svg"))
    assert drawn == sorted(path.stem for path in (study / "figures").glob("*.csv"))
    assert {f"figures/{name}.csv" for name in drawn} == {r for r in page.references if r.startswith("figures/")}
    for name in drawn:
        ElementTree.parse(study / "figures" / f"{name}.svg")
    with (study / "figures" / "difference-rule.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = [p for p in read_result(study, "comparison")["pairs"] if p["question"] == "rule"]
    assert [float(row["mean_nats"]) for row in rows] == [p["interval"]["mean"] for p in pairs]


def test_the_mean_curve_ends_where_the_first_run_ends(study: Path) -> None:
    with (study / "figures" / "loss-r1.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    last = {row["arm"]: int(row["step"]) for row in rows}
    # The diverged run lost its loss at step 200; its last finite evaluation was at 150.
    assert last == {"pre": 600, "deepnorm": 600, "deeploop": 150}


def test_the_same_results_give_the_same_bytes(study: Path, tmp_path: Path) -> None:
    copy = tmp_path / study.name
    shutil.copytree(study, copy)
    build_report(copy)
    for path in sorted((study / "figures").iterdir()):
        assert (copy / "figures" / path.name).read_bytes() == path.read_bytes(), path.name
    created = re.compile(r"<dt>Compared</dt><dd>[^<]*</dd>")
    before, after = ((d / "report.html").read_text(encoding="utf-8") for d in (study, copy))
    assert created.sub("", before) == created.sub("", after)


def test_hostile_names_are_text(tmp_path: Path) -> None:
    write_synthetic_study(
        tmp_path, seeds=(0, 1), losses={("pre", 1): 3.0, ("deeploop", 1): 3.0}, corpus=HOSTILE, name=HOSTILE,
        lr_source=HOSTILE,
    )  # fmt: skip
    build_report(tmp_path)
    # A published study without its runs: the report takes the names that the comparison gives, whatever they are.
    path = tmp_path / "results" / "comparison.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"deeploop"', json.dumps(HOSTILE)), encoding="utf-8")
    for keep_runs in (True, False):
        if not keep_runs:
            shutil.rmtree(tmp_path / "runs")
        text = build_report(tmp_path).read_text(encoding="utf-8")
        assert "<script" not in text
        hostile = Page(text)
        assert "script" not in hostile.tags
        assert HOSTILE in html.unescape(hostile.text)


def test_a_study_without_its_runs_is_still_reported(tmp_path: Path) -> None:
    build_report(write_synthetic_study(tmp_path))
    verdict = read_result(tmp_path, "comparison")["verdict"]
    shutil.rmtree(tmp_path / "runs")
    bare = Page(build_report(tmp_path).read_text(encoding="utf-8"))
    for sentence in verdict:
        assert sentence.split(": ", 1)[0] in bare.text
    assert "Main table" in bare.text


@pytest.mark.parametrize(
    "options",
    [
        {"seeds": (0,), "with_tuning": False},
        {"losses": {("pre", 4): 3.0}},
        {"outcomes": {(arm, rounds, seed): "diverged" for arm, rounds in LOSSES for seed in range(5)}},
        {"outcomes": {("pre", 1, seed): "missing" for seed in range(5)}},
    ],
    ids=["one-seed", "one-cell", "all-diverged", "empty-cell"],
)
def test_poor_studies_still_get_a_page(tmp_path: Path, options: dict[str, object]) -> None:
    write_synthetic_study(tmp_path, **options)  # type: ignore[arg-type]
    poor = Page(build_report(tmp_path).read_text(encoding="utf-8"))
    assert "lower loss with" not in poor.text
    assert "nan" not in re.findall(r"[a-z]+", poor.text)


def test_a_single_run_is_reported_without_a_verdict(study: Path) -> None:
    path = build_run_report(study / "runs" / "deeploop-r4-s1")
    run = Page(path.read_text(encoding="utf-8"))
    assert "nothing is compared" in run.text
    loss = read_result(study / "runs" / "deeploop-r4-s1", "training")["final"]["report"]["loss_nats"]
    assert f"{loss:.4f} nats per token" in run.text
    assert (path.parent / "figures" / "loss.csv").exists()
    lost = Page(build_run_report(study / "runs" / "deeploop-r1-s3").read_text(encoding="utf-8"))
    assert "diverged" in lost.text


def test_alignment_is_shown_along_training_where_runs_logged_it(tmp_path: Path) -> None:
    directory = write_synthetic_study(tmp_path, seeds=(0, 1))
    assert not (build_report(directory).parent / "figures" / "alignment-r4.csv").exists()
    for seed, shift in ((0, -0.1), (1, 0.3)):
        for rounds in (1, 4):
            for step, kappa in ((0, 3.9), (300, 2.0), (600, None)):
                found = None if kappa is None else kappa + shift
                record = {"step": step, "kind": "alignment", "loss": {"kappa": found}}
                append_metric(directory / "runs" / f"deeploop-r{rounds}-s{seed}" / "metrics.jsonl", record)
    diverged = {"step": 0, "kind": "alignment", "reason": "the loss is not finite"}
    append_metric(directory / "runs" / "deepnorm-r4-s0" / "metrics.jsonl", diverged)
    text = build_report(directory).read_text(encoding="utf-8")
    assert "Alignment of the visits" in Page(text).text
    assert not (directory / "figures" / "alignment-r1.csv").exists(), "at R = 1 kappa is 1 by definition"
    with (directory / "figures" / "alignment-r4.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["step"], row["num_runs"]) for row in rows] == [
        ("deeploop", "0", "2"),
        ("deeploop", "300", "2"),
    ]
    found = [[float(row[f"{what}_kappa"]) for what in ("mean", "lowest", "highest")] for row in rows]
    assert found == [pytest.approx([4.0, 3.8, 4.2]), pytest.approx([2.1, 1.9, 2.3])]
    build_run_report(directory / "runs" / "deeploop-r4-s1")
    assert (directory / "runs" / "deeploop-r4-s1" / "figures" / "alignment.csv").exists()
    build_run_report(directory / "runs" / "deepnorm-r4-s0")
    assert not (directory / "runs" / "deepnorm-r4-s0" / "figures" / "alignment.csv").exists()


def test_a_folder_that_is_no_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no study at"):
        build_report(tmp_path)
    with pytest.raises(ResultError, match="no training result"):
        build_run_report(tmp_path)


def test_a_drawing_in_a_page_refers_to_itself_and_to_its_own_images() -> None:
    svg = (
        '<svg viewBox="0 0 1 1"><path id="a"/><use xlink:href="#a"/><g clip-path="url(#a)"/>'
        '<image xlink:href="data:image/png;base64,AAAA"/></svg>'
    )
    drawn = charts.Chart("map", "a map", "", "a map", svg, (), ()).inline_svg
    assert 'id="chart-map-a"' in drawn
    assert 'xlink:href="#chart-map-a"' in drawn
    assert "url(#chart-map-a)" in drawn
    assert 'xlink:href="data:image/png;base64,AAAA"' in drawn


def test_cells_of_one_arm_are_told_apart_by_their_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = write_synthetic_study(tmp_path / "study", study={"budgets": [300, 600]}, with_tuning=False)
    give_two_budgets(study)
    monkeypatch.chdir(study)
    page = Page(build_report(Path()).read_text(encoding="utf-8"))
    for rows in ("deeploop600 steps1", "deeploop against pre, R = 4300 steps", "deeploop against pre600 steps"):
        assert rows in page.text.replace("\n", "")
    assert "depthscale report study" in page.text


def test_what_was_tried_and_how_often_is_on_the_page(tmp_path: Path) -> None:
    directory = write_synthetic_study(tmp_path)
    even = Page(build_report(directory).read_text(encoding="utf-8")).text
    assert "Every cell had the same number of runs to choose by: 8." in even
    path = directory / "results" / "tuning.json"
    tuning = json.loads(path.read_text())
    decayed = tuning["cells"][0]
    point = {"lr": decayed["best_lr"], "seed": 100, "outcome": "finished"}
    decayed |= {
        "best_weight_decay": 0.1,
        "weight_decay_at_edge": True,
        "weight_decay_points": [
            {**point, "weight_decay": 0.0, "loss_nats": 3.3},
            {**point, "weight_decay": 0.1, "loss_nats": 3.2},
        ],
    }
    path.write_text(json.dumps(tuning))
    page = Page(build_report(directory).read_text(encoding="utf-8")).text
    assert "The cells had different numbers of runs to choose by: 8, 10." in page
    assert "weight decay 0: 3.300; weight decay 0.1: 3.200" in page
    assert page.count("at the edge") == even.count("at the edge") + 1
    rounds = decayed["rounds"]
    with (directory / "figures" / f"tuning-decay-r{rounds}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["weight_decay"], row["loss_nats"]) for row in rows] == [("0.0", "3.3"), ("0.1", "3.2")]
    assert f"Choosing the weight decay, at the best rate, R = {rounds}" in page

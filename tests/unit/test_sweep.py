"""A sweep from its file to its report, on runs whose endings the test chooses; and one whose runs are real."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import one_line, run
from rich.console import Console
from synthetic_sweep import STEPS, Ending, additions, make_file, sweep_tables, write_runs
from test_reports import Page
from tiny_run import write_corpus

from depthscale.errors import ConfigError, DepthscaleError, ResultError
from depthscale.reports.sweep_report import build_sweep_report
from depthscale.runs.config_file import read_toml, validate, write_toml
from depthscale.runs.results import read_result
from depthscale.runs.sweep_config import THRESHOLD_ARM, SweepFile
from depthscale.studies import sweep, sweep_analysis
from depthscale.studies.engine import Failure, Job
from depthscale.studies.sweep import read_sweep_file, run_sweep, sweep_presets, write_sweep
from depthscale.studies.sweep_analysis import write_sweep_result
from depthscale.studies.sweep_runs import PlannedRun, planned_runs

QUIET = Console(quiet=True)
SMALL: dict[str, Any] = {"exponents": [0.3, 0.6], "rates": [1e-3], "seeds": [1], "extra_seeds": [], "arms": []}


def edge_at_half(run: PlannedRun) -> Ending:
    """At the main rate 0, 1, 4, 5 of the first five seeds train; at the other everything at p = 0.6 diverges."""
    if run.arm == "pre":
        return "finished", 40, 2.5
    assert run.p is not None
    if run.lr == 3e-3:
        return ("diverged", None, None) if run.p == 0.6 else ("stuck", None, 3.05)
    needed = {0.3: 0, 0.4: 1, 0.5: 4, 0.6: 5}.get(run.p, 3)
    trained = run.seed <= needed or (run.step_factor == 2 and run.p == 0.4) or (run.seed > 5 and run.p == 0.5)
    return ("finished", 100 - 20 * needed // 2, 2.6 + run.p + 0.001 * run.seed) if trained else ("stuck", None, 3.05)


def make_synthetic(
    directory: Path, monkeypatch: pytest.MonkeyPatch, ending: Any = edge_at_half, threshold: Any = None, **changes: Any
) -> list[int]:
    """Run a sweep whose jobs are ended by ``ending``; returns how many runs each stage made."""
    file = make_file(**changes)
    made: list[int] = []

    def end_jobs(jobs: list[Job], *_: Any) -> list[Failure]:
        made.append(write_runs(directory, file, ending))
        return [Failure(job, "as the test asked") for job in jobs if not job.done]

    monkeypatch.setattr(sweep, "run_jobs", end_jobs)
    run_sweep(directory, file, 1, QUIET, threshold)
    return made


def test_the_plan_is_written_first_and_additions_before_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def ending(run: PlannedRun) -> Ending:
        assert (tmp_path / "study.json").exists()
        if run.added is not None:
            seen.append(len(additions(tmp_path)))
        return edge_at_half(run)

    grid, added = make_synthetic(tmp_path, monkeypatch, ending)
    assert grid == (4 + 1) * 2 * 5
    assert set(seen) == {2}
    near, longer = additions(tmp_path)
    assert (near["reason"], near["exponents"], near["seeds"]) == ("near_edge", [0.4, 0.5], [6, 7, 8])
    assert (longer["reason"], longer["exponents"]) == ("longer", [0.4, 0.5])
    assert added == 2 * 3 + 2 * 5
    # Given again, nothing is made anew, and the additions are those that were written.
    assert make_synthetic(tmp_path, monkeypatch) == [0, 0]
    assert additions(tmp_path) == [near, longer]


def test_a_failed_grid_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_synthetic(tmp_path, monkeypatch, lambda run: None if run.seed == 5 else edge_at_half(run))
    assert made == [(4 + 1) * 2 * 4]
    assert additions(tmp_path) == []


def test_the_result_counts_shares_edges_times_and_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_synthetic(tmp_path, monkeypatch, threshold=(0.46, "alignment of a test"))
    result = write_sweep_result(tmp_path)
    cells = {(cell["arm"], cell["lr"]): cell for cell in result["cells"]}
    half = cells["p0.5", 1e-3]
    assert (half["share"]["num_trained"], half["share"]["num_runs"]) == (7, 8)
    assert half["first_seeds"] == {"trained": 4, "runs": 5}
    assert cells["p0.6", 3e-3]["outcomes"] == {"finished": 0, "stuck": 0, "diverged": 5, "missing": 0}
    # A diverged run never passed: it is censored at the last step.
    assert cells["p0.6", 3e-3]["escape"]["num_censored"] == 5
    main, other = result["edges"]
    assert main["kind"] == "crossing"
    assert 0.4 < main["p50"] < 0.5
    assert other["kind"] == "all_stuck"
    check = {cell["p"]: cell for cell in result["longer"]}
    assert (check[0.4]["trained_before"], check[0.4]["trained_after"], check[0.4]["gained"]) == (1, 5, 4)
    assert check[0.4]["steps"] == 2 * STEPS
    # Losses of the synthetic runs rise by one nat per unit of p.
    assert result["loss_trend"]["nats_per_tenth"] == pytest.approx(0.1, abs=0.005)
    assert result["threshold"] == {"p": 0.46, "source": "alignment of a test", "agrees": True}
    assert {lr for arm, lr in cells if arm == THRESHOLD_ARM} == {1e-3, 3e-3}
    assert main["num_exponents"] == 4, "the threshold's arm is no point of the grid"


def test_no_edge_is_an_answer_and_the_check_goes_over_the_whole_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(run: PlannedRun) -> Ending:
        return "stuck", None, 3.1

    _, added = make_synthetic(tmp_path, monkeypatch, stuck, threshold=(0.4, "test"), rates=[1e-3])
    (longer, threshold) = additions(tmp_path)
    assert longer["exponents"] == [0.3, 0.5, 0.6]
    assert threshold["reason"] == "threshold"
    assert added == 3 * 5 + 5
    page = build_sweep_report(tmp_path).read_text()
    result = read_result(tmp_path, "sweep")
    assert "no edge in this grid" in result["verdict"][0]
    assert "cannot be checked" in result["verdict"][-1]
    assert result["threshold"]["agrees"] is None
    assert any("pre-norm arm trains in 0 of 5" in warning for warning in result["warnings"])
    Page(page)


def test_the_report_is_whole_and_rebuilt_without_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_synthetic(tmp_path, monkeypatch, name='<script>alert("x")</script>')
    text = build_sweep_report(tmp_path).read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    assert all(reference.startswith(("#", "figures/")) for reference in page.references)
    words = " ".join(" ".join(page.words).split())
    result = read_result(tmp_path, "sweep")
    for sentence in result["verdict"]:
        assert " ".join(sentence.partition(": ")[0].split()) in words
    names = {path.stem for path in (tmp_path / "figures").glob("*.csv")}
    assert names == {"sweep-shares", "sweep-outcomes", "sweep-escape", "sweep-losses"}
    shares = (tmp_path / "figures" / "sweep-shares.csv").read_text()
    # Source: arXiv 2607.13491, appendix C: at p = .45 two of five leave the floor.
    assert "paper,0.45,2,5" in shares
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "study.json").unlink()
    assert run(monkeypatch, "report", str(tmp_path)) == 0
    assert capsys.readouterr().out.strip().endswith("report.html")
    assert (tmp_path / "report.html").read_text() == text


def test_another_sweep_or_threshold_in_one_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_synthetic(tmp_path, monkeypatch, **SMALL, threshold=(0.4, "first"))
    with pytest.raises(ResultError, match="holds another sweep"):
        write_sweep(tmp_path, make_file(seeds=[1, 2]))
    with pytest.raises(ResultError, match="already has a threshold arm"):
        make_synthetic(tmp_path, monkeypatch, **SMALL, threshold=(0.5, "second"))


def test_a_threshold_that_is_no_exponent_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for p in (math.nan, math.inf):
        with pytest.raises(DepthscaleError):
            make_synthetic(tmp_path, monkeypatch, **SMALL, threshold=(p, "test"))
        assert not (tmp_path / "runs").exists()
        assert additions(tmp_path) == []


def test_a_sweep_that_ended_between_two_additions_makes_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_synthetic(tmp_path, monkeypatch)
    path = tmp_path / "study.json"
    document = json.loads(path.read_text())
    near, longer = document["later_additions"]
    path.write_text(json.dumps({**document, "later_additions": [near]}))
    make_synthetic(tmp_path, monkeypatch)
    assert [{**a, "added": ""} for a in additions(tmp_path)] == [{**a, "added": ""} for a in (near, longer)]


def test_seeds_that_are_better_at_every_exponent_make_no_trend() -> None:
    """Better seeds train at smaller p: over all runs the loss falls with 1/p, within each seed it does not."""
    levels = {1: 2.5, 2: 2.6, 3: 2.7, 4: 2.8}
    cells = [
        {
            "p": p,
            "runs": [
                {"seed": seed, "outcome": "finished", "loss_nats": levels[seed] + 0.001 * (-1) ** (index + seed)}
                for seed in range(1, index + 2)
            ],
        }
        for index, p in enumerate((0.3, 0.4, 0.5, 0.6))
    ]
    trend = sweep_analysis._loss_trend(cells, 0.95)
    low, high = trend["interval"]
    assert low < 0 < high
    # The one run of seed 4 has no other beside it.
    assert (trend["num_runs"], trend["exponents"]) == (9, [0.3, 0.4, 0.5, 0.6])
    assert sweep_analysis._loss_trend(cells[:2], 0.95) is None


def test_runs_of_another_rate_or_no_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path, make_file(**SMALL))
    with pytest.raises(ResultError, match="no run under"):
        write_sweep_result(tmp_path)
    make_synthetic(tmp_path, monkeypatch, **SMALL)
    path = tmp_path / "runs" / "p0.3-lr0.001-s1" / "results" / "training.json"
    path.write_text(path.read_text().replace('"lr": 0.001', '"lr": 0.5'))
    with pytest.raises(ResultError, match="delete it and run the sweep again"):
        write_sweep_result(tmp_path)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"main_rate": 0.5}, "main_rate 0.5 is not among"),
        ({"exponents": [0.5, 0.3]}, "ascending"),
        ({"extra_seeds": [5]}, "repeat"),
        ({"arms": [{"name": "p0.3"}]}, "rename"),
        ({"exponent": [0.3]}, "did you mean 'sweep.exponents'"),
    ],
)
def test_a_faulty_file_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        make_file(**changes)


@pytest.mark.parametrize("name", sweep_presets())
def test_presets_are_valid_and_hold_the_grid_of_the_paper(name: str) -> None:
    file = read_sweep_file(name, [])
    runs = planned_runs(file, [])
    assert len({run.name for run in runs}) == len(runs)
    plan = runs[0].config.plan.build()
    assert plan.unrolled_depth >= 36
    assert plan.num_rounds == 3
    assert len(file.sweep.seeds) >= 5
    assert set(file.sweep.exponents) >= {0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6}
    longer = file.exponent_run(0.5, 1e-3, 1, step_factor=2)
    assert longer.train.steps == 2 * runs[0].config.train.steps
    assert longer.train.warmup_steps == 2 * runs[0].config.train.warmup_steps


def test_bad_words_on_the_command_line_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, fault in [
        ((), "give either a sweep file or --preset"),
        (("--preset", "swep"), "did you mean 'sweep'"),
        (("--preset", "sweep", "--threshold", "0.4"), "go together"),
        (("--preset", "sweep", "--threshold", "-3", "--threshold-source", "x"), "threshold"),
    ]:
        assert run(monkeypatch, "sweep", *arguments) == 2
        assert fault in one_line(capsys.readouterr().err)


@pytest.mark.slow
def test_a_real_sweep_is_made_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = sweep_tables(exponents=[0.25, 0.5], rates=[3e-3], main_rate=3e-3, seeds=[1, 2], extra_seeds=[3])
    tables["data"] |= {"corpus": str(write_corpus(tmp_path / "corpus")), "tuning_fraction": 0.2, "report_fraction": 0.2}
    tables["train"] |= {"steps": 12, "warmup_steps": 2, "eval_every": 4, "num_threads": 1}
    write_toml(tmp_path / "sweep.toml", validate(SweepFile, tables, "test"))
    assert read_toml(tmp_path / "sweep.toml")["sweep"]["seeds"] == [1, 2]
    arguments = ("sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out"), "--workers", "2")
    assert run(monkeypatch, *arguments) == 0
    assert "Edge at rate 0.003 (main)" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "results" / "sweep.json").read_text())
    assert result["schema_version"] == 1
    assert sum(cell["outcomes"]["missing"] for cell in result["cells"]) == 0
    assert result["setting"]["num_runs"] >= 2 * (2 + 1)

"""Downstream tasks in a comparison: means, standard errors, differences paired over items and over seeds."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_study import LOSSES, write_synthetic_study

from depthscale.errors import ResultError
from depthscale.reports.comparison_report import build_report
from depthscale.runs.results import write_result
from depthscale.studies.comparison import compare_runs
from depthscale.studies.paired import PairedInterval
from depthscale.studies.study import task_job
from depthscale.studies.task_comparison import _verdict

SEEDS = (0, 1, 2, 3, 4)
NUM_ITEMS = 200

Outcomes = Callable[[str, int, int], list[float]]


def with_tasks(directory: Path, outcomes: Outcomes, keys: tuple[str, ...] | None = None) -> Path:
    """The synthetic study with a task result in every run."""
    write_synthetic_study(directory)
    for arm, rounds in LOSSES:
        for seed in SEEDS:
            write_scores(directory, arm, rounds, seed, outcomes(arm, rounds, seed), keys)
    return directory


def write_scores(
    directory: Path, arm: str, rounds: int, seed: int, values: list[float], keys: tuple[str, ...] | None = None
) -> None:
    score = {
        "task": "local_continuation",
        "num_fewshot": 0,
        "metric": "acc",
        "value": statistics.fmean(values),
        "standard_error": None,
        "num_items": len(values),
        "higher_is_better": True,
        "item_keys": list(keys or map(str, range(len(values)))),
        "outcomes": values,
    }
    write_result(directory / "runs" / f"{arm}-r{rounds}-s{seed}", "tasks", {"tasks": ["local"], "scores": [score]})


def score_of(task: str, values: list[float], **more: Any) -> dict[str, Any]:
    score = {
        "task": task,
        "num_fewshot": 0,
        "metric": "acc",
        "value": statistics.fmean(values) if values else 0.0,
        "standard_error": None,
        "num_items": len(values),
        "higher_is_better": True,
        "item_keys": [f"{task}-{n}" for n in range(len(values))],
        "outcomes": values,
    }
    return score | more


def with_scores(directory: Path, scores: Callable[[str, int, int], list[dict[str, Any]]]) -> Path:
    write_synthetic_study(directory)
    for arm, rounds in LOSSES:
        for seed in SEEDS:
            run = directory / "runs" / f"{arm}-r{rounds}-s{seed}"
            write_result(run, "tasks", {"tasks": ["x"], "limit": None, "scores": scores(arm, rounds, seed)})
    return directory


def skilled(arm: str, rounds: int, seed: int) -> list[float]:
    """Items of very different difficulty, shared by all runs; deeploop at R = 4 is right a little more often."""
    difficulty = np.random.default_rng(7).uniform(size=NUM_ITEMS)
    chance = np.random.default_rng([seed, rounds, len(arm)]).uniform(-0.05, 0.05, NUM_ITEMS)
    skill = 0.5 + (0.15 if (arm, rounds) == ("deeploop", 4) else 0.0)
    return [float(value) for value in difficulty + chance < skill]


def found(pairs: list[dict[str, Any]], question: str, arm: str, rounds: int) -> dict[str, Any]:
    return next(p for p in pairs if (p["question"], p["a"]["arm"], p["a"]["rounds"]) == (question, arm, rounds))


def test_means_and_standard_errors_are_over_items(tmp_path: Path) -> None:
    tasks = compare_runs(with_tasks(tmp_path / "study", skilled))["tasks"]
    assert len(tasks["cells"]) == len(LOSSES)
    for cell in tasks["cells"]:
        runs = np.array([skilled(cell["arm"], cell["rounds"], seed) for seed in SEEDS])
        items = runs.mean(axis=0)
        assert cell["mean"] == pytest.approx(runs.mean())
        assert cell["standard_error"] == pytest.approx(items.std(ddof=1) / NUM_ITEMS**0.5)
        assert (cell["num_items"], cell["num_runs"]) == (NUM_ITEMS, 5)


def test_differences_are_paired_over_items(tmp_path: Path) -> None:
    tasks = compare_runs(with_tasks(tmp_path / "study", skilled))["tasks"]
    pair = found(tasks["pairs"], "rule", "deeploop", 4)
    a, b = (np.array([skilled(arm, 4, seed) for seed in SEEDS]) for arm in ("deeploop", "pre"))
    difference = a.mean(axis=0) - b.mean(axis=0)
    assert pair["mean"] == pytest.approx(difference.mean())
    assert pair["standard_error"] == pytest.approx(difference.std(ddof=1) / NUM_ITEMS**0.5)
    assert pair["interval"]["num_pairs"] == NUM_ITEMS
    assert pair["interval_seeds"]["mean"] == pytest.approx(pair["mean"])
    assert pair["interval_seeds"]["num_pairs"] == 5
    assert pair["verdict"] == "a_higher"
    # Items differ far more than arms do: unpaired, the same difference would drown.
    cells = {(cell["arm"], cell["rounds"]): cell["standard_error"] for cell in tasks["cells"]}
    assert pair["standard_error"] < 0.8 * (cells["deeploop", 4] ** 2 + cells["pre", 4] ** 2) ** 0.5
    assert found(tasks["pairs"], "looping", "deeploop", 4)["verdict"] == "a_higher"
    assert found(tasks["pairs"], "rule", "deepnorm", 4)["verdict"] == "not_decided"


def test_a_difference_of_one_lucky_seed_is_not_decided(tmp_path: Path) -> None:
    """Over its items it is beyond doubt; over seeds it is one run of five."""

    def lucky(arm: str, rounds: int, seed: int) -> list[float]:
        return [1.0] * NUM_ITEMS if (arm, rounds, seed) == ("deeploop", 4, 0) else skilled("pre", rounds, seed)

    pair = found(compare_runs(with_tasks(tmp_path / "study", lucky))["tasks"]["pairs"], "rule", "deeploop", 4)
    assert pair["interval"]["low"] > 0
    assert pair["interval_seeds"]["low"] < 0
    assert pair["verdict"] == "not_decided"


def test_a_study_without_tasks_has_none(tmp_path: Path) -> None:
    assert compare_runs(write_synthetic_study(tmp_path / "study"))["tasks"] is None
    assert 'id="tasks"' not in build_report(tmp_path / "study").read_text()


def test_different_items_do_not_compare(tmp_path: Path) -> None:
    study = with_tasks(tmp_path / "study", skilled)
    write_scores(study, "deeploop", 4, 2, skilled("deeploop", 4, 2), tuple(f"x{n}" for n in range(NUM_ITEMS)))
    with pytest.raises(ResultError, match="asked different items of local_continuation"):
        compare_runs(study)


def test_runs_that_were_not_asked_are_left_out_of_the_pairs(tmp_path: Path) -> None:
    study = with_tasks(tmp_path / "study", skilled)
    (study / "runs" / "deeploop-r4-s0" / "results" / "tasks.json").unlink()
    pair = found(compare_runs(study)["tasks"]["pairs"], "rule", "deeploop", 4)
    assert pair["seeds"] == [1, 2, 3, 4]
    assert pair["verdict"] == "not_decided"  # four seeds decide nothing


def test_the_report_has_both_tables(tmp_path: Path) -> None:
    page = build_report(with_tasks(tmp_path / "study", skilled)).read_text()
    assert page.count("local_continuation") > len(LOSSES)
    assert "Downstream tasks" in page
    assert "deeploop, R = 4 against pre, R = 4" in page
    comparison = json.loads((tmp_path / "study" / "results" / "comparison.json").read_text())
    assert comparison["tasks"]["pairs"]


def test_the_job_is_the_verb_with_the_runs_directory(tmp_path: Path) -> None:
    job = task_job(tmp_path, ("local", "deeploop"))
    assert job.arguments == ("evaluate", str(tmp_path), "--tasks", "local,deeploop")
    assert job.result == "tasks"
    assert not job.done


def test_a_metric_that_is_no_mean_over_items_has_scores_but_no_differences(tmp_path: Path) -> None:
    """Of a perplexity the items are log-likelihoods: their differences point the other way."""

    def perplexities(arm: str, rounds: int, seed: int) -> list[dict[str, Any]]:
        logs = [-value - 1 for value in skilled(arm, rounds, seed)]
        more = {"metric": "perplexity", "value": 10.0 + seed, "standard_error": 0.25, "higher_is_better": False}
        return [score_of("lambada_openai", logs, **more)]

    tasks = compare_runs(with_scores(tmp_path / "study", perplexities))["tasks"]
    assert tasks["pairs"] == []
    assert [(cell["mean"], cell["standard_error"]) for cell in tasks["cells"]] == [(12.0, 0.25)] * len(LOSSES)


def test_intervals_on_opposite_sides_decide_nothing() -> None:
    above, below = PairedInterval(1.0, 0.5, 1.5, 0.95, 9), PairedInterval(-1.0, -1.5, -0.5, 0.95, 9)
    assert _verdict(above, below) == _verdict(below, above) == "not_decided"
    assert _verdict(above, above) == "a_higher"
    assert _verdict(below, below) == "b_higher"


MEMBERS = ("first", "second", "third")
SIZES = (40, 100, 250)


def test_a_groups_difference_is_the_mean_of_its_tasks(tmp_path: Path) -> None:
    """Unweighted, though the tasks are of very different size; se = sqrt(sum se^2) / number of tasks."""

    def grouped(arm: str, rounds: int, seed: int) -> list[dict[str, Any]]:
        drawn = [(skilled(arm, rounds, 31 * seed + place) * 2)[:size] for place, size in enumerate(SIZES)]
        scores = [score_of(task, values) for task, values in zip(MEMBERS, drawn, strict=True)]
        mean = statistics.fmean(score["value"] for score in scores)
        # One more group, weighted by size: its score is not the mean of the tasks', so theirs say nothing of it.
        weighted = statistics.fmean(value for values in drawn for value in values)
        return [
            *scores,
            score_of("group", [], value=mean, members=list(MEMBERS)),
            score_of("weighted", [], value=weighted, standard_error=0.25, members=list(MEMBERS)),
        ]

    def outcomes(arm: str, place: int) -> np.ndarray:
        return np.array([grouped(arm, 4, seed)[place]["outcomes"] for seed in SEEDS]).mean(axis=0)

    tasks = compare_runs(with_scores(tmp_path / "study", grouped))["tasks"]
    pair = found([p for p in tasks["pairs"] if p["task"] == "group"], "rule", "deeploop", 4)
    differences = [outcomes("deeploop", place) - outcomes("pre", place) for place in range(3)]
    assert pair["mean"] == pytest.approx(np.mean([d.mean() for d in differences]))
    errors = [d.std(ddof=1) / len(d) ** 0.5 for d in differences]
    assert pair["standard_error"] == pytest.approx(np.sqrt(np.sum(np.square(errors))) / 3)
    assert pair["interval"]["high"] - pair["mean"] == pytest.approx(1.959964 * pair["standard_error"], rel=1e-6)
    assert pair["interval_seeds"]["mean"] == pytest.approx(pair["mean"])
    cell = next(c for c in tasks["cells"] if (c["task"], c["arm"], c["rounds"]) == ("group", "deeploop", 4))
    items = [outcomes("deeploop", place) for place in range(3)]
    assert cell["standard_error"] == pytest.approx(np.sqrt(sum(i.var(ddof=1) / len(i) for i in items)) / 3)
    assert cell["num_items"] == sum(SIZES)
    assert not [p for p in tasks["pairs"] if p["task"] == "weighted"]
    assert {c["standard_error"] for c in tasks["cells"] if c["task"] == "weighted"} == {0.25}


@pytest.mark.parametrize(
    ("stored", "done"),
    [
        ({}, True),
        ({"tasks": ["local_cloze"]}, False),
        ({"limit": 6}, False),
        ({"scores": [{"num_fewshot": 1}]}, False),
        ({"scores": None}, False),
    ],
)
def test_only_the_whole_answer_to_what_was_asked_is_done(tmp_path: Path, stored: dict[str, Any], done: bool) -> None:
    whole = {"tasks": ["local"], "limit": None, "scores": [{"num_fewshot": 0}]}
    write_result(tmp_path, "tasks", whole | stored)
    assert task_job(tmp_path, ("local", "local_cloze")).done is done

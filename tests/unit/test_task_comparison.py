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
from depthscale.studies.study import task_job

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

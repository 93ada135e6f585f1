"""Comparisons that a study names beforehand, from run directories whose losses are known."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic_study import ARMS, STEPS, TOKENS_PER_STEP, give_two_budgets, write_synthetic_study

from depthscale.reports.comparison_report import build_report
from depthscale.runs.results import write_result
from depthscale.studies.comparison import compare_runs

RIVALS = (
    *ARMS,
    {"name": "pre_again", "weight_seed_shift": 1000},
    {"name": "pre_longer", "train": {"steps": 1680}},
    {"name": "pre_wider", "model": {"hidden_size": 128}, "train": {"steps": 1680}},
    {"name": "stacked", "plan": {"kind": "stacked"}},
)
LOSSES = {
    ("pre", 1): 3.10,
    ("pre", 4): 2.98,
    ("pre_again", 4): 2.98,
    ("deeploop", 4): 2.90,
    ("pre_longer", 1): 2.93,
    ("pre_wider", 1): 2.99,
    ("stacked", 4): 2.975,
}
#: The generator's FLOPs per token are 2.8 times as many at R = 4 as at R = 1: 600 steps of R = 4 cost 1680 of R = 1.
LONG = {"step": 1680, "steps_planned": 1680, "tokens": 1680 * TOKENS_PER_STEP}
SEEDS = (0, 1, 2, 3, 4)


def cells(*names: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"arm": arm, "rounds": rounds} for arm, rounds in names]


COMPARISONS = [
    {"terms": "same_parameters", "a": cells(("pre", 4)), "b": cells(("pre_longer", 1))},
    {"terms": "equal_tokens", "a": cells(("deeploop", 4)), "b": cells(("stacked", 4))},
    {"terms": "equal_flops", "a": cells(("deeploop", 4)), "b": cells(("pre_longer", 1), ("pre_wider", 1))},
    {"terms": "equal_time", "a": cells(("pre", 4)), "b": cells(("pre", 1))},
]


def write(directory: Path, **options: Any) -> Path:
    changes: dict[tuple[str, int, int], dict[str, Any]] = {}
    for seed in SEEDS:
        changes |= {("pre_longer", 1, seed): dict(LONG), ("pre_wider", 1, seed): dict(LONG)}
        changes["stacked", 4, seed] = {"budget": {"parameters": 400_000}}
    for key, value in options.pop("training", {}).items():
        changes[key] = {**changes.get(key, {}), **value}
    settings: dict[str, Any] = {"losses": LOSSES, "all_arms": RIVALS, "study": {"comparisons": COMPARISONS}}
    return write_synthetic_study(directory, training=changes, with_tuning=False, **(settings | options))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("named"))


@pytest.fixture(scope="module")
def comparison(study: Path) -> dict[str, Any]:
    return compare_runs(study)


def named(comparison: dict[str, Any], terms: str) -> dict[str, Any]:
    return next(entry for entry in comparison["named"] if entry["question"] == terms)


def test_each_of_the_four_has_its_interval_and_its_verdict(comparison: dict[str, Any]) -> None:
    verdicts = {entry["question"]: entry["verdict"] for entry in comparison["named"]}
    assert verdicts == {
        "same_parameters": "b_better", "equal_tokens": "a_better", "equal_flops": "a_better", "equal_time": "a_better",
    }  # fmt: skip
    for entry in comparison["named"]:
        assert entry["interval"]["num_pairs"] == 5
        assert entry["equivalence"]["margin"] == 0.02
        assert entry["words"] in comparison["verdict"]


def test_terms_say_what_is_equal_and_what_is_not(comparison: dict[str, Any]) -> None:
    same = named(comparison, "same_parameters")
    assert "parameters equal" in same["basis"]
    assert "training FLOPs equal" in same["basis"]
    assert "tokens × 0.36" in same["basis"]
    assert same["broken"] == []
    tokens = named(comparison, "equal_tokens")
    assert "tokens equal" in tokens["basis"]
    assert "parameters × 0.41" in tokens["basis"]


def test_terms_that_the_runs_did_not_keep_are_said(comparison: dict[str, Any]) -> None:
    # The generator's runs take 10 s and 5 s more for every round: 30 s at R = 4, 15 s at R = 1.
    assert named(comparison, "equal_time")["broken"] == ["seconds"]
    assert named(comparison, "equal_time")["words"].endswith("The terms were not kept: 30 against 15 seconds.")
    assert any("Equal measured time is not what the runs show" in warning for warning in comparison["warnings"])
    assert not any("different numbers of tokens" in warning for warning in comparison["warnings"])


def test_the_best_shape_is_chosen_on_the_tuning_split_alone(tmp_path: Path) -> None:
    """On the tuning split the wider model is better, on the report split the longer one: the wider one stands."""
    losses = {"tuning": {"loss_nats": 2.5}, "report": {"loss_nats": 2.99, "bits_per_byte": 1.4}}
    final = {("pre_wider", 1, seed): {"final": losses} for seed in SEEDS}
    entry = named(compare_runs(write(tmp_path, training=final)), "equal_flops")
    assert entry["b"] == {"arm": "pre_wider", "rounds": 1}
    chosen = {shape["arm"]: shape["chosen"] for shape in entry["shapes"]["b"]}
    assert chosen == {"pre_longer": False, "pre_wider": True}
    assert {shape["judged_on"] for shape in entry["shapes"]["b"]} == {"the tuning split of the same runs"}


@pytest.mark.parametrize("all_tuned", [True, False])
def test_shapes_are_judged_by_one_measure(tmp_path: Path, all_tuned: bool) -> None:
    """Tuning runs of one shape are no measure beside another shape's own runs."""
    directory = write(tmp_path)
    losses = {"pre_longer": 2.99, "pre_wider": 2.92 if all_tuned else None}
    tuned = [{"arm": arm, "rounds": 1, "best_lr": 1e-3, "best_loss_nats": loss} for arm, loss in losses.items() if loss]
    write_result(directory, "tuning", {"budget": None, "cells": tuned})
    entry = named(compare_runs(directory), "equal_flops")
    assert len({shape["judged_on"] for shape in entry["shapes"]["b"]}) == 1
    assert entry["b"]["arm"] == ("pre_wider" if all_tuned else "pre_longer")


def test_flops_are_those_of_the_rounds_that_were_drawn(tmp_path: Path) -> None:
    directory = write(tmp_path)
    for path in directory.glob("runs/pre-r4-s*/results/training.json"):
        result = json.loads(path.read_text())
        result["budget"]["training_flops"] *= 2
        path.write_text(json.dumps(result))
    entry = named(compare_runs(directory), "same_parameters")
    assert "training FLOPs × 2.00" in entry["basis"]
    assert entry["broken"] == ["training FLOPs"]


def test_a_cell_of_our_runs_and_recorded_ones_has_its_page(tmp_path: Path) -> None:
    unknown = {"groups": None, "visits": None, "optimization": {"share_clipped": None}}
    page = build_report(write(tmp_path, training={("pre", 4, 0): unknown}))
    assert page.exists()


def test_an_arm_against_itself_shows_no_difference(comparison: dict[str, Any]) -> None:
    (again,) = comparison["again"]
    assert again["a"] == {"arm": "pre_again", "rounds": 4}
    assert again["verdict"] == "equivalent"
    assert again["equivalence"]["verdict"] == "equivalent"
    assert not any(pair["a"]["arm"] == "pre_again" for pair in comparison["pairs"])


def test_what_an_arm_differs_from_itself_by_is_no_verdict_on_others(tmp_path: Path) -> None:
    """pre again at 2.83 instead of 2.98: deeploop's 2.90 is then nothing, and stacked at 2.5 still something."""
    losses = LOSSES | {("pre_again", 4): 2.83, ("stacked", 4): 2.50}
    rates = [
        {"arm": arm, "rounds": 4, "lr": lr, "source": "tuning"} for arm, lr in (("pre", 0.009), ("pre_again", 0.003))
    ]
    directory = write(tmp_path, losses=losses, study={"comparisons": COMPARISONS, "rates": rates})
    comparison = compare_runs(directory)
    (again,) = comparison["again"]
    assert again["verdict"] == "a_better"
    assert "the rates chosen for them, 0.003 and 0.009" in again["words"]
    assert comparison["warnings"][0].startswith("pre_again and pre are one arm and differ by 0.152 nats at R = 4")
    rule = next(pair for pair in comparison["pairs"] if (pair["question"], pair["a"]["arm"]) == ("rule", "deeploop"))
    assert rule["interval"]["high"] < 0
    assert (rule["verdict"], rule["within_again"]) == ("not_decided", True)
    assert "not decided, the same arm differs from itself by 0.152 nats; difference −0.0790" in rule["words"]
    sentence = next(sentence for sentence in comparison["verdict"] if sentence.startswith("Rule at R = 4"))
    assert "not beyond what the same arm differs from itself by: deeploop (−0.0790" in sentence
    assert named(comparison, "equal_tokens")["verdict"] == "b_better"
    assert "not decided" in named(comparison, "same_parameters")["words"]
    text = build_report(directory).read_text(encoding="utf-8")
    assert "within A/A</span>" in text


def test_an_empty_cell_and_what_was_added_later_are_said(tmp_path: Path) -> None:
    later = {"time": "2026-09-01T00:00:00+00:00", "results_before": 25, "seeds": [4], "cells": [["stacked", 4, None]]}
    directory = write(
        tmp_path,
        outcomes={("stacked", 4, seed): "missing" for seed in SEEDS},
        document={"later_additions": [{**later, "comparisons": COMPARISONS[1:2]}]},
    )
    comparison = compare_runs(directory)
    assert any("nothing is said of it: stacked at R = 4" in warning for warning in comparison["warnings"])
    assert comparison["warnings"][0] == (
        "Added on 2026-09-01, when 25 runs had a result: seeds 4; stacked at R = 4; 1 comparison."
    )
    page = build_report(directory).read_text(encoding="utf-8")
    assert "after 25 results: seeds 4; stacked at R = 4; 1 comparison" in page
    late, others = named(comparison, "equal_tokens"), named(comparison, "equal_flops")
    assert "no seed has a run on both sides" in late["words"]
    assert late["words"].endswith("Added on 2026-09-01, when 25 runs had a result.")
    assert late["added"] == {"time": later["time"], "results_before": 25, "pairs": None}
    assert others["added"]["pairs"] == 1
    assert others["words"].endswith("1 of 5 pairs added on 2026-09-01, when 25 runs had a result.")
    marked = next(cell for cell in comparison["cells"] if cell["arm"] == "deeploop")
    assert [run["added_later"] for run in marked["runs"]] == [False, False, False, False, True]
    text = build_report(directory).read_text(encoding="utf-8")
    assert "4, added later" in text
    assert "written down before the first run, but for those" in " ".join(text.split())
    assert text.count("added 2026-09-01</span>") == 4
    assert "added later</span>" in text


def test_fresh_and_repeated_data_are_told_apart(comparison: dict[str, Any]) -> None:
    # The generator's training split has 900,000 tokens: 600 steps are 1.4 epochs of it.
    assert STEPS * TOKENS_PER_STEP > 900_000
    assert {cell["data_seen"] for cell in comparison["cells"]} == {"repeated"}
    assert not any("fresh" in entry["words"] for entry in comparison["named"])


def test_a_side_of_fresh_text_against_one_that_repeats_is_said(tmp_path: Path) -> None:
    fresh = {("deeploop", 4, seed): {"data": {"epochs": 0.25}} for seed in SEEDS}
    comparison = compare_runs(write(tmp_path, training=fresh))
    seen = {cell["arm"]: cell["data_seen"] for cell in comparison["cells"] if cell["rounds"] == 4}
    assert (seen["deeploop"], seen["stacked"]) == ("fresh", "repeated")
    entry = named(comparison, "equal_tokens")
    assert entry["words"].endswith("The first side saw fresh text (0.25 epochs), the second repeated (1.37).")
    assert "fresh" not in named(comparison, "same_parameters")["words"]


def test_sides_shown_to_be_equal_are_called_so(tmp_path: Path) -> None:
    """2.98 against 2.981 with a margin of 0.02: no direction, and more than "not decided"."""
    losses = LOSSES | {("pre_longer", 1): 2.981, ("deeploop", 4): 2.979}
    comparison = compare_runs(write(tmp_path, losses=losses))
    entry = named(comparison, "same_parameters")
    assert entry["verdict"] == "equivalent"
    assert ": equivalent within ±0.020 nats, difference" in entry["words"]
    rule = next(sentence for sentence in comparison["verdict"] if sentence.startswith("Rule at R = 4"))
    assert "equivalent within ±0.020 nats: deeploop (" in rule


def test_the_regime_is_said(comparison: dict[str, Any]) -> None:
    # 600 steps of 2,048 tokens for 164,032 parameters, from 900,000 tokens.
    assert comparison["regime"][0] == "pre at R = 1: 7.5 tokens per parameter, 1.37 epochs of repeated data."


def test_a_study_of_an_earlier_version_is_still_reported(tmp_path: Path) -> None:
    """The published demonstration: version 1 of study.json, a comparison without named ones, no runs."""
    demo = Path(__file__).parents[2] / "docs" / "results" / "demo"
    (tmp_path / "results").mkdir()
    shutil.copy(demo / "study.json", tmp_path)
    shutil.copy(demo / "comparison.json", tmp_path / "results")
    text = build_report(tmp_path).read_text(encoding="utf-8")
    assert "Looping, R = 4 against R = 1" in text
    assert 'id="named"' not in text


def test_the_page_shows_the_terms_first(study: Path, comparison: dict[str, Any]) -> None:
    text = build_report(study).read_text(encoding="utf-8")
    assert text.index('id="named"') < text.index('id="table"')
    flat = re.sub(r"<[^>]*>|\s+", " ", text)
    for entry in comparison["named"]:
        assert entry["words"].split(":")[0] in flat
    assert "not seconds" in flat
    for name in ("difference-named", "loss-flops"):
        assert (study / "figures" / f"{name}.csv").exists()
        assert (study / "figures" / f"{name}.svg").exists()


def test_runs_that_never_trained_are_not_called_equal(tmp_path: Path) -> None:
    """Ten runs at ln V differ by nothing, and that says nothing of the arms."""
    lost = {(arm, 4, seed): "diverged" for arm in ("pre", "deeploop") for seed in SEEDS}
    losses = {cell: loss for cell, loss in LOSSES.items() if cell[0] != "pre_again"}
    comparison = compare_runs(write(tmp_path, losses=losses, outcomes=lost))
    rule = next(pair for pair in comparison["pairs"] if (pair["question"], pair["a"]["arm"]) == ("rule", "deeploop"))
    assert set(rule["differences"]) == {0.0}
    assert rule["verdict"] == rule["equivalence"]["verdict"] == "not_decided"
    assert "equal within the margin, but the runs that trained do not show it" in rule["words"]


def test_an_arm_that_differs_from_itself_from_four_pairs_is_a_caution(tmp_path: Path) -> None:
    losses = LOSSES | {("pre_again", 4): 2.83, ("stacked", 4): 2.901}
    directory = write(tmp_path, losses=losses, outcomes={("pre_again", 4, 0): "missing"})
    comparison = compare_runs(directory)
    (again,) = comparison["again"]
    assert (again["verdict"], again["differs"]) == ("not_decided", True)
    assert any("differ by 0.15" in warning for warning in comparison["warnings"])
    # deeploop is .08 below pre, less than pre differs from itself by; nor is it called equal to stacked.
    rule = next(pair for pair in comparison["pairs"] if (pair["question"], pair["a"]["arm"]) == ("rule", "deeploop"))
    assert rule["within_again"]
    entry = named(comparison, "equal_tokens")
    assert entry["verdict"] == entry["equivalence"]["verdict"] == "not_decided"
    assert "equal within the margin, but the same arm differs from itself by 0.15" in entry["words"]
    assert "a difference where there is none" in build_report(directory).read_text(encoding="utf-8")


def test_a_small_difference_from_itself_leaves_a_larger_margin_of_equality(tmp_path: Path) -> None:
    losses = LOSSES | {("pre_again", 4): 2.984, ("deeploop", 4): 2.981}
    comparison = compare_runs(write(tmp_path, losses=losses, spread=0.0005))
    (again,) = comparison["again"]
    assert again["differs"]
    assert again["equivalence"]["verdict"] == "equivalent"
    rule = next(pair for pair in comparison["pairs"] if (pair["question"], pair["a"]["arm"]) == ("rule", "deeploop"))
    assert rule["verdict"] == "equivalent"


def test_pairs_and_comparisons_that_came_later_are_counted(tmp_path: Path) -> None:
    """Additions as the first version recorded them: two seeds, then one comparison, by number alone."""
    later = {"time": "2026-09-01T00:00:00+00:00", "results_before": 18, "seeds": [3, 4], "cells": [], "comparisons": 0}
    last = {**later, "time": "2026-09-02T00:00:00+00:00", "results_before": 30, "seeds": [], "comparisons": 1}
    comparison = compare_runs(write(tmp_path, document={"later_additions": [later, last]}))
    first = named(comparison, "same_parameters")
    assert first["words"].endswith("2 of 5 pairs added on 2026-09-01, when 18 runs had a result.")
    assert first["added"]["pairs"] == 2
    added = named(comparison, "equal_time")
    assert added["words"].endswith("Added on 2026-09-02, when 30 runs had a result.")
    assert added["added"]["pairs"] is None
    assert any(warning.endswith("when 30 runs had a result: 1 comparison.") for warning in comparison["warnings"])


def test_a_cell_that_came_later_marks_its_comparisons(tmp_path: Path) -> None:
    later = {"time": "2026-09-01T00:00:00+00:00", "results_before": 25, "cells": [["pre_wider", 1, None]] * 2}
    final = {
        ("pre_wider", 1, seed): {
            "final": {"tuning": {"loss_nats": 2.5}, "report": {"loss_nats": 2.99, "bits_per_byte": 1.4}}
        }
        for seed in SEEDS
    }
    comparison = compare_runs(write(tmp_path, training=final, document={"later_additions": [later]}))
    assert named(comparison, "equal_flops")["added"]["results_before"] == 25
    assert comparison["warnings"][0].endswith("25 runs had a result: pre_wider at R = 1."), "once, at all its budgets"
    assert named(comparison, "equal_tokens")["added"] is None


def test_budgets_of_one_comparison_stand_together(tmp_path: Path) -> None:
    directory = write(tmp_path, study={"comparisons": COMPARISONS[:2], "budgets": [300, 600]})
    give_two_budgets(directory)
    found = [(entry["question"], entry["a"]["budget"]) for entry in compare_runs(directory)["named"]]
    assert found == [(terms, b) for terms in ("same_parameters", "equal_tokens") for b in (300, 600)]


def test_counts_that_differ_by_little_are_printed_whole(tmp_path: Path) -> None:
    few = {("stacked", 4, seed): {"step": STEPS, "tokens": STEPS * TOKENS_PER_STEP - 1} for seed in SEEDS}
    entry = named(compare_runs(write(tmp_path, training=few)), "equal_tokens")
    assert entry["broken"] == ["tokens"]
    assert "The terms were not kept: 1,228,800 against 1,228,799 tokens." in entry["words"]
    assert "tokens equal" not in entry["basis"]


def test_a_study_that_has_just_begun_claims_nothing_of_what_has_not_run(tmp_path: Path) -> None:
    """With one cell made, no pair is known: no tokens are called equal or 0, and no chart is drawn of no pair."""
    others = {(arm, rounds, seed): "missing" for arm, rounds in LOSSES if (arm, rounds) != ("pre", 4) for seed in SEEDS}
    directory = write(tmp_path, outcomes=others)
    comparison = compare_runs(directory)
    assert all(entry["interval"] is None for entry in (*comparison["pairs"], *comparison["named"]))
    looping = next(pair for pair in comparison["pairs"] if (pair["question"], pair["a"]["arm"]) == ("looping", "pre"))
    assert looping["basis"] == "tokens of a side not known"
    page = build_report(directory).read_text(encoding="utf-8")
    assert "equal tokens)" not in page
    assert "against 0 tokens" not in page
    assert not (directory / "figures" / "difference-named.svg").exists()

"""The comparison of a study, from run directories whose losses are known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_study import LOSSES, UNIFORM_LOSS, UNIGRAM_LOSS, write_synthetic_study

from depthscale.errors import ResultError
from depthscale.runs.results import read_result
from depthscale.studies.comparison import compare_runs, write_comparison


def pair(comparison: dict[str, Any], question: str, arm: str, rounds: int) -> dict[str, Any]:
    return next(
        p for p in comparison["pairs"] if p["question"] == question and p["a"] == {"arm": arm, "rounds": rounds}
    )


def cell(comparison: dict[str, Any], arm: str, rounds: int) -> dict[str, Any]:
    return next(c for c in comparison["cells"] if (c["arm"], c["rounds"]) == (arm, rounds))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return compare_runs(write_synthetic_study(tmp_path_factory.mktemp("healthy")))


def test_clear_differences_get_a_direction_and_small_ones_do_not(healthy: dict[str, Any]) -> None:
    looping = pair(healthy, "looping", "pre", 4)
    assert looping["verdict"] == "a_better"
    assert looping["interval"]["high"] < 0
    assert "lower loss" in looping["words"]
    small = pair(healthy, "rule", "deepnorm", 4)
    assert small["verdict"] == "equivalent"
    assert small["interval"]["low"] < 0 < small["interval"]["high"]
    assert "equivalent within ±0.020 nats" in small["words"]


def test_what_neither_differs_nor_is_shown_equal_is_not_decided(tmp_path: Path) -> None:
    noisy = pair(compare_runs(write_synthetic_study(tmp_path, spread=0.04)), "rule", "deepnorm", 4)
    assert noisy["verdict"] == noisy["equivalence"]["verdict"] == "not_decided"
    assert "not decided, the interval includes 0" in noisy["words"]
    assert "80 % power" in noisy["words"]


def test_pairing_removes_the_seed_effect(healthy: dict[str, Any]) -> None:
    looping = pair(healthy, "looping", "pre", 4)
    assert looping["seeds"] == [0, 1, 2, 3, 4]
    # The seed effect (sd 0.03) is in each cell's spread and in no difference (noise 0.008 on either side).
    assert cell(healthy, "pre", 4)["loss_nats"]["sd"] > 0.02
    assert max(abs(d - (LOSSES["pre", 4] - LOSSES["pre", 1])) for d in looping["differences"]) < 5 * 0.008 * 2**0.5


def test_looping_says_its_flops_and_rules_share_them(healthy: dict[str, Any]) -> None:
    ratio = cell(healthy, "pre", 4)["flops_ratio_to_r1"]
    # (65536 + 4 * 98304) / (65536 + 98304), the generator's FLOPs per token.
    assert ratio == pytest.approx(2.8)
    assert "equal tokens, 2.80 times the training FLOPs" in pair(healthy, "looping", "pre", 4)["words"]
    assert "equal tokens and FLOPs" in pair(healthy, "rule", "deeploop", 4)["words"]


def test_every_question_is_asked_once(healthy: dict[str, Any]) -> None:
    asked = [(p["question"], p["a"]["arm"], p["a"]["rounds"]) for p in healthy["pairs"]]
    assert sorted(asked) == sorted(
        [("looping", arm, 4) for arm in ("pre", "deepnorm", "deeploop")]
        + [("rule", arm, rounds) for arm in ("deepnorm", "deeploop") for rounds in (1, 4)]
    )
    assert [c["a"]["arm"] for c in healthy["controls"]] == ["deepnorm", "deeploop"]
    assert healthy["warnings"] == []


def test_control_is_an_equivalence_test_at_its_own_level(healthy: dict[str, Any]) -> None:
    for control in healthy["controls"]:
        assert control["verdict"] == "equivalent"
        assert control["interval"]["confidence"] == pytest.approx(0.9)
        assert -0.02 < control["interval"]["low"] < control["interval"]["high"] < 0.02


def test_verdict_sentences_repeat_the_verdicts_of_the_intervals(healthy: dict[str, Any]) -> None:
    looping, _, rule, control = healthy["verdict"]
    assert looping.startswith("Looping, R = 4 against R = 1 (equal tokens, 2.80 times the training FLOPs): lower loss")
    assert "lower loss with deeploop" in rule
    assert "equivalent within ±0.020 nats: deepnorm" in rule
    assert "equivalent within ±0.020 nats: deepnorm" in control
    assert "deeploop" in control


def test_fewer_than_five_pairs_decide_nothing(tmp_path: Path) -> None:
    comparison = compare_runs(write_synthetic_study(tmp_path, seeds=(0, 1, 2)))
    assert {p["verdict"] for p in comparison["pairs"] + comparison["controls"]} == {"not_decided"}
    assert "a verdict needs 5 pairs" in pair(comparison, "looping", "deeploop", 4)["words"]
    assert all("a verdict needs 5 pairs" in sentence for sentence in comparison["verdict"])
    assert any("Fewer than 5 pairs, as few as 3" in warning for warning in comparison["warnings"])


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    comparison = compare_runs(write_synthetic_study(tmp_path, seeds=(3,)))
    looping = pair(comparison, "looping", "pre", 4)
    assert looping["interval"] is None
    assert looping["smallest_detectable"] is None
    assert "no interval" in looping["reason"]
    assert looping["reason"] in looping["words"]
    assert comparison["controls"][0]["interval"] is None


def test_stuck_and_diverged_runs_count(tmp_path: Path) -> None:
    comparison = compare_runs(
        write_synthetic_study(tmp_path, outcomes={("deepnorm", 4, 2): "stuck", ("deeploop", 4, 0): "diverged"})
    )
    stuck = cell(comparison, "deepnorm", 4)
    assert stuck["outcomes"] == {"finished": 4, "stuck": 1, "diverged": 0, "missing": 0}
    assert stuck["loss_nats"]["n"] == 5
    assert stuck["loss_nats_trained"]["n"] == 4
    assert stuck["loss_nats"]["mean"] > stuck["loss_nats_trained"]["mean"] + 0.3
    assert max(run["loss_nats"] for run in stuck["runs"]) == pytest.approx(UNIGRAM_LOSS + 0.02)

    lost = next(run for run in cell(comparison, "deeploop", 4)["runs"] if run["outcome"] == "diverged")
    assert lost["imputed"]
    assert lost["loss_nats"] == pytest.approx(UNIFORM_LOSS)
    # The generator's text has 3.1 bytes per token.
    assert lost["bits_per_byte"] == pytest.approx(UNIFORM_LOSS / math.log(2) / 3.1)
    words = pair(comparison, "rule", "deeploop", 4)["words"]
    assert "1 diverged of 10" in words
    assert any("diverged" in w and "1 of 5 of deeploop at R = 4" in w for w in comparison["warnings"])
    assert any("got stuck" in w and "1 of 5 of deepnorm at R = 4" in w for w in comparison["warnings"])
    rule = next(sentence for sentence in comparison["verdict"] if sentence.startswith("Rule at R = 4"))
    assert rule.count("1 of 10 runs did not train") == 2
    assert pair(comparison, "rule", "deeploop", 4)["interval_trained"]["num_pairs"] == 4


def test_a_diverged_run_does_not_look_cheap(tmp_path: Path) -> None:
    comparison = compare_runs(write_synthetic_study(tmp_path, outcomes={("deeploop", 4, 0): "diverged"}))
    whole, cut = cell(comparison, "pre", 4), cell(comparison, "deeploop", 4)
    for key in ("tokens", "epochs", "training_flops", "tokens_per_parameter"):
        assert cut[key] == pytest.approx(whole[key])


def test_missing_runs_are_counted_and_leave_their_pairs(tmp_path: Path) -> None:
    comparison = compare_runs(write_synthetic_study(tmp_path, outcomes={("pre", 4, 1): "missing"}))
    assert cell(comparison, "pre", 4)["outcomes"]["missing"] == 1
    assert pair(comparison, "looping", "pre", 4)["seeds"] == [0, 2, 3, 4]
    assert any("1 of 30 planned runs" in w and "pre-r4-s1" in w for w in comparison["warnings"])


def test_runs_outside_the_plan_are_named_and_left_out(tmp_path: Path) -> None:
    write_synthetic_study(tmp_path)
    (tmp_path / "runs" / "pre-r4-s0").rename(tmp_path / "runs" / "pre-r9-s0")
    warnings = compare_runs(tmp_path)["warnings"]
    assert any("pre-r9-s0" in warning and "Left out" in warning for warning in warnings)


@pytest.mark.parametrize(("table", "key"), [("corpus_sha256", "text"), ("tokenizer_sha256", "tokenizers")])
def test_mixed_corpora_are_refused(tmp_path: Path, table: str, key: str) -> None:
    write_synthetic_study(tmp_path, training={("pre", 1, 2): {"data": {table: "f" * 64}}})
    with pytest.raises(ResultError, match=f"different {key}.*pre-r1-s2"):
        compare_runs(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"versions": {"torch": "0.0.1"}}, "different versions or devices: torch"),
        ({"device": "NVIDIA H200"}, "different versions or devices: device NVIDIA H200 and cpu"),
        ({"optimization": {"lr": 0.5}}, "ran at rate 0.004, 0.5; the study planned 0.004"),
        ({"steps_planned": 900}, "different numbers of tokens"),
    ],
)
def test_what_weakens_a_comparison_is_said(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    write_synthetic_study(tmp_path)
    path = tmp_path / "runs" / "pre-r1-s2" / "results" / "training.json"
    training = json.loads(path.read_text())
    for name, value in changes.items():
        training[name] = {**training[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(training))
    warnings = compare_runs(tmp_path)["warnings"]
    assert any(expected in warning for warning in warnings), warnings


def test_a_diverged_run_counts_as_knowing_nothing_even_with_good_weights_left(tmp_path: Path) -> None:
    """Non-finite steps are skipped, so a run that diverged may end on weights that were fine before."""
    left = {"training": {("deepnorm", 4, seed): {"outcome": "diverged"} for seed in range(5)}}
    comparison = compare_runs(write_synthetic_study(tmp_path, **left))
    for run in cell(comparison, "deepnorm", 4)["runs"]:
        assert run["loss_nats"] == pytest.approx(UNIFORM_LOSS)
    assert pair(comparison, "rule", "deepnorm", 4)["interval"]["mean"] > 0


def test_a_rate_at_the_edge_of_its_grid_is_said(tmp_path: Path) -> None:
    write_synthetic_study(tmp_path)
    path = tmp_path / "study.json"
    document = json.loads(path.read_text())
    document["config"]["study"]["rates"] = [
        {"arm": "pre", "rounds": 1, "lr": 1e-3, "source": "tuning", "at_edge": True},
        {"arm": "pre", "rounds": 4, "lr": 1e-3, "source": "tuning"},
    ]
    path.write_text(json.dumps(document))
    (warning,) = [w for w in compare_runs(tmp_path)["warnings"] if "edge of its grid" in w]
    assert warning.endswith("a better one may exist: pre at R = 1.")


def test_a_result_of_another_seed_is_refused(tmp_path: Path) -> None:
    write_synthetic_study(tmp_path, training={("pre", 1, 2): {"data_seed": 9}})
    with pytest.raises(ResultError, match="data seed 9, expected 2"):
        compare_runs(tmp_path)


def test_a_folder_without_study_or_runs_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no study at"):
        compare_runs(tmp_path)
    write_synthetic_study(tmp_path, seeds=(0,), outcomes={(*key, 0): "missing" for key in LOSSES})
    with pytest.raises(ResultError, match="no run under"):
        compare_runs(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ResultError, match="damaged"):
        compare_runs(tmp_path)


def test_the_comparison_is_written_and_read_back(tmp_path: Path) -> None:
    written = write_comparison(write_synthetic_study(tmp_path))
    read = read_result(tmp_path, "comparison")
    assert {key: read[key] for key in written} == json.loads(json.dumps(written))


def test_comparison_and_reports_load_no_torch() -> None:
    code = (
        "import sys, depthscale.studies.comparison, depthscale.reports.comparison_report,"
        " depthscale.reports.run_report; assert not {'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

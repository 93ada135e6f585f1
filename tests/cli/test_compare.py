"""``depthscale compare`` from its file to its report: rivals, prices, later additions, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import one_line, run
from tiny_run import write_corpus

from depthscale.cli.price_table import print_price

STUDY = """
[plan]
blocks = 1
[model]
hidden_size = 16
num_attention_heads = 2
[data]
corpus = "CORPUS"
tokenizer = "bytes"
context_length = 32
tuning_fraction = 0.15
report_fraction = 0.15
[train]
steps = 4
batch_rows = 2
lr = 5e-3
eval_rows = 4
num_threads = 1
[study]
name = "tiny"
baseline = "pre"
rounds = [1, 3]
seeds = [0]
[study.tuning]
seeds = [7]
grid = [1e-3, 4e-3]
max_extensions = 0
[[study.arms]]
name = "pre"
[[study.arms]]
name = "pre_again"
rounds = [3]
weight_seed_shift = 100
[[study.arms]]
name = "stacked"
rounds = [3]
plan = { kind = "stacked" }
[[study.arms]]
name = "pre_longer"
rounds = [1]
match = { spend = "flops", arm = "pre", rounds = 3 }
[[study.arms]]
name = "pre_same_time"
rounds = [1]
match = { spend = "time", arm = "pre", rounds = 3 }
[[study.comparisons]]
terms = "same_parameters"
a = [{ arm = "pre", rounds = 3 }]
b = [{ arm = "pre_longer", rounds = 1 }]
[[study.comparisons]]
terms = "equal_tokens"
a = [{ arm = "pre", rounds = 3 }]
b = [{ arm = "stacked", rounds = 3 }]
[[study.comparisons]]
terms = "equal_flops"
a = [{ arm = "pre", rounds = 3 }]
b = [{ arm = "pre_longer", rounds = 1 }, { arm = "stacked", rounds = 3 }]
[[study.comparisons]]
terms = "equal_time"
a = [{ arm = "pre", rounds = 3 }]
b = [{ arm = "pre_same_time", rounds = 1 }]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.replace("CORPUS", str(write_corpus(tmp_path / "corpus"))))
    return path


@pytest.mark.slow  # six runs and two probes, each a process of its own
def test_a_whole_study_with_its_rivals(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, "compare", str(study), "--out", str(out), "--workers", "2") == 0
    document = json.loads((out / "study.json").read_text())
    comparison = json.loads((out / "results" / "comparison.json").read_text())
    # K = 1 and R = 3: a step costs (head + 3 visits) against (head + 1 visit); both runs end their own schedule.
    longer = next(note for note in document["matched_steps"] if note["arm"] == "pre_longer")
    assert longer["steps"] == round(4 * longer["per_step_matched"] / longer["per_step"])
    assert all("one pair shows no spread" in entry["words"] for entry in comparison["named"])
    named = {entry["question"]: entry for entry in comparison["named"]}
    assert list(named) == ["same_parameters", "equal_tokens", "equal_flops", "equal_time"]
    assert named["same_parameters"]["spent"]["parameters"][0] == named["same_parameters"]["spent"]["parameters"][1]
    assert named["equal_tokens"]["spent"]["tokens"][0] == named["equal_tokens"]["spent"]["tokens"][1]
    shapes = named["equal_flops"]["shapes"]["b"]
    assert [shape["chosen"] for shape in shapes].count(True) == 1
    assert min(shapes, key=lambda shape: shape["tuning_loss_nats"])["chosen"]
    assert {entry["verdict"] for entry in comparison["named"]} == {"not_decided"}  # one pair decides nothing
    (again,) = comparison["again"]
    assert any(difference != 0 for difference in again["differences"])
    assert any("No learning rate was chosen" in warning for warning in comparison["warnings"])


def test_the_price_is_said_before_anything_runs(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, "compare", str(study), "--out", str(out), "--workers", "2", "--tune", "--plan-only") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert not out.exists()
    assert "18 runs" in said  # six cells of one seed and two tuning runs
    assert "core-hours" in said
    assert "a probe of every cell, 2 at a time" in said
    assert "One seed: no interval" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("study.comparisons=[{terms='equal_flop', a=[{arm='pre', rounds=3}], b=[{arm='pre', rounds=1}]}]", "terms"),
        ("study.comparisons=[{terms='equal_time', a=[{arm='pre', rounds=9}], b=[{arm='pre', rounds=1}]}]", "9 rounds"),
        (
            "study.comparisons=[{terms='equal_time', a=[{arm='pre', rounds=3}], b=[{arm='pre', rounds=3}]}]",
            "both sides",
        ),
        ("train.warmup_steps=9", "warmup_steps 9 is not below steps 4"),
        ("study.arms=[{name='pre'}, {name='x', match={spend='flops', arm='pre', rounds=3}}]", "exactly one"),
        ("study.tuning.seeds=[0]", "overlap"),
    ],
)
def test_faults_of_a_study_are_one_line(
    override: str, said: str, study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compare", str(study), "--set", override, "--plan-only") == 2
    assert said in one_line(capsys.readouterr().err)


def test_arms_that_differ_in_tokens_are_said_before_anything_runs(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = "study.arms=[{name='pre'}, {name='wide', train={batch_rows=8}}]"
    options = [w for override in (arms, "study.comparisons=[]", "study.rounds=[2]") for w in ("--set", override)]
    assert run(monkeypatch, "compare", str(study), "--out", str(tmp_path / "out"), "--plan-only", *options) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "different numbers of tokens (256: pre at R = 2; 1,024: wide at R = 2)" in said


def test_five_seeds_have_a_smallest_difference(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("study.arms=[{name='pre'}]", "study.comparisons=[]", "study.rounds=[2]", "study.seeds=[1,2,3,4,5]")
    options = [word for override in overrides for word in ("--set", override)]
    assert run(monkeypatch, "compare", str(study), "--plan-only", *options) == 0
    said = " ".join(capsys.readouterr().out.split())
    # 1.68 standard deviations of 0.0553 nats (test_paired).
    assert "5 pairs find a true difference of 0.093 nats with 80 % power" in said


@pytest.mark.parametrize("option", ["--tune", "--add", "--plan-only", "--out=elsewhere", "--workers=2"])
def test_the_papers_table_takes_no_option_of_a_study(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compare", "--recipe", "recipe.toml", option) == 2
    assert f"give it without {option.partition('=')[0]}" in one_line(capsys.readouterr().err)


def test_two_budgets_from_one_stable_run_and_a_seed_that_is_added_later(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    overrides = ("study.arms=[{name='pre'}]", "study.comparisons=[]", "study.rounds=[2]", "study.seeds=[3]",
                 "train.schedule=wsd", "train.steps=8", "train.log_every=1", "study.budgets=[4, 8]")  # fmt: skip
    options = [word for override in overrides for word in ("--set", override)]
    arguments = ("compare", str(study), "--out", str(out), "--workers", "1", *options)
    assert run(monkeypatch, *arguments) == 0
    capsys.readouterr()
    metrics = (out / "runs" / "pre-r2-t4-s3" / "metrics.jsonl").read_text().splitlines()
    assert [r["step"] for line in metrics if (r := json.loads(line))["kind"] == "resumed"] == [3]
    cells = json.loads((out / "results" / "comparison.json").read_text())["cells"]
    assert [(cell["budget"], cell["tokens"]) for cell in cells] == [(4, 4 * 64), (8, 8 * 64)]
    assert "8 steps" in (out / "report.html").read_text()

    grown = ("--set", "study.seeds=[3,4]")
    assert run(monkeypatch, *arguments, *grown) == 2
    assert "without seeds [4]; give --add" in one_line(capsys.readouterr().err)
    assert run(monkeypatch, *arguments, *grown, "--add") == 0
    assert "Added on" in capsys.readouterr().out
    (addition,) = json.loads((out / "study.json").read_text())["later_additions"]
    assert (addition["seeds"], addition["results_before"]) == ([4], 2)
    assert run(monkeypatch, *arguments, *grown) == 0  # the same command goes on as ever


def test_a_matched_arm_is_not_trained_at_the_base_runs_length(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", str(study), "--arm", "pre_longer", "--dry-run") == 2
    assert "arm 'pre_longer' has no steps of its own" in one_line(capsys.readouterr().err)


def test_the_price_keeps_the_names_of_arms_whole_on_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cell = {"arm": "deeploop_sandwich", "rounds": 18, "budget": 6800, "steps": 118130, "tokens": 60_480_000,
            "tokens_per_parameter": 1265.6, "runs": 5, "tuning_runs": 3, "tuning_runs_at_most": 4,
            "seconds_per_run": 7_500.0, "hours_at_most": 16.67}  # fmt: skip
    price = {"name": "wide", "cells": [cell], "runs": 5, "tuning_runs": 3, "tuning_runs_at_most": 4,
             "unit": "core", "processes_per_unit": 1.0,
             "hours": 16.0, "hours_at_most": 18.0, "seconds_from": "a probe", "num_seeds": 5,
             "sd_nats": 0.05, "sd_from": "a guess", "smallest_detectable_nats": 0.09, "enough_pairs": True}  # fmt: skip
    print_price(price, workers=2)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "deeploop_sandwich" in line]
    assert row.split() == ["deeploop_sandwich", "18", "6,800", "118,130", "60.48", "M", "1265.6", "5", "3–4",
                           "125.0", "16.67"]  # fmt: skip

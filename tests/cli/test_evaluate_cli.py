"""``depthscale evaluate`` and ``depthscale export``: what they write and print, and how bad input ends."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import run
from tiny_run import make_run, write_corpus

from depthscale.errors import DataError
from depthscale.evaluation import harness, harness_tasks

torch.set_num_threads(1)


def last_line(text: str) -> str:
    line = text.strip().splitlines()[-1]
    assert line.startswith("depthscale: "), text
    assert "Traceback" not in text
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    patch = pytest.MonkeyPatch()
    patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    yield make_run(folder)
    patch.undo()


def test_rounds_and_exits(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Public fault: a model trained at a fixed R is worse at others. The curve is standard output and flags them."""
    assert run(monkeypatch, "evaluate", str(trained), "--rounds", "1,2,6,9", "--exits", "--batch-rows", "8") == 0
    shown = capsys.readouterr().out
    for words in (
        "1*",
        "6*",
        "outside",
        "R = 3",
        "recomputed scales",
        "saturating",
        "power_with_floor",
        "state_change",
    ):
        assert words in shown
    assert not re.search(r"\b3\*", shown)
    result = json.loads((trained / "results" / "evaluation.json").read_text())
    assert result["kind"] == "evaluation"
    kept = result["rounds"]["kept"]
    assert [(point["rounds"], point["in_training"]) for point in kept] == [
        (1, False),
        (2, False),
        (3, True),
        (6, False),
        (9, False),
    ]
    training = json.loads((trained / "results" / "training.json").read_text())
    assert kept[2]["loss_nats"] == pytest.approx(training["final"]["report"]["loss_nats"], abs=1e-5)
    assert kept[2]["bits_per_byte"] == pytest.approx(training["final"]["report"]["bits_per_byte"], abs=1e-5)
    assert result["corpus_sha256"] == training["data"]["corpus_sha256"]
    assert result["notes"] == []
    assert len(result["exits"]["loss_per_round"]) == 3
    assert result["exits"]["loss_per_round"][-1] == pytest.approx(kept[2]["loss_nats"], abs=1e-5)


def test_the_default_is_the_curve_as_json_on_another_corpus(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_corpus(tmp_path / "other", 30)
    arguments = ("--corpus", str(other), "--max-rows", "4", "--out", str(tmp_path / "out"), "--json")
    assert run(monkeypatch, "evaluate", str(trained / "checkpoint"), *arguments) == 0
    printed = json.loads(capsys.readouterr().out)["evaluation"]
    assert [point["rounds"] for point in printed["rounds"]["kept"]] == [1, 2, 3, 6, 12]
    assert printed["notes"] == ["the corpus is not the run's own; whether training saw its text is not known"]
    written = json.loads((tmp_path / "out" / "results" / "evaluation.json").read_text())
    assert written["rounds"] == printed["rounds"]


def test_a_section_that_was_not_asked_for_is_kept(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking for exits alone once threw the curve over rounds away."""
    shutil.copytree(trained, tmp_path / "run")
    where = tmp_path / "run" / "results" / "evaluation.json"
    where.unlink(missing_ok=True)

    def evaluate(*arguments: str) -> tuple[dict, dict]:
        assert run(monkeypatch, "evaluate", str(tmp_path / "run"), "--json", *arguments) == 0
        return json.loads(capsys.readouterr().out)["evaluation"], json.loads(where.read_text())

    _, first = evaluate("--rounds", "1", "--max-rows", "2")
    printed, second = evaluate("--exits", "--max-rows", "2")
    assert second["rounds"] == first["rounds"]
    assert second["exits"] == printed["exits"]
    assert printed["rounds"] is None  # only what was measured now
    _, third = evaluate("--rounds", "2", "--max-rows", "2")
    assert third["exits"] == second["exits"]
    assert [point["rounds"] for point in third["rounds"]["kept"]] == [2, 3]
    # Other rows are another measurement, whose sections may not stand in one file with these.
    assert evaluate("--exits", "--max-rows", "3")[1]["rounds"] is None


def test_the_run_directory_holds_the_report_split_of_its_own_corpus_only(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_corpus(tmp_path / "other", 30)
    for arguments in (("--split", "tuning"), ("--corpus", str(other)), ("--tasks", "local", "--split", "train")):
        assert run(monkeypatch, "evaluate", str(trained), *arguments) == 2
        assert "name another directory with --out" in last_line(capsys.readouterr().err)
    arguments = ("--split", "tuning", "--rounds", "1", "--max-rows", "1", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "evaluate", str(trained), *arguments) == 0
    assert json.loads((tmp_path / "out" / "results" / "evaluation.json").read_text())["split"] == "tuning"


def test_what_was_measured_is_written_before_the_next_part(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(*arguments: object, **named: object) -> None:
        raise DataError("the tasks cannot be had")

    monkeypatch.setattr(harness, "run_tasks", fault)
    arguments = ("--rounds", "1", "--max-rows", "1", "--tasks", "local", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "evaluate", str(trained), *arguments) == 2
    assert "the tasks cannot be had" in last_line(capsys.readouterr().err)
    assert (tmp_path / "out" / "results" / "evaluation.json").exists()


def test_names_are_checked_before_anything_is_measured(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--rounds", "1", "--max-rows", "1", "--tasks", "locl", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "evaluate", str(trained), *arguments) == 2
    shown = capsys.readouterr().err
    assert "did you mean 'local'" in last_line(shown)
    assert "nats per token" not in shown
    assert not (tmp_path / "out").exists()


def test_tasks_from_the_network_need_no_corpus(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exported folder belongs to no run and has no corpus."""
    shutil.copytree(trained / "checkpoint", tmp_path / "model")
    asked = []

    def answer(model: object, tokenizer: object, tasks: list[str], **named: object) -> list[harness.TaskScore]:
        asked.append((tasks, named["local_directory"]))
        return [harness.TaskScore("piqa", 0, "acc", 0.5, 0.1, 2, True, ("a", "b"), (0.0, 1.0))]

    monkeypatch.setattr(harness, "run_tasks", answer)
    arguments = ("--tasks", "deeploop,piqa,deeploop", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "evaluate", str(tmp_path / "model"), *arguments) == 0
    assert "piqa" in capsys.readouterr().out
    assert asked == [(["deeploop"], None)]
    result = json.loads((tmp_path / "out" / "results" / "tasks.json").read_text())
    assert (result["tasks"], result["corpus"], result["split"]) == (["deeploop"], None, None)


def test_prompts_that_were_cut_are_noted(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--tasks", "local_cloze", "--shots", "10", "--limit", "3", "--out", str(tmp_path))
    assert run(monkeypatch, "evaluate", str(trained), *arguments) == 0
    note = "at 10 shots 3 of 3 prompts were longer than the context and lost their beginning"
    assert f"Note: {note}." in capsys.readouterr().err
    result = json.loads((tmp_path / "results" / "tasks.json").read_text())
    assert result["notes"] == [note]
    assert (result["shots"], result["prompts"]) == ([10], [{"num_fewshot": 10, "asked": 3, "cut": 3}])


def test_local_tasks(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "evaluate", str(trained), "--tasks", "local", "--limit", "6") == 0
    shown = capsys.readouterr().out
    assert "local_continuation" in shown
    assert "standard error" in shown
    result = json.loads((trained / "results" / "tasks.json").read_text())
    assert {(s["task"], s["num_items"], len(s["outcomes"])) for s in result["scores"]} == {
        ("local_continuation", 6, 6),
        ("local_cloze", 6, 6),
    }


def test_export(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "export", str(trained), "--out", str(tmp_path / "model")) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "model")
    assert (tmp_path / "model" / "README.md").is_file()
    assert run(monkeypatch, "export", str(trained), "--out", str(tmp_path / "model")) == 2
    assert "not empty" in last_line(capsys.readouterr().err)
    # A folder without a run has no corpus of its own.
    assert run(monkeypatch, "evaluate", str(tmp_path / "model")) == 2
    assert "name one with --corpus" in last_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rounds", "0"), "--rounds came as '0'; expected whole numbers of at least 1"),
        (("--rounds", "4,0,2"), "--rounds came as '4,0,2'"),
        (("--rounds", "1,two"), "--rounds came as '1,two'"),
        (("--rounds", "1-4"), "--rounds came as '1-4'"),
        (("--rounds", "1.5"), "--rounds came as '1.5'"),
        (("--rounds", ""), "--rounds came as ''"),
        (("--rounds", "2,5000"), "--rounds came as '2,5000'; expected whole numbers of at least 1 and at most 4096"),
        (("--rounds", "9" * 5000), "at most 4096"),
        (("--shots", "1"), "--shots came without --tasks"),
        (("--rounds", "1", "--limit", "3"), "--limit came without --tasks"),
        (("--tasks", "local", "--shots", "999"), "999 shots were asked, but task 'local_continuation' has"),
        (("--rounds", "1", "--split", "reprot"), "did you mean 'report'"),
        (("--corpus", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--tasks", "locl"), "unknown task 'locl'; did you mean 'local'"),
        (("--tasks", "local", "--split", "reprot"), "did you mean 'report'"),
        (("--tasks", ","), "expected names"),
        (("--tasks", "local", "--shots", "-1"), "--shots came as '-1'"),
        (("--tasks", "deeploop"), "deeploop cannot be fetched"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    def unreachable(*arguments: object, **named: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(harness_tasks.HfApi, "dataset_info", unreachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert run(monkeypatch, "evaluate", str(trained), *arguments) == 2
    assert words in last_line(capsys.readouterr().err)


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "cut config", "other model", "nothing"])
@pytest.mark.parametrize("verb", ["evaluate", "export"])
def test_a_damaged_checkpoint_is_one_line_and_exit_code_2(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    damage: str,
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "checkpoint", copy)
    weights, config = copy / "model.safetensors", copy / "config.json"
    if damage == "no weights":
        weights.unlink()
    elif damage == "cut weights":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "cut config":
        config.write_text(config.read_text()[:50])
    elif damage == "other model":
        config.write_text('{"model_type": "llama"}')
    else:
        shutil.rmtree(copy)
    arguments = ("--out", str(tmp_path / "out"))
    assert run(monkeypatch, verb, str(copy), *arguments) == 2
    assert str(copy) in last_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lm_eval" else real(name))
    assert run(monkeypatch, "evaluate", "nowhere", "--tasks", "local") == 2
    assert "pip install 'depthscale[eval]'" in last_line(capsys.readouterr().err)
    assert run(monkeypatch, "evaluate", "nowhere") == 2
    assert "no checkpoint or run at nowhere" in last_line(capsys.readouterr().err)


STUDY = """
[plan]
blocks = 1
[model]
hidden_size = 16
num_attention_heads = 2
[data]
corpus = "{corpus}"
tokenizer = "bytes"
context_length = 128
tuning_fraction = 0.15
report_fraction = 0.15
[train]
steps = 2
batch_rows = 2
lr = 1e-3
num_threads = 1
[study]
name = "asked"
baseline = "pre"
rounds = [1, 2]
seeds = [0]
tasks = ["local"]
[[study.arms]]
name = "pre"
[[study.arms]]
name = "deeploop"
model = {{ norm_placement = "post", rule = "deeploop" }}
"""


@pytest.mark.slow
def test_compare_asks_every_run_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole study through real worker processes."""
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "study.toml").write_text(STUDY.format(corpus=write_corpus(tmp_path / "corpus")))
    arguments = ("compare", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out"), "--workers", "2")
    assert run(monkeypatch, *arguments) == 0
    tasks = json.loads((tmp_path / "out" / "results" / "comparison.json").read_text())["tasks"]
    assert {(cell["arm"], cell["rounds"], cell["task"]) for cell in tasks["cells"]} == {
        (arm, rounds, task)
        for arm in ("pre", "deeploop")
        for rounds in (1, 2)
        for task in ("local_continuation", "local_cloze")
    }
    assert "Downstream tasks" in (tmp_path / "out" / "report.html").read_text()
    stamp = (tmp_path / "out" / "runs" / "pre-r1-s0" / "results" / "tasks.json").stat().st_mtime_ns
    assert run(monkeypatch, *arguments) == 0
    assert (tmp_path / "out" / "runs" / "pre-r1-s0" / "results" / "tasks.json").stat().st_mtime_ns == stamp

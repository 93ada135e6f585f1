"""The command line: what it prints, what it loads, and how every error ends."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import one_line, run


@pytest.mark.parametrize("statement", ["import depthscale", "import depthscale.cli.main", "--help", "scale --help"])
def test_starting_loads_nothing_slow(statement: str) -> None:
    slow = ("torch", "transformers", "numpy", "scipy", "matplotlib", "pydantic", "jinja2")
    if statement.startswith("import"):
        code = statement
    else:
        code = f"""
import sys
sys.argv = ["depthscale", *{statement.split()!r}]
from depthscale.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    code += f"\nimport sys\nloaded = [m for m in {slow!r} if m in sys.modules]\nassert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_scale_prints_every_rule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "scale", "--blocks", "12", "--rounds", "7") == 0
    shown = capsys.readouterr().out
    assert "N = 84" in shown
    # Source: arXiv 2607.13491, N = 84.
    assert re.search(r"deeploop.*12\.96.*0\.0385", shown) or re.search(r"deeploop.*12\.96.*0\.0386", shown)
    for rule in ("unscaled", "deepnorm", "alpha_only", "beta_only", "loop_matched", "inverse_rounds", "smelt"):
        assert rule in shown


def test_scale_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--kind", "middle_loop", "--blocks", "12", "--rounds", "2", "--json")
    assert run(monkeypatch, "scale", *arguments) == 0
    data = json.loads(capsys.readouterr().out)
    smelt = next(rule for rule in data["rules"] if rule["rule"] == "smelt")
    assert [group["branch"] for group in smelt["groups"]] == [1.0, 0.5, 1.0]
    assert [group["blocks"] for group in smelt["groups"]] == [3, 6, 3]


def test_scale_with_one_rule_and_its_argument(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--blocks", "12", "--rule", "power", "--rule-argument", "p=0.25", "--json")
    assert run(monkeypatch, "scale", *arguments) == 0
    group = json.loads(capsys.readouterr().out)["rules"][0]["groups"][0]
    assert group["skip"] == pytest.approx(24**0.25)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scale", "--blocks", "0"), "plan: blocks = 0"),
        (("scale", "--blocks", "3", "--rounds", "0"), "plan: rounds = 0"),
        (("scale", "--blocks", "3", "--rule", "deeplop"), "did you mean 'deeploop'"),
        (("scale", "--blocks", "3", "--rule", "power"), "needs p"),
        (("scale", "--blocks", "3", "--rule", "power", "--rule-argument", "p"), "expected name=number"),
        (("scale", "--blocks", "3", "--rule", "power", "--rule-argument", "p=1000"), "overflows"),
        (("scale",), "Missing option '--blocks'"),
        (("scale", "--blocks", "many"), "not a valid"),
        (("scale", "--blokcs", "3"), "--blokcs"),
        (("scael",), "scael"),
        (("scale", "--blocks", "3", "--kind", "lopped"), "'looped'"),
        (("scale", "--blocks", "3", "--kind", "stacked", "--prelude", "1"), "ignores prelude"),
        (("train",), "no configuration given"),
        (("train", "none.toml"), "no configuration at none.toml"),
        (("compare",), "either a study file or --preset"),
        (("compare", "--preset", "dmeo"), "did you mean 'demo'"),
        (("compare", "none.toml"), "no configuration at none.toml"),
        (("compare", "--preset", "demo", "--set", "study.seds=[1]"), "did you mean 'study.seeds'"),
        (("compare", "--preset", "demo", "--set", "plan.rounds=0", "--set", "study.rounds=[0]"), "study.rounds"),
        (("report", "nowhere"), "nowhere"),
        (("report", "nowhere/at/all"), "no folder at nowhere/at/all"),
        (
            ("compare", "--preset", "demo", "--plan-only", "--from-study", "nowhere/at/all"),
            "no study at nowhere/at/all",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert words in one_line(capsys.readouterr().err)


TRAIN = """
[plan]
blocks = 1
[model]
hidden_size = 16
num_attention_heads = 2
[data]
corpus = "{corpus}"
tokenizer = "bytes"
context_length = 16
[train]
steps = {steps}
batch_rows = 2
lr = 1e-3
num_threads = 1
"""


@pytest.fixture
def train_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index in range(40):
        text = " ".join(str((index + 1) * n) for n in range(60))
        (corpus / f"{index}.txt").write_text(text)
    (tmp_path / "train.toml").write_text(TRAIN.format(corpus=corpus, steps=3))
    return tmp_path / "train.toml"


def test_train_then_report(
    train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", str(train_file), "--run-dir", str(tmp_path / "run")) == 0
    assert "nats per token" in capsys.readouterr().out
    assert run(monkeypatch, "report", str(tmp_path / "run")) == 0
    assert Path(capsys.readouterr().out.strip()).read_text().lower().startswith("<!doctype html>")


def test_a_study_is_not_written_into_a_run(
    train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", str(train_file), "--run-dir", str(tmp_path / "run")) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    capsys.readouterr()
    for verb, preset in (("compare", "demo"), ("sweep", "sweep")):
        assert run(monkeypatch, verb, "--preset", preset, "--out", str(tmp_path / "run")) == 2
        assert "holds a run or a study of another kind; choose another --out" in one_line(capsys.readouterr().err)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.corpus=/nowhere/at/all", "/nowhere/at/all"),
        ("data.corpus=~nouser/a", "~nouser/a"),
        ("data.tokenizer=~nouser/a", "~nouser/a"),
        (f"data.corpus={'x' * 300}", "no usable path"),
        ("data.tokenizer=/nowhere/at/all", "/nowhere/at/all"),
        ("train.stepz=3", "did you mean 'train.steps'"),
        ("model.num_attention_heads=3", "does not divide"),
    ],
)
def test_train_refuses_bad_input_and_leaves_no_run_behind(
    train_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    override: str,
    words: str,
) -> None:
    assert run(monkeypatch, "train", str(train_file), "--run-dir", str(tmp_path / "run"), "--set", override) == 2
    assert words in one_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02\xff" * 100])
def test_empty_and_binary_corpora(
    train_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    corpus = f"data.corpus={tmp_path / 'odd.txt'}"
    assert run(monkeypatch, "train", str(train_file), "--run-dir", str(tmp_path / "run"), "--set", corpus) == 2
    assert "odd.txt" in one_line(capsys.readouterr().err)


def test_an_unexpected_error_is_one_line_with_a_log_and_exit_code_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("depthscale.residual.apply_rule", broken)
    assert run(monkeypatch, "scale", "--blocks", "3") == 70
    line = one_line(capsys.readouterr().err)
    log = Path(re.search(r"(\S+\.log)", line).group(1))  # type: ignore[union-attr]
    assert "ZeroDivisionError: a bug" in log.read_text()
    log.unlink()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    assert run(monkeypatch, "train", "x.toml") == 2
    assert "pip install 'depthscale[lm]'" in one_line(capsys.readouterr().err)


def test_ctrl_c_is_one_line_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("depthscale.residual.apply_rule", interrupted)
    assert run(monkeypatch, "scale", "--blocks", "3") == 130
    assert "interrupted" in one_line(capsys.readouterr().err)


def test_resume_through_the_command_line_needs_no_configuration(
    train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory = str(tmp_path / "run")
    assert run(monkeypatch, "train", str(train_file), "--run-dir", run_directory) == 0
    first = capsys.readouterr().out
    assert run(monkeypatch, "train", "--resume", "--run-dir", run_directory) == 0
    assert capsys.readouterr().out == first
    other = ("--set", "train.lr=0.5")
    assert run(monkeypatch, "train", str(train_file), "--resume", "--run-dir", run_directory, *other) == 2
    assert "resume a run unchanged" in one_line(capsys.readouterr().err)
    checkpoint = str(tmp_path / "run" / "checkpoint")
    arguments = ("train", str(train_file), "--run-dir", str(tmp_path / "next"), "--from", checkpoint)
    assert run(monkeypatch, *arguments) == 0
    assert "init gain is not applied" in capsys.readouterr().err
    assert run(monkeypatch, *arguments[:-1], "/nope", "--run-dir", str(tmp_path / "third")) == 2
    assert "no checkpoint at /nope" in one_line(capsys.readouterr().err)
    assert run(monkeypatch, "train", str(train_file), "--rescale") == 2
    assert "--rescale goes with --from" in one_line(capsys.readouterr().err)


STUDY = """
[study]
name = "tiny"
baseline = "pre"
rounds = [1, 2]
seeds = [0, 1]
[[study.arms]]
name = "pre"
[[study.arms]]
name = "deeploop"
model = { norm_placement = "post", rule = "deeploop" }
[study.tuning]
seeds = [7]
grid = [1e-3, 2e-3]
max_extensions = 1
"""


def test_compare_tunes_runs_reports_and_restarts(
    train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole study through real worker processes; then one run is lost and the same command makes it again."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(train_file.read_text() + STUDY)
    arguments = ("compare", str(study), "--out", str(out), "--workers", "2", "--tune")
    assert run(monkeypatch, *arguments) == 0
    first = capsys.readouterr()
    assert "report:" in first.out
    assert len(list((out / "runs").iterdir())) == 8
    tuning = json.loads((out / "results" / "tuning.json").read_text())
    assert all(len(cell["points"]) == 3 for cell in tuning["cells"])  # two rates and one extension, one seed
    comparison = json.loads((out / "results" / "comparison.json").read_text())
    assert {pair["verdict"] for pair in comparison["pairs"]} == {"not_decided"}  # two pairs decide nothing
    assert (out / "report.html").read_text().lower().startswith("<!doctype html>")

    lost = out / "runs" / "deeploop-r2-s1" / "results" / "training.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    kept = out / "runs" / "pre-r1-s0" / "results" / "training.json"
    stamp = kept.stat().st_mtime_ns
    assert run(monkeypatch, *arguments) == 0
    assert kept.stat().st_mtime_ns == stamp
    assert json.loads(lost.read_text())["final"] == before["final"]
    capsys.readouterr()
    for options, words in ((arguments, "another study"), (arguments[:-1], "another study")):
        assert run(monkeypatch, *options, "--set", "train.steps=4") == 2
        assert words in one_line(capsys.readouterr().err)


def test_sigterm_ends_a_run_with_a_checkpoint(train_file: Path, tmp_path: Path) -> None:
    """The whole way: a real process, a real signal, exit code 128 + 15, and the run goes on."""
    command = [sys.executable, "-m", "depthscale", "train", str(train_file), "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--set", "train.steps=100000"], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.read_text().count("\n") > 2:
            break
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + 15
    assert "go on with depthscale train --resume" in one_line(errors.splitlines()[-1] + "\n")
    assert list((tmp_path / "run" / "training_state").glob("checkpoint-*"))

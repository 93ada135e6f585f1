"""``depthscale align`` on a plan at initialization, a trained run and a study."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import command_line
import pytest
import torch
from tiny_run import make_run, write_corpus

from depthscale.runs.config_file import read_toml, validate
from depthscale.runs.study_config import StudyFile
from depthscale.studies.study_document import write_study
from depthscale.training.run import train_run

torch.set_num_threads(1)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return command_line.run(monkeypatch, "align", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("align")
    patch = pytest.MonkeyPatch()
    patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def config(folder: Path) -> Path:
    corpus = write_corpus(folder / "corpus")
    path = folder / "config.toml"
    path.write_text(
        f"""
[plan]
blocks = 2
rounds = 3
[model]
hidden_size = 32
num_attention_heads = 2
norm_placement = "post"
rule = "deeploop"
[data]
corpus = "{corpus}"
tokenizer = "bpe:300"
context_length = 64
tuning_fraction = 0.15
report_fraction = 0.15
[train]
steps = 4
batch_rows = 4
lr = 5e-3
num_threads = 1
"""
    )
    return path


def test_a_plan_at_initialization(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--rounds", "1,2,4,8", "--rows", "2", "--seeds", "2", "--out", str(tmp_path))
    assert run(monkeypatch, str(config), *arguments) == 0
    shown = capsys.readouterr().out
    for words in ("post deeploop", "kappa grows as R^1.0", "an Adam step asks for p = 0.5", "trivially"):
        assert words in shown, shown
    result = json.loads((tmp_path / "results" / "alignment.json").read_text())
    assert (result["kind"], result["source"]) == ("alignment", "initialization")
    (arm,) = result["arms"]
    assert [(p["rounds"], p["seed"], p["step"]) for p in arm["points"]] == [
        (r, s, 0) for r in (1, 2, 4, 8) for s in (0, 1)
    ]
    assert all(p["kappa"] == pytest.approx(p["rounds"], rel=0.05) for p in arm["points"])
    drawn = (tmp_path / "figures" / "alignment-kappa.csv").read_text().splitlines()
    assert len(drawn) == 1 + 4
    assert (tmp_path / "figures" / "alignment-kappa.svg").exists()
    assert set(arm["growth"]["sublayers"]) == {f"block{i}.{kind}" for i in (0, 1) for kind in ("attention", "mlp")}


def test_another_rule_as_json(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("--set", "model.rule=unscaled", "--set", "model.norm_placement=pre")
    assert run(monkeypatch, str(config), "--rounds", "1,4", "--rows", "2", "--json", *overrides) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    assert arm["arm"] == "pre unscaled"
    assert arm["points"][0]["kappa"] == 1.0
    assert arm["points"][1]["kappa"] < 2
    assert "at least 3 points" in arm["growth"]["kappa"]["reason"]


def test_a_trained_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trained = make_run(folder)
    assert run(monkeypatch, str(trained), "--rows", "2") == 0
    capsys.readouterr()
    result = json.loads((trained / "results" / "alignment.json").read_text())
    (point,) = result["arms"][0]["points"]
    assert (point["rounds"], point["step"], result["source"]) == (3, 4, "trained")
    assert 0 < point["kappa"] <= 3
    assert run(monkeypatch, str(trained), "--rounds", "2") == 2
    assert "a trained model has its own" in capsys.readouterr().err


def test_a_study(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two arms over three R; the untied one folds onto the blocks that the other loops. A diverged run is left out."""
    tables = read_toml(config)
    arms = [{"name": "looped"}, {"name": "untied", "plan": {"kind": "stacked"}}]
    tables["study"] = {"name": "tiny", "arms": arms, "baseline": "looped", "rounds": [1, 2, 4], "seeds": [0]}
    file = validate(StudyFile, tables, "test")
    write_study(tmp_path, file)
    for arm in ("looped", "untied"):
        for rounds in (1, 2, 4):
            if (arm, rounds) != ("untied", 4):
                train_run(file.run_config(arm, rounds, 0), tmp_path / "runs" / f"{arm}-r{rounds}-s0")
    shutil.copytree(tmp_path / "runs" / "untied-r1-s0", tmp_path / "runs" / "untied-r4-s0")
    lost = tmp_path / "runs" / "untied-r4-s0" / "results" / "training.json"
    lost.write_text(lost.read_text().replace('"finished"', '"diverged"').replace('"stuck"', '"diverged"'))
    assert run(monkeypatch, str(tmp_path), "--rows", "2", "--probes", "1") == 0
    assert "runs/untied-r4-s0 diverged and was not measured" in capsys.readouterr().out
    result = json.loads((tmp_path / "results" / "alignment.json").read_text())
    looped, untied = result["arms"]
    assert [(point["rounds"], point["step"]) for point in looped["points"]] == [(1, 4), (2, 4), (4, 4)]
    assert "exponent" in looped["growth"]["kappa"]
    assert [point["rounds"] for point in untied["points"]] == [1, 2]
    for arm in (looped, untied):
        for point in arm["points"]:
            assert {s["name"] for s in point["sublayers"]} >= {"block0.attention", "block1.mlp"}
            assert {s["num_visits"] for s in point["sublayers"]} == {point["rounds"]}
    # Blocks of one's own pull in directions of their own.
    assert untied["points"][1]["kappa"] < looped["points"][1]["kappa"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rounds", "0,2"), "expected whole numbers of at least 1"),
        (("--rounds", "9" * 5000), "expected whole numbers of at least 1"),
        (("--split", "tunning"), "did you mean 'tuning'"),
        (("--set", "model.rul=deeploop"), "did you mean 'model.rule'"),
    ],
)
def test_bad_input_is_one_line(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert run(monkeypatch, str(config), *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(tmp_path)) == 2
    assert "no checkpoint or run" in capsys.readouterr().err

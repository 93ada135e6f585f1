"""``depthscale align --study`` from its file to its report, and its cells one by one."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest
from tiny_run import write_corpus

from depthscale.runs.results import result_path
from depthscale.studies.alignment_study import alignment_presets, read_alignment_study

STUDY = """
[plan]
blocks = 1
[model]
hidden_size = 16
num_attention_heads = 2
mlp = "gelu"
norm_placement = "post"
rule = "deeploop"
[data]
corpus = "{corpus}"
tokenizer = "bytes"
context_length = 32
tuning_fraction = 0.15
report_fraction = 0.15
[train]
steps = 2
batch_rows = 2
lr = 1e-3
num_threads = 1
[measure]
steps = [0, 2]
rows = [2]
num_probes = 1
[study]
name = "test"
base = "deeploop"
rounds = [1, 2, 4]
seeds = [1]
table_rounds = 2
[[study.arms]]
name = "deeploop"
varies = "base"
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return command_line.run(monkeypatch, *arguments)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(corpus=write_corpus(tmp_path / "corpus")))
    return path


def test_a_study_runs_to_its_report_and_goes_on_where_it_stopped(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ("align", "--study", str(study), "--out", str(out), "--workers", "1")
    assert run(monkeypatch, *command) == 0
    shown = capsys.readouterr()
    assert "gamma of" in shown.out
    assert f"report: {out / 'report.html'}" in shown.out.replace("\n", "")
    result = json.loads(result_path(out, "alignment_study").read_text())
    assert (result["kind"], result["schema_version"], result["notes"]) == ("alignment_study", 1, [])
    assert {(c["step"], c["gradient_of"]) for c in result["conditions"]} == {(0, "loss"), (2, "loss"), (2, "adam")}
    assert [row["kappa"]["mean"] for row in result["conditions"][0]["by_rounds"]] == pytest.approx([1, 2, 4], rel=0.05)
    # A cell that is there is not measured again; one that is lost is.
    kept, lost = (result_path(out / "cells" / f"deeploop-r{r}-s1", "alignment_cell") for r in (1, 2))
    before = kept.read_bytes()
    lost.unlink()
    assert run(monkeypatch, *command) == 0
    assert kept.read_bytes() == before
    assert lost.exists()
    assert "deeploop-r2-s1 done" in capsys.readouterr().err
    assert run(monkeypatch, *command, "--set", "train.lr=2e-3") == 2
    assert "is of other settings" in command_line.one_line(capsys.readouterr().err)
    (out / "report.html").unlink()
    assert run(monkeypatch, "report", str(out)) == 0
    assert (out / "report.html").exists()


def test_one_cell_by_hand(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = tmp_path / "cell.toml"
    cell.write_text(study.read_text().split("[study]")[0])
    assert run(monkeypatch, "align", str(cell), "--set", "plan.rounds=2", "--out", str(tmp_path / "cell")) == 0
    shown = capsys.readouterr().out
    assert "R = 2" in shown
    assert "training: finished" in shown
    assert run(monkeypatch, "align", str(cell), "--json", "--out", str(tmp_path / "cell")) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "finished"
    assert run(monkeypatch, "align", str(cell), "--rounds", "2,4") == 2
    assert "--rounds would change nothing here" in command_line.one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a configuration"),
        (("x.toml", "--study", "tiny"), "give either a configuration"),
        (("--study", "tinny"), "did you mean 'tiny'"),
        (("--study", "tiny", "--edge", "0.5"), "expected LOW,HIGH"),
        (("--study", "tiny", "--edge", "0.5,0.4"), "expected the lower end first"),
        (("--study", "tiny", "--edge", "0.5,inf"), "an open interval has no edge to predict"),
        (("--study", "tiny", "--rows", "2", "--probes", "1"), "--rows and --probes would change nothing here"),
        (("x.toml", "--workers", "2"), "--workers would change nothing here"),
        (("--study", "tiny", "--set", "study.base=x"), "base 'x' is not among the arms"),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(monkeypatch, "align", *arguments) == 2
    assert message in command_line.one_line(capsys.readouterr().err)


def test_every_preset_is_valid_and_the_large_one_measures_what_it_must() -> None:
    assert set(alignment_presets()) == {"alignment", "tiny"}
    tiny, full = (read_alignment_study(name, []) for name in ("tiny", "alignment"))
    assert len(tiny.cells()) == 24
    cells = full.cells()
    assert {c.plan.rounds for c in cells if c.arm == "deeploop"} == {1, 2, 4, 8, 16}
    assert {c.train.seed for c in cells} == {1, 2, 3}
    assert {c.model.mlp for c in cells} == {"gelu"}
    exponents = {c.exponent for c in cells if c.model.hidden_size == 64 and c.plan.kind == "looped"}
    assert exponents == {0.25, 0.35, 0.45, 0.5, 0.6, None}
    assert all(len(c.measure.rows) == 2 for c in cells)
    assert {c.measure.steps for c in cells if c.arm == "p0.35"} == {(0, 50, 200)}
    assert {c.model.hidden_size for c in cells} == {64, 128, 256}
    assert {c.plan.kind for c in cells} == {"looped", "stacked"}

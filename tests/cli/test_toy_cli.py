"""``toy``: a study end to end, one job, and how bad input ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tomli_w
from command_line import one_line, run

from depthscale.toy.config import read_study

DEPTHS = [2, 3, 4, 6, 8, 16]
CASE = {
    "name": "mse_tied",
    "teacher": {"rho": 1.0, "blocks": 20, "width": 8, "hidden": 16, "seeds": [0, 1]},
    "loss": {"kind": "mse"},
    "train": {"steps": 8, "batch": 16, "rate": 1e-2, "milestones": [4], "test_batches": 1, "test_batch": 64},
    "students": [{"name": "plain", "depths": DEPTHS}],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study file and its finished directory beside it."""
    folder = tmp_path_factory.mktemp("toy")
    file = folder / "study.toml"
    file.write_text(tomli_w.dumps({"name": "tiny", "depths_per_job": 3, "cases": [CASE]}))
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run(monkeypatch, "toy", str(file), "--out", str(folder / "out"), "--workers", "2") == 0
    return folder


def test_a_study_writes_jobs_summary_and_report(study: Path) -> None:
    out = study / "out"
    names = {path.parent.parent.name for path in out.glob("jobs/*/results/toy_job.json")}
    assert names == {"mse_tied-plain-2-3-4", "mse_tied-plain-6-8-16"}
    summary = json.loads((out / "results" / "toy.json").read_text())
    assert (summary["kind"], summary["schema_version"]) == ("toy", 1)
    (line,) = summary["lines"]
    assert line["depths"] == DEPTHS
    assert len(line["exponents"]) == 2
    page = (out / "report.html").read_text()
    assert "tied teacher" in page.lower()
    assert summary["verdict"][0].split(": ")[0] in page


def test_finished_jobs_are_not_run_again_and_the_report_is_rebuilt(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = study / "out"
    results = sorted(out.glob("jobs/*/results/toy_job.json"))
    before = [path.read_bytes() for path in results]
    (out / "report.html").unlink()
    assert run(monkeypatch, "toy", str(study / "study.toml"), "--out", str(out)) == 0
    assert [path.read_bytes() for path in results] == before
    capsys.readouterr()
    (out / "report.html").unlink()
    assert run(monkeypatch, "report", str(out)) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")


def test_one_job_alone_says_where_its_result_is(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = study / "out" / "jobs" / "mse_tied-plain-2-3-4" / "config.toml"
    assert run(monkeypatch, "toy", "--job", str(config), "--out", str(tmp_path), "--set", "train.steps=6") == 0
    path = Path(capsys.readouterr().out.strip())
    found = json.loads(path.read_text())
    assert found["job"]["train"]["steps"] == 6
    assert found["ends"] == [4, 6]


def test_a_finished_job_is_not_run_again_and_one_of_other_settings_is_kept(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = study / "out" / "jobs" / "mse_tied-plain-2-3-4"
    result = done / "results" / "toy_job.json"
    before = result.read_bytes()
    job = ("--job", str(done / "config.toml"), "--out", str(done))
    assert run(monkeypatch, "toy", *job) == 0
    assert capsys.readouterr().out.strip() == str(result)
    assert run(monkeypatch, "toy", *job, "--set", "train.steps=6") == 2
    assert "other settings" in one_line(capsys.readouterr().err)
    assert result.read_bytes() == before


def test_a_job_that_fails_is_named_and_the_rest_is_reported(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(study / "out", out)
    broken = out / "jobs" / "mse_tied-plain-6-8-16"
    (broken / "results" / "toy_job.json").unlink()
    (broken / "toy_state.safetensors").write_bytes(b"damaged")
    assert run(monkeypatch, "toy", str(study / "study.toml"), "--out", str(out)) == 2
    said = capsys.readouterr()
    assert "1 jobs failed, mse_tied-plain-6-8-16 with:" in said.err
    assert "no exponent, 3 depths from 2 to 4" in said.out
    assert "Jobs without a result: mse_tied-plain-6-8-16" in (out / "report.html").read_text()


def test_a_study_whose_jobs_all_fail_ends_with_the_reason(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(study / "out", out)
    for job in (out / "jobs").iterdir():
        (job / "results" / "toy_job.json").unlink()
        (job / "toy_state.safetensors").write_bytes(b"damaged")
    assert run(monkeypatch, "toy", str(study / "study.toml"), "--out", str(out), "--workers", "2") == 2
    assert "2 jobs failed" in capsys.readouterr().err.splitlines()[-1]


def test_an_output_below_a_file_is_one_line(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    config = study / "out" / "jobs" / "mse_tied-plain-2-3-4" / "config.toml"
    for source in ((str(study / "study.toml"),), ("--job", str(config))):
        assert run(monkeypatch, "toy", *source, "--out", str(tmp_path / "file" / "out")) == 2
        one_line(capsys.readouterr().err)


def test_one_depth_only_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.toml"
    case = {**CASE, "students": [{"name": "plain", "depths": [4]}]}
    file.write_text(tomli_w.dumps({"name": "tiny", "cases": [case]}))
    assert run(monkeypatch, "toy", str(file), "--out", str(tmp_path / "out")) == 0
    assert "no exponent, one depth only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--preset", "standrad"), "did you mean 'standard'"),
        (("--preset", "quick", "--job", "x.toml"), "give one of"),
        ((), "give one of"),
        (("missing.toml",), "no configuration at missing.toml"),
        (("--job", "missing.toml"), "no configuration at missing.toml"),
        (("--preset", "quick", "--set", "depths_per_jop=1"), "did you mean 'depths_per_job'"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "toy", *arguments) == 2
    assert words in one_line(capsys.readouterr().err)


def test_another_study_in_the_same_directory_is_refused(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "toy", "--preset", "quick", "--out", str(study / "out")) == 2
    assert "is of other settings" in one_line(capsys.readouterr().err)


def test_the_study_written_down_is_the_study_given(study: Path) -> None:
    assert read_study(str(study / "out" / "study.toml"), []) == read_study(str(study / "study.toml"), [])

import errno
import json
import math
import os
from pathlib import Path

import pytest

from depthscale.errors import ResultError
from depthscale.runs import results
from depthscale.runs.files import atomic_write_text
from depthscale.runs.metrics import append_metric, keep_until, read_metrics


def test_a_full_disk_leaves_the_old_file_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    atomic_write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultError, match="no space left"):
        atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    atomic_write_text(path, "old")

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot write"):
        atomic_write_text(tmp_path / "file" / "below.txt", "x")


def test_results_carry_kind_schema_and_versions(tmp_path: Path) -> None:
    results.write_result(tmp_path, "training", {"loss": math.nan, "list": [1.0, math.inf]})
    document = results.read_result(tmp_path, "training")
    assert document["kind"] == "training"
    assert document["schema_version"] == results.SCHEMA_VERSIONS["training"]
    assert {"python", "numpy"} <= set(document["versions"])
    assert document["loss"] is None
    assert document["list"] == [1.0, None]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "damaged"),
        ("[]", "not a training result"),
        ('{"kind": "comparison"}', "not a training result"),
        ('{"kind": "training"}', "schema version None"),
        ('{"kind": "training", "schema_version": 99}', "upgrade"),
    ],
)
def test_results_that_cannot_be_read(tmp_path: Path, content: str, words: str) -> None:
    atomic_write_text(results.result_path(tmp_path, "training"), content)
    with pytest.raises(ResultError, match=words):
        results.read_result(tmp_path, "training")
    with pytest.raises(ResultError, match="no comparison result"):
        results.read_result(tmp_path, "comparison")


def test_older_results_are_lifted_version_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SCHEMA_VERSIONS", {"training": 3})
    monkeypatch.setattr(
        results,
        "CONVERTERS",
        {
            ("training", 1): lambda document: document | {"trail": "1"},
            ("training", 2): lambda document: document | {"trail": document["trail"] + "2"},
        },
    )
    text = json.dumps({"kind": "training", "schema_version": 1})
    atomic_write_text(results.result_path(tmp_path, "training"), text)
    assert results.read_result(tmp_path, "training")["trail"] == "12"


def test_metrics_survive_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (10, 20, 30):
        append_metric(path, {"step": step, "loss": math.inf if step == 20 else 1.0})
    with path.open("a") as file:
        file.write('{"step": 4')
    assert [record["step"] for record in read_metrics(path)] == [10, 20, 30]
    assert read_metrics(path)[1]["loss"] is None
    keep_until(path, 20)
    assert [record["step"] for record in read_metrics(path)] == [10, 20]


def test_metrics_damaged_in_the_middle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ResultError, match="line 2"):
        read_metrics(path)

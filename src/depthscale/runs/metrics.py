"""``metrics.jsonl``: one JSON object a line, appended as training goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import finite


def append_metric(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record; non-finite numbers become null."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(record), allow_nan=False) + "\n")
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}; finished steps are kept") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records; a last line cut short by a crash is left out.

    Raises:
        ResultError: the file is missing, or a line before the last is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"cannot read {path}: {error}") from error
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ResultError(f"{path}, line {number} is damaged: {error}") from error
    return records


def keep_until(path: Path, step: int) -> None:
    """Drop records after ``step``: a resumed run writes those steps again."""
    if not path.exists():
        return
    kept = [record for record in read_metrics(path) if record.get("step", 0) <= step]
    atomic_write_text(path, "".join(json.dumps(record) + "\n" for record in kept))


def first_finite_loss(records: Iterable[Mapping[str, Any]]) -> float | None:
    """The first training loss in nats that was a number; None if none was."""
    return next((r["loss_nats"] for r in records if r["kind"] == "train" and r["loss_nats"] is not None), None)

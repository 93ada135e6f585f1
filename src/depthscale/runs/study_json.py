"""``study.json``: what a study or sweep plans, written before its first run and read again by every later start."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.files import atomic_write_text
from depthscale.runs.layout import CONFIG_FILE, STUDY_FILE
from depthscale.runs.versioned_json import read_versioned_json


def read_study_json(directory: Path, kind: str, verb: str, newest: int) -> dict[str, Any]:
    """The plan in a directory.

    Args:
        directory: of the study or sweep.
        kind: what the plan must call itself.
        verb: of the command line that writes such plans.
        newest: the schema version that this depthscale writes; older ones are read.

    Raises:
        ResultError: the file is missing, damaged, of another kind, or newer than this version of depthscale.
    """
    path = directory / STUDY_FILE
    return read_versioned_json(
        path,
        kind,
        newest,
        absent=f"no study at {path}; give the folder that 'depthscale {verb}' wrote",
        again=f"run 'depthscale {verb}' again",
        foreign=f"was not written by 'depthscale {verb}'",
    )


def require_no_run(directory: Path) -> None:
    """Refuse a folder for a new study that holds what another verb wrote: one directory holds one thing.

    Raises:
        ResultError: it holds a run, or a study that keeps its settings beside its results.
    """
    if (directory / CONFIG_FILE).exists():
        raise ResultError(f"{directory} holds a run or a study of another kind; choose another --out")


def write_study_json(directory: Path, document: Mapping[str, Any]) -> None:
    """Write the plan in one step, so that a reader finds the old one or the new one."""
    atomic_write_text(directory / STUDY_FILE, json.dumps(document, indent=1) + "\n")


def timestamp() -> str:
    """Now, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

"""``study.json``: what a study or sweep plans, written before its first run and read again by every later start."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.files import atomic_write_text
from depthscale.runs.layout import STUDY_FILE


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
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(f"no study at {path}; give the folder that 'depthscale {verb}' wrote") from error
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} is damaged ({error}); run 'depthscale {verb}' again") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise ResultError(f"{path} was not written by 'depthscale {verb}'; expected an object with kind '{kind}'")
    version = document.get("schema_version")
    if not isinstance(version, int) or version > newest:
        raise ResultError(f"{path} has schema version {version!r}; this depthscale reads up to {newest}: upgrade")
    return document


def write_study_json(directory: Path, document: Mapping[str, Any]) -> None:
    """Write the plan in one step, so that a reader finds the old one or the new one."""
    atomic_write_text(directory / STUDY_FILE, json.dumps(document, indent=1) + "\n")


def timestamp() -> str:
    """Now, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

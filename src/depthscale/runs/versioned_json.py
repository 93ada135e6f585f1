"""JSON documents that say their kind and schema version, read with one line for each way they can be unusable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError


def read_versioned_json(path: Path, kind: str, newest: int, *, absent: str, again: str, foreign: str) -> dict[str, Any]:
    """The document at ``path``.

    Args:
        path: of the file.
        kind: what the document must call itself.
        newest: the largest schema version that is read.
        absent: the line where there is no file.
        again: what to do about a damaged one.
        foreign: what a document of another kind is not.

    Raises:
        ResultError: the file is missing, damaged, of another kind, or newer than this version of depthscale.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(absent) from error
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} is damaged ({error}); {again}") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise ResultError(f"{path} {foreign}; expected an object with kind '{kind}'")
    version = document.get("schema_version")
    if not isinstance(version, int) or version > newest:
        raise ResultError(f"{path} has schema version {version!r}; this depthscale reads up to {newest}: upgrade")
    return document

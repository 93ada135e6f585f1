"""A folder that knows whether it is whole: a manifest with the size and SHA-256 of every file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

_MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Sync every file of ``folder`` to the disk and write down what they hold."""
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / _MANIFEST).write_text(json.dumps({"files": files}, indent=1))
    sync_files(folder)


def is_intact(folder: Path) -> bool:
    """Whether every file of the folder's manifest is there with its size and SHA-256."""
    try:
        files = json.loads((folder / _MANIFEST).read_text())["files"]
        return all(
            (folder / name).stat().st_size == entry["size"] and file_sha256(folder / name) == entry["sha256"]
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_files(folder: Path) -> None:
    """Make every file below ``folder`` outlast a power cut, before a rename makes them count."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())

"""A cache of prepared folders that is safe against truncation and against two processes at once.

A folder is written under a temporary name and renamed when it is complete, with a manifest that holds the
size and SHA-256 of every file. A folder that does not match its manifest counts as absent and is rebuilt.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from depthscale.errors import DataError
from depthscale.runs.manifest import is_intact, write_manifest

CACHE_VARIABLE = "DEPTHSCALE_CACHE"


def default_cache_dir() -> Path:
    """``$DEPTHSCALE_CACHE``, else ``depthscale`` in the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "depthscale"


def cached_folder(cache_dir: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The complete folder ``cache_dir / key``, made by ``build(folder)`` if it is absent or damaged.

    Raises:
        DataError: the cache cannot be written.
    """
    folder, lock = cache_dir / key, cache_dir / f".{key}.lock"
    if is_intact(folder):
        return folder
    temporary: Path | None = None
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        # The workers of a study start together: one builds, the others wait for it.
        with FileLock(lock):
            if is_intact(folder):
                return folder
            temporary = cache_dir / f".{uuid.uuid4().hex}"
            temporary.mkdir()
            build(temporary)
            write_manifest(temporary)
            _install(temporary, folder)
    except OSError as error:
        raise DataError(
            f"cannot write the data cache in '{cache_dir}': {error.strerror or error};"
            f" free space there, or set {CACHE_VARIABLE} to another folder"
        ) from error
    finally:
        # Two that hold a lock of this name at once can only be slow, not wrong: folders are installed by renaming.
        lock.unlink(missing_ok=True)
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _install(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
        return
    except OSError:
        # Another process was first, or a damaged folder is in the way.
        if is_intact(folder):
            return
        if not folder.exists():
            raise
    damaged = temporary.with_suffix(".damaged")
    try:
        folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
        temporary.rename(folder)
    except OSError:
        if not is_intact(folder):
            raise

"""Files that are whole or absent: written to a temporary name, synced, renamed."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from depthscale.errors import DataError, ResultError


def atomic_write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` so that ``path`` holds either its old content or all of the new, even after a crash.

    Raises:
        ResultError: the disk is full or the folder cannot be written; the old file is untouched.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private to its owner; a result is as readable as any other new file.
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ResultError(_explain(path, error)) from error
    except BaseException:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise


def atomic_write_text(path: Path, content: str) -> None:
    """:func:`atomic_write_bytes` of UTF-8 text."""
    atomic_write_bytes(path, content.encode("utf-8"))


def local_path(text: str, what: str) -> Path:
    """A path a user wrote, with ``~`` expanded and fit to be looked at.

    Raises:
        DataError: no home to expand, or a name that no file can have.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise DataError(f"{what} '{shown}' is no usable path: {reason}; give the path of a file or folder") from error
    return path


def _explain(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"no space left while writing {path}; free some space and run the same command again"
    return f"cannot write {path}: {error.strerror or error}; choose a folder that can be written"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Streams: data sets too large to hold, read document by document through ``datasets``.

``stream:OWNER/NAME`` is a data set of the Hub, ``stream:FOLDER`` a local folder laid out like one (Parquet, JSONL or
text files). Documents come in the data set's own order, and reading can go on from any document: a position is plain
data, so that it can lie beside what was made of the documents before it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscale.errors import DataError, MissingExtraError, first_line
from depthscale.runs.data_config import STREAM_PREFIX
from depthscale.runs.files import local_path
from depthscale.training.corpora import DATA_EXTRA

DEFAULT_SPLIT = "train"

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class StreamSource:
    """Which documents a stream holds.

    Attributes:
        name: the Hub's OWNER/NAME, or the absolute path of a local folder.
        is_local: whether it is a folder.
        subset: the data set's configuration, if it has several.
        split: its split.
        text_field: the column that holds the text.
        revision: the commit asked for, if any.
    """

    name: str
    is_local: bool
    subset: str | None
    split: str
    text_field: str
    revision: str | None

    @classmethod
    def from_corpus(
        cls, corpus: str, *, subset: str | None, split: str | None, text_field: str, revision: str | None
    ) -> StreamSource:
        """The source that ``stream:NAME`` names; nothing is read yet.

        Raises:
            DataError: neither a folder nor a name that the Hub could have.
        """
        name = corpus.removeprefix(STREAM_PREFIX)
        path = local_path(name, "corpus")
        if path.is_dir():
            if revision is not None:
                raise DataError(f"corpus '{corpus}' is a folder, which has no revision; leave data.revision out")
            return cls(str(path.resolve()), True, subset, split or DEFAULT_SPLIT, text_field, None)
        # A name without an owner could be one of the loaders inside `datasets`, some of which read pickles.
        if not _HUB_NAME.fullmatch(name):
            raise DataError(
                f"corpus '{corpus}' is neither a folder nor a data set of the Hub; expected {STREAM_PREFIX}FOLDER or"
                f" {STREAM_PREFIX}OWNER/NAME, such as {STREAM_PREFIX}HuggingFaceFW/fineweb-edu"
            )
        return cls(name, False, subset, split or DEFAULT_SPLIT, text_field, revision)

    def identity(self) -> dict[str, str | None]:
        """What decides the documents without asking the Hub: of a folder, also sizes and times of its files."""
        return {
            "name": self.name,
            "subset": self.subset,
            "split": self.split,
            "text_field": self.text_field,
            "revision": _folder_fingerprint(Path(self.name)) if self.is_local else self.revision,
        }

    def listing(self) -> dict[str, int] | None:
        """Of a folder, the size of each of its files by name, wherever the folder lies; None for a data set of the Hub,
        whose commit says as much."""
        if not self.is_local:
            return None
        return {name: file.stat().st_size for name, file in _visible_files(Path(self.name))}

    def pinned_revision(self) -> str | None:
        """The commit that will be read: the one asked for, else the Hub's newest; None for a folder.

        Raises:
            DataError: the Hub does not answer, or knows no such data set.
        """
        if self.is_local or self.revision is not None:
            return self.revision
        try:
            from huggingface_hub import HfApi

            # Asked once, with a time limit: loading itself tries again for half a minute offline.
            return HfApi().dataset_info(self.name, timeout=_HUB_TIMEOUT_SECONDS).sha
        # The client lets through errors of its own, of its transport and of the operating system.
        except Exception as error:
            raise DataError(
                f"data set '{self.name}' cannot be reached: not on the Hub, or offline ({first_line(error)}); go"
                f" online, or copy it and name the folder: {STREAM_PREFIX}FOLDER"
            ) from error


@dataclass(frozen=True)
class StreamPosition:
    """Where reading goes on.

    Attributes:
        state: the reader's own state, None at the beginning.
        num_documents: documents read before it.
        reader: version of ``datasets`` that wrote the state.
    """

    state: Mapping[str, Any] | None = None
    num_documents: int = 0
    reader: str | None = None


def documents_from(
    source: StreamSource, revision: str | None, position: StreamPosition
) -> Iterator[tuple[str, StreamPosition]]:
    """Texts from ``position`` on, each with the position after it. Close the iterator to let go of the files.

    Raises:
        DataError: the data set, its configuration, split or text column is not there, or reading breaks off; what was
            read before that stays good.
        MissingExtraError: the extra that reads streams is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("a streamed corpus", DATA_EXTRA, "datasets") from error
    reader = importlib.metadata.version("datasets")
    number = position.num_documents
    rows: Any = None
    try:
        table = datasets.load_dataset(source.name, source.subset, split=source.split, revision=revision, streaming=True)
        if position.state is not None and position.reader == reader:
            table.load_state_dict(dict(position.state))
        elif number:
            # Another version may have another form of state; counting is slow and always right.
            table = table.skip(number)
        rows = iter(table)
        for row in rows:
            number += 1
            yield _text_of(row, source, number), StreamPosition(table.state_dict(), number, reader)
    except (DataError, GeneratorExit):
        raise
    # Loaders, file systems and decompressors let through errors of every kind.
    except Exception as error:
        reason = first_line(error)
        raise DataError(
            f"data set '{source.name}' cannot be opened ({reason}); check its files, data.subset and data.stream_split"
            if rows is None
            else f"data set '{source.name}' broke off after {number} documents ({reason}); give the same command again,"
            " which goes on from what is cached"
        ) from error
    finally:
        if hasattr(rows, "close"):
            rows.close()


def _text_of(row: Mapping[str, Any], source: StreamSource, number: int) -> str:
    if source.text_field not in row:
        columns = ", ".join(sorted(row)) or "none"
        raise DataError(
            f"data set '{source.name}' has no column '{source.text_field}'; its columns: {columns}. Name the right one"
            " in data.text_field"
        )
    text = row[source.text_field]
    if not isinstance(text, str):
        raise DataError(
            f"data set '{source.name}' document {number}: column '{source.text_field}' holds a"
            f" {type(text).__name__}; expected a string"
        )
    return text


def _folder_fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for name, file in _visible_files(folder):
        status = file.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _visible_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), file

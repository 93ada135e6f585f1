"""Corpora: the embedded default, a local file or a folder, read as a list of documents.

    ``stdlib``   the Python standard library's own sources of the running interpreter: real text, no download
    FILE.jsonl   one document a line, in the field ``text`` (or another that is named)
    FILE.parquet one document a row, in the column ``text`` (or another that is named)
    FILE         any other file is UTF-8 text and one document
    FOLDER       every .txt, .md, .py, .jsonl and .parquet file below it, in sorted order

Text is kept as it is, line ends included; a byte order mark is left out, and so are blank documents. Only the
sources of ``stdlib`` have their line ends made one, so that they read alike on every platform.

What is read here is held in memory as a whole; a corpus that is too large for that is a stream (streams.py).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from depthscale.errors import DataError, MissingExtraError, first_line
from depthscale.runs.data_config import STREAM_PREFIX
from depthscale.runs.files import local_path

STDLIB = "stdlib"
TEXT_SUFFIXES = (".txt", ".md", ".py")
JSONL_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"
#: The extra whose packages read Parquet files and streams.
DATA_EXTRA = "data"

_TEST_FOLDERS = {"test", "tests", "idle_test"}
_GENERATED_HEAD_LINES = 10
_GENERATED = re.compile(
    r"auto-?generated|automatically generated|this file is generated|do not edit|character mapping codec",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Document:
    """One text with a name that stays the same between readings (path below the corpus, and line or row)."""

    name: str
    text: str

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode())


def read_corpus(corpus: str, text_field: str = "text") -> list[Document]:
    """Read every document of a corpus, in a fixed order.

    Args:
        corpus: ``stdlib``, or the path of a file or folder.
        text_field: field of each JSONL line, or column of each Parquet file, that holds the text.

    Raises:
        DataError: nothing lies there, a file is binary or not UTF-8, a JSONL line or Parquet file lacks the field,
            or the corpus holds no text at all.
        MissingExtraError: a Parquet file came and the extra that reads it is not installed.
    """
    if corpus == STDLIB:
        documents = _read_stdlib()
    else:
        root, files = _local_files(corpus)
        documents = [
            document
            for file in files
            for document in _read_file(file, _name_below(root, file), text_field)
            if document.text.strip()
        ]
    if not documents:
        raise DataError(f"corpus '{corpus}' holds no text; expected at least one document that is not blank")
    return documents


def corpus_sha256(documents: Iterable[Document]) -> str:
    """SHA-256 over the texts in order, each after its length in bytes; names do not enter."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.text.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def corpus_fingerprint(corpus: str) -> str:
    """SHA-256 over path, size and modification time of each file of the corpus, without reading one.

    Two calls that answer alike may share what was made from the corpus; the corpus hash itself is always
    taken over the texts.

    Raises:
        DataError: nothing lies there.
    """
    root, files = (_stdlib_root(), _stdlib_files()) if corpus == STDLIB else _local_files(corpus)
    digest = hashlib.sha256(f"{root.resolve()}\0".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{_name_below(root, file)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


# -- the standard library ------------------------------------------------------------------------------


def _stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _stdlib_files() -> list[Path]:
    """The .py files of modules that Python itself lists, without tests.

    The list leaves out site-packages, dist-packages, the ``test`` package and build configuration.
    """
    root = _stdlib_root()
    if not root.is_dir():
        raise DataError(f"this Python keeps no library sources (no folder '{root}'); give the path of a corpus")
    listed = [entry for entry in root.iterdir() if entry.name.removesuffix(".py") in sys.stdlib_module_names]
    files = [file for entry in listed for file in ([entry] if entry.is_file() else entry.rglob("*.py"))]
    return sorted(
        (file for file in files if _TEST_FOLDERS.isdisjoint(file.relative_to(root).parts[:-1])),
        key=lambda file: _name_below(root, file),
    )


def _read_stdlib() -> list[Document]:
    root = _stdlib_root()
    documents = []
    for file in _stdlib_files():
        try:
            # It honors the coding line: one of the sources is not UTF-8.
            with tokenize.open(file) as source:
                text = source.read()
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read the library source '{file}': {error}; give the path of a corpus") from error
        if text.strip() and not is_generated(text):
            documents.append(Document(_name_below(root, file), text))
    return documents


def is_generated(source: str) -> bool:
    """Whether one of the first ten lines says that a program wrote the file.

    The words looked for are "auto-generated", "automatically generated", "this file is generated", "do not
    edit" and, for the tables in ``encodings``, "character mapping codec".

    Example:
        >>> is_generated("# Auto-generated by Tools/scripts/generate_token.py"), is_generated("import os")
        (True, False)
    """
    head = source.split("\n", _GENERATED_HEAD_LINES)[:_GENERATED_HEAD_LINES]
    return _GENERATED.search("\n".join(head)) is not None


# -- local files -----------------------------------------------------------------------------------------


def _name_below(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()


def _local_files(corpus: str) -> tuple[Path, list[Path]]:
    path = local_path(corpus, "corpus")
    if path.is_file():
        return path.parent, [path]
    if not path.is_dir():
        raise DataError(
            f"corpus '{corpus}' does not exist; expected '{STDLIB}', the path of a text, {JSONL_SUFFIX} or"
            f" {PARQUET_SUFFIX} file or of a folder of them, or {STREAM_PREFIX}NAME for a data set of the Hub"
        )
    suffixes = (*TEXT_SUFFIXES, JSONL_SUFFIX, PARQUET_SUFFIX)
    files = [
        file
        for file in path.rglob("*")
        if file.suffix.lower() in suffixes
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and file.is_file()
    ]
    if not files:
        raise DataError(f"folder '{corpus}' holds no {', '.join(suffixes)} file; expected at least one")
    return path, sorted(files, key=lambda file: file.relative_to(path).as_posix())


def _read_file(file: Path, name: str, text_field: str) -> Iterator[Document]:
    if file.suffix.lower() == JSONL_SUFFIX:
        yield from _read_jsonl(file, name, text_field)
    elif file.suffix.lower() == PARQUET_SUFFIX:
        yield from _read_parquet(file, name, text_field)
    else:
        yield Document(name, _decode(_read_bytes(file), str(file)))


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror}") from error


def _decode(data: bytes, place: str) -> str:
    if b"\0" in data:
        raise DataError(f"{place} is binary (it holds a zero byte); expected UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x});"
            " expected UTF-8 text: convert it, for example with iconv"
        ) from error


def _read_jsonl(file: Path, name: str, text_field: str) -> Iterator[Document]:
    # Lines end at \n only: JSON strings may hold the other line ends that str.splitlines knows.
    for number, line in enumerate(_read_bytes(file).split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{file} line {number}"
        try:
            record = json.loads(_decode(line, place))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place} is not JSON ({error}); expected one JSON object a line") from error
        if not isinstance(record, dict):
            raise DataError(f"{place} holds a {type(record).__name__}; expected a JSON object")
        if text_field not in record:
            fields = ", ".join(sorted(record)) or "none"
            raise DataError(f"{place} has no field '{text_field}'; its fields: {fields}. Name the right one")
        text = record[text_field]
        if not isinstance(text, str):
            raise DataError(f"{place}: field '{text_field}' holds a {type(text).__name__}; expected a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: field '{text_field}' holds half a surrogate pair") from error
        yield Document(f"{name}:{number}", text)


def _read_parquet(file: Path, name: str, text_field: str) -> Iterator[Document]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("a Parquet corpus", DATA_EXTRA, "pyarrow") from error
    number = 0
    try:
        with parquet.ParquetFile(file) as table:
            if text_field not in table.schema_arrow.names:
                columns = ", ".join(sorted(table.schema_arrow.names)) or "none"
                raise DataError(f"{file} has no column '{text_field}'; its columns: {columns}. Name the right one")
            kind = table.schema_arrow.field(text_field).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise DataError(f"{file}: column '{text_field}' holds {kind}; expected strings")
            for batch in table.iter_batches(columns=[text_field]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    if text is None:
                        raise DataError(f"{file} row {number}: column '{text_field}' holds no value; expected a string")
                    yield Document(f"{name}:{number}", text)
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read after row {number} ({first_line(error)}); expected a Parquet file"
        ) from error

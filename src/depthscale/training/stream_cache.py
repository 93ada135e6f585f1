"""The cache of a stream: its tokens in shards, written as they come and never tokenized twice.

    source.json                    what is read, pinned to a commit
    tuning.npy, report.npy         the held-out splits, from the head of the stream, whole documents
    train-000000.npy, …            all that follows, in shards of equal length
    NAME_starts.npy, NAME.json     where documents start; counts, hash, and where the stream goes on

A piece counts once its ``.json`` is there and its tokens have the hash that stands in it. Each says where the stream
goes on, so a process that was killed at any moment begins again with the piece it was at, and makes the same one.
Processes that share the cache take turns by a lock, and each shard is made once.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from depthscale.errors import DataError, ResultError
from depthscale.runs.files import atomic_write_bytes, atomic_write_text
from depthscale.training.cache import CACHE_VARIABLE
from depthscale.training.streams import StreamPosition, StreamSource, documents_from
from depthscale.training.token_stream import TokenPosition, Tokens, TokenStream
from depthscale.training.tokenizer import tokenizer_sha256

# To be raised whenever the same settings would give other tokens or another layout.
SCHEMA_VERSION = 2
#: Tokens of a training shard: 32 MB on disk for a vocabulary up to 65,536.
SHARD_TOKENS = 2**24
HELD_OUT_SPLITS = ("tuning", "report")

_SOURCE = "source.json"


@dataclass(frozen=True)
class Piece:
    """A split or shard of the cache.

    Attributes:
        ids: uint16 or uint32, a memory map.
        starts: offsets at which documents start.
        num_documents, num_bytes: of the documents that start in it.
        sha256: of the tokens.
        num_documents_read: documents of the stream that were read up to its end, those passed over included.
        ended: the stream ends with it.
    """

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    num_documents: int
    num_bytes: int
    sha256: str
    num_documents_read: int
    ended: bool


class StreamCache:
    """Tokens of one stream under one tokenizer; shards are made when they are first asked for.

    Args:
        cache_dir: holds a folder for each stream.
        source: the documents.
        tokenizer: makes tokens of them.
        held_out_tokens: length of each held-out split, to the end of a document.

    Raises:
        DataError: the stream cannot be read, or the cache not be written.
    """

    def __init__(
        self, cache_dir: Path, source: StreamSource, tokenizer: PreTrainedTokenizerFast, held_out_tokens: int
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.held_out_tokens = held_out_tokens
        # Looked up when the cache is opened, so that a test can make shards small.
        self.shard_tokens = SHARD_TOKENS
        identity = {
            "schema": SCHEMA_VERSION,
            **source.identity(),
            "tokenizer": tokenizer_sha256(tokenizer),
            "held_out_tokens": held_out_tokens,
            "shard_tokens": self.shard_tokens,
        }
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        self.folder = cache_dir / f"stream-{key}"
        self._lock = FileLock(cache_dir / f".stream-{key}.lock")
        self._stream: TokenStream | None = None
        self._excluded: dict[tuple[str, ...], frozenset[str]] = {}

    @property
    def revision(self) -> str | None:
        """The commit that the cache was begun with, and that all of it is read from; None for a folder."""
        path = self.folder / _SOURCE
        if path.exists():
            return _read_json(path)["revision"]
        revision = self.source.pinned_revision()
        atomic_write_text(path, json.dumps({**asdict(self.source), "revision": revision}, indent=1) + "\n")
        return revision

    def held_out(self, split: str) -> Piece:
        """``tuning`` or ``report``, made if it is not there yet."""
        return self._piece(split)

    def shard(self, index: int) -> Piece:
        """Training shard ``index``, made if it is not there yet, after all before it.

        Raises:
            DataError: the stream ends before it, or cannot be read.
        """
        return self._piece(f"train-{index:06d}")

    def close(self) -> None:
        """Let go of the files that are being read."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _piece(self, name: str) -> Piece:
        piece = self._read(name)
        if piece is not None:
            return piece
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock:
                return self._make_up_to(name)
        except (OSError, ResultError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise DataError(
                f"cannot write the data cache in '{self.folder}': {reason}; free space there, or set {CACHE_VARIABLE}"
                " to another folder"
            ) from error

    def _make_up_to(self, name: str) -> Piece:
        missing: list[str] = []
        position = TokenPosition(StreamPosition())
        # Backwards, as all before a whole piece was made before it. Another process may have made some meanwhile.
        for earlier in self._names_back_from(name):
            piece = self._read(earlier)
            if piece is not None:
                if piece.ended and missing:
                    raise DataError(self._too_short(earlier))
                position = TokenPosition.from_dict(_read_json(self.folder / f"{earlier}.json")["after"])
                break
            missing.append(earlier)
        if not missing:
            return self._require(name)
        for wanted in reversed(missing):
            tokens = self._tokens_of(wanted, position)
            self._write(wanted, tokens)
            position = tokens.after
            if tokens.ended:
                self.close()
                if wanted != name:
                    raise DataError(self._too_short(wanted))
        return self._require(name)

    def _names_back_from(self, name: str) -> Iterator[str]:
        """The piece and all before it, backwards."""
        last_held_out = len(HELD_OUT_SPLITS) - 1
        if name in HELD_OUT_SPLITS:
            last_held_out = HELD_OUT_SPLITS.index(name)
        else:
            for index in range(int(name.removeprefix("train-")), -1, -1):
                yield f"train-{index:06d}"
        for index in range(last_held_out, -1, -1):
            yield HELD_OUT_SPLITS[index]

    def _tokens_of(self, name: str, position: TokenPosition) -> Tokens:
        stream = self._stream_at(position, self._held_out_before(name))
        if name in HELD_OUT_SPLITS:
            return stream.take_documents(self.held_out_tokens)
        return stream.take(self.shard_tokens)

    def _stream_at(self, position: TokenPosition, excluded: frozenset[str]) -> TokenStream:
        """The stream that is being read if it stands there, else one that is opened there."""
        if self._stream is None or self._stream.position != position or self._stream.excluded != excluded:
            self.close()
            revision = self.revision

            def read(start: StreamPosition) -> Iterator[tuple[str, StreamPosition]]:
                return documents_from(self.source, revision, start)

            self._stream = TokenStream(read, self.tokenizer, position, excluded)
        return self._stream

    def _held_out_before(self, name: str) -> frozenset[str]:
        """SHA-256 of every text in the held-out splits before the piece: an exact copy of one must not come in it.

        What is trained on is not evaluated on, and what rates are chosen on is not reported on.
        """
        earlier = HELD_OUT_SPLITS[: HELD_OUT_SPLITS.index(name)] if name in HELD_OUT_SPLITS else HELD_OUT_SPLITS
        if earlier not in self._excluded:
            metas = [_read_json(self.folder / f"{split}.json") for split in earlier]
            self._excluded[earlier] = frozenset(text for meta in metas for text in meta["text_sha256"])
        return self._excluded[earlier]

    def _write(self, name: str, tokens: Tokens) -> None:
        if name in HELD_OUT_SPLITS and not len(tokens.ids):
            raise DataError(
                f"data set '{self.source.name}' holds too little text for the {name} split; lower"
                f" data.held_out_tokens, which is {self.held_out_tokens}"
            )
        atomic_write_bytes(self.folder / f"{name}.npy", _npy(tokens.ids))
        atomic_write_bytes(self.folder / f"{name}_starts.npy", _npy(tokens.starts))
        meta = {
            "num_tokens": len(tokens.ids),
            "num_documents": len(tokens.starts),
            "num_bytes": tokens.num_bytes,
            "sha256": _sha256(tokens.ids),
            "starts_sha256": _sha256(tokens.starts),
            "after": tokens.after.to_dict(),
            "ended": tokens.ended,
            **({"text_sha256": tokens.text_sha256} if name in HELD_OUT_SPLITS else {}),
        }
        # Last, as it says that the piece is there.
        atomic_write_text(self.folder / f"{name}.json", json.dumps(meta) + "\n")

    def _require(self, name: str) -> Piece:
        piece = self._read(name)
        if piece is None:
            raise DataError(f"the data cache in '{self.folder}' was damaged while it was written; delete that folder")
        return piece

    def _read(self, name: str) -> Piece | None:
        """The piece if it is there and whole."""
        try:
            meta = _read_json(self.folder / f"{name}.json")
            ids = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            starts = np.load(self.folder / f"{name}_starts.npy", allow_pickle=False)
            if _sha256(ids) != meta["sha256"] or _sha256(starts) != meta["starts_sha256"]:
                return None
            num_read = meta["after"]["documents"]["num_documents"]
            return Piece(ids, starts, meta["num_documents"], meta["num_bytes"], meta["sha256"], num_read, meta["ended"])
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    def _too_short(self, last: str) -> str:
        if last in HELD_OUT_SPLITS:
            return (
                f"data set '{self.source.name}' ends before the training split begins; lower data.held_out_tokens,"
                f" which is {self.held_out_tokens} for each of two splits"
            )
        index = int(last.removeprefix("train-"))
        num_tokens = index * self.shard_tokens + _read_json(self.folder / f"{last}.json")["num_tokens"]
        return (
            f"data set '{self.source.name}' ends after {num_tokens} training tokens; set data.train_tokens to no more"
            " than that (a run that takes more then begins a second epoch)"
        )


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))

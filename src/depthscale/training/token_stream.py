"""Tokens of a stream of documents, taken in lengths that need not end with a document."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from depthscale.training.dataset import pack_stream
from depthscale.training.streams import StreamPosition
from depthscale.training.tokenizer import encode_documents, vocabulary_size

#: Texts that are read ahead and encoded together.
_READ_AHEAD = 256

DocumentReader = Callable[[StreamPosition], Iterator[tuple[str, StreamPosition]]]


@dataclass(frozen=True)
class TokenPosition:
    """A place between two tokens: before a document, and so many of its tokens further."""

    documents: StreamPosition
    num_tokens_within: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TokenPosition:
        """Read what :meth:`to_dict` gave."""
        return cls(StreamPosition(**data["documents"]), data["num_tokens_within"])


@dataclass(frozen=True)
class Tokens:
    """A length of the stream.

    Attributes:
        ids: uint16 or uint32.
        starts: offsets at which documents start; one that began before is not among them.
        num_bytes: UTF-8 bytes of the documents that start here, whole.
        text_sha256: of the documents that start here, in order.
        after: where the stream goes on.
        ended: the stream has no further token.
    """

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    num_bytes: int
    text_sha256: tuple[str, ...]
    after: TokenPosition
    ended: bool


@dataclass(frozen=True)
class _Encoded:
    ids: NDArray[Any]
    num_bytes: int
    text_sha256: str
    before: StreamPosition
    after: StreamPosition


class TokenStream:
    """Documents of a reader as tokens, the end-of-text token after each.

    Blank documents, documents without a token and texts that are in ``excluded`` are passed over.

    Args:
        read: gives texts from a position on.
        tokenizer: makes tokens of them.
        position: where to begin.
        excluded: SHA-256 of texts that must not come.
    """

    def __init__(
        self,
        read: DocumentReader,
        tokenizer: PreTrainedTokenizerFast,
        position: TokenPosition,
        excluded: Collection[str] = (),
    ) -> None:
        self.position = position
        self.excluded = frozenset(excluded)
        self._tokenizer = tokenizer
        self._vocab_size = vocabulary_size(tokenizer)
        self._reader = read(position.documents)
        self._last_read = position.documents
        self._ahead: deque[_Encoded] = deque()

    def take(self, num_tokens: int) -> Tokens:
        """The next ``num_tokens`` tokens, or fewer where the stream ends."""
        return self._take(lambda length, document_is_whole: length >= num_tokens, cut_at=num_tokens)

    def take_documents(self, num_tokens: int) -> Tokens:
        """Whole documents until there are at least ``num_tokens`` tokens, or the stream ends."""
        return self._take(lambda length, document_is_whole: document_is_whole and length >= num_tokens, cut_at=None)

    def close(self) -> None:
        """Let go of the files that are being read."""
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()

    def _take(self, enough: Callable[[int, bool], bool], cut_at: int | None) -> Tokens:
        pieces: list[NDArray[Any]] = []
        starts: list[int] = []
        texts: list[str] = []
        length = num_bytes = 0
        ended = False
        while not enough(length, self.position.num_tokens_within == 0):
            document = self._next_document()
            if document is None:
                ended = True
                break
            begin = self.position.num_tokens_within
            end = len(document.ids) if cut_at is None else begin + cut_at - length
            piece = document.ids[begin:end]
            if begin == 0:
                starts.append(length)
                texts.append(document.text_sha256)
                num_bytes += document.num_bytes
            pieces.append(piece)
            length += len(piece)
            if begin + len(piece) == len(document.ids):
                self._ahead.popleft()
                self.position = TokenPosition(document.after)
            else:
                self.position = TokenPosition(document.before, begin + len(piece))
        ids = np.concatenate(pieces) if pieces else np.empty(0, np.uint16)
        return Tokens(ids, np.asarray(starts, np.int64), num_bytes, tuple(texts), self.position, ended)

    def _next_document(self) -> _Encoded | None:
        """The document that the position is in or before; it stays first in line."""
        while not self._ahead:
            read = []
            for text, after in self._reader:
                before, self._last_read = self._last_read, after
                digest = hashlib.sha256(text.encode()).hexdigest()
                if text.strip() and digest not in self.excluded:
                    read.append((text, digest, before, after))
                if len(read) == _READ_AHEAD:
                    break
            if not read:
                return None
            encoded = encode_documents(self._tokenizer, [text for text, *_ in read])
            for ids, (text, digest, before, after) in zip(encoded, read, strict=True):
                packed, _ = pack_stream([ids], end_of_text=self._tokenizer.eos_token_id, vocab_size=self._vocab_size)
                if len(packed):
                    self._ahead.append(_Encoded(packed, len(text.encode()), digest, before, after))
        return self._ahead[0]

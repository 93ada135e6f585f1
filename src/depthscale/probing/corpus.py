"""Texts to rows of tokens: one document a row, cut at the context length, padded on the right.

Nothing is silent: how many documents were cut, were too short to count, or got a beginning-of-sequence token is
counted in :class:`RowCounts` and stands in the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from depthscale.probing.errors import ProbingError
from depthscale.probing.states import TokenBatch

#: ``auto`` does what the tokenizer itself does.
BosChoice = Literal["auto", "always", "never"]

_ENCODE_BATCH = 32
#: Rows are sorted by length within so many batches, so that little is padded.
_SORTED_BATCHES = 8


@dataclass
class RowCounts:
    """What became of the documents.

    Attributes:
        documents: rows that count, one document each.
        tokens: positions that count: t where t and t + 1 are real tokens of the same document.
        real_tokens: tokens of those rows, BOS included.
        padding: pads beside them.
        bos: beginning-of-sequence tokens among them; as many as documents, or none.
        cut: documents longer than the context.
        one_token: documents left out because they have a single token, so that nothing follows it.
        empty: documents left out without a token.
    """

    documents: int = 0
    tokens: int = 0
    real_tokens: int = 0
    padding: int = 0
    bos: int = 0
    cut: int = 0
    one_token: int = 0
    empty: int = 0
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)

    @property
    def text_sha256(self) -> str:
        """SHA-256 over the texts that were read, each after its length in bytes."""
        return str(self._digest.hexdigest())

    def read(self, text: str) -> None:
        """Take a text into the hash."""
        data = text.encode("utf-8", errors="surrogatepass")
        self._digest.update(len(data).to_bytes(8, "little"))
        self._digest.update(data)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the result file."""
        counts = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "_digest"}
        return {**counts, "text_sha256": self.text_sha256}


@dataclass(frozen=True)
class DocumentBatch:
    """Rows and which documents they are, numbered from 0 in the order of the corpus."""

    batch: TokenBatch
    documents: torch.Tensor


@dataclass(frozen=True)
class SpecialTokens:
    """Which special tokens rows are made with.

    Attributes:
        bos: id put before every document; None for none.
        pad: id of padding, which is masked, so that any will do.
        pad_source: where that id is from.
    """

    bos: int | None
    pad: int
    pad_source: Literal["pad token", "end-of-text token", "token 0"]


def special_tokens(tokenizer: PreTrainedTokenizerBase, bos: BosChoice) -> SpecialTokens:
    """What the tokenizer has and the user asks for.

    Raises:
        ProbingError: ``always`` was asked of a tokenizer that has no beginning-of-sequence token.
    """
    bos_id = tokenizer.bos_token_id
    if bos == "always" and bos_id is None:
        raise ProbingError("--bos always: the tokenizer has no beginning-of-sequence token; use --bos never")
    if bos == "auto":
        first = tokenizer("a", add_special_tokens=True)["input_ids"][:1]
        bos_id = bos_id if first == [bos_id] else None
    if tokenizer.pad_token_id is not None:
        return SpecialTokens(None if bos == "never" else bos_id, int(tokenizer.pad_token_id), "pad token")
    if tokenizer.eos_token_id is not None:
        return SpecialTokens(None if bos == "never" else bos_id, int(tokenizer.eos_token_id), "end-of-text token")
    return SpecialTokens(None if bos == "never" else bos_id, 0, "token 0")


def document_batches(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    special: SpecialTokens,
    context_length: int,
    batch_tokens: int,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    counts: RowCounts | None = None,
) -> Iterator[DocumentBatch]:
    """Rows of tokens, sorted by length within a window of batches.

    A special token's name inside a text is ordinary text, so that the only BOS is the one put in front.

    Args:
        tokenizer: of the model.
        texts: one document each.
        special: from :func:`special_tokens`.
        context_length: tokens of a row, BOS included; longer documents are cut.
        batch_tokens: tokens of a batch at most, pads included; a longer row is a batch of its own.
        max_documents: stop after so many that count.
        max_tokens: stop when so many positions count; the last document is cut to hit the number.
        counts: filled in while the rows are made.

    Raises:
        ProbingError: no document has two tokens.
    """
    counts = RowCounts() if counts is None else counts
    rows_per_batch = max(1, batch_tokens // context_length)
    window: list[list[int]] = []
    first = 0
    for row in _rows(tokenizer, texts, special, context_length, max_documents, max_tokens, counts):
        window.append(row)
        if len(window) == rows_per_batch * _SORTED_BATCHES:
            yield from _batches(window, first, rows_per_batch, special.pad, counts)
            first += len(window)
            window = []
    yield from _batches(window, first, rows_per_batch, special.pad, counts)
    if counts.documents == 0:
        left_out = f"{counts.one_token} of one token, {counts.empty} empty"
        raise ProbingError(f"the corpus has no document of at least two tokens ({left_out}); give longer texts")


def _rows(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    special: SpecialTokens,
    context_length: int,
    max_documents: int | None,
    max_tokens: int | None,
    counts: RowCounts,
) -> Iterator[list[int]]:
    for text, ids in _encoded(tokenizer, texts):
        if max_documents is not None and counts.documents >= max_documents:
            return
        if max_tokens is not None and counts.tokens >= max_tokens:
            return
        counts.read(text)
        row = ids if special.bos is None else [special.bos, *ids]
        if len(row) < 2:
            counts.one_token += len(row) == 1
            counts.empty += len(row) == 0
            continue
        counts.cut += len(row) > context_length
        row = row[:context_length]
        if max_tokens is not None:
            row = row[: max_tokens - counts.tokens + 1]
        counts.documents += 1
        counts.tokens += len(row) - 1
        counts.real_tokens += len(row)
        counts.bos += special.bos is not None
        yield row


def _encoded(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[tuple[str, list[int]]]:
    waiting: list[str] = []
    for text in texts:
        waiting.append(text)
        if len(waiting) == _ENCODE_BATCH:
            yield from zip(waiting, _encode(tokenizer, waiting), strict=True)
            waiting = []
    yield from zip(waiting, _encode(tokenizer, waiting), strict=True)


def _encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    encoding = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        verbose=False,
    )
    found: list[list[int]] = encoding["input_ids"]
    return found


def _batches(
    window: list[list[int]], first: int, rows_per_batch: int, pad: int, counts: RowCounts
) -> Iterator[DocumentBatch]:
    # The longest come first: memory that will not be enough runs out at once.
    order = sorted(range(len(window)), key=lambda index: -len(window[index]))
    for start in range(0, len(order), rows_per_batch):
        chosen = order[start : start + rows_per_batch]
        length = len(window[chosen[0]])
        ids = torch.full((len(chosen), length), pad, dtype=torch.int64)
        mask = torch.zeros(len(chosen), length, dtype=torch.int64)
        for row, index in enumerate(chosen):
            ids[row, : len(window[index])] = torch.tensor(window[index])
            mask[row, : len(window[index])] = 1
        counts.padding += int((mask == 0).sum())
        padded = None if bool(mask.all()) else mask
        yield DocumentBatch(TokenBatch(ids, padded), torch.tensor([first + index for index in chosen]))

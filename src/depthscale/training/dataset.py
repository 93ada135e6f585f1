"""Packed token shards: documents end to end in one stream, cut into rows of T tokens.

The stream of a split is each document's tokens followed by the end-of-text token, which belongs to the
document that it ends. Row i is tokens i*T … (i+1)*T - 1, so that an epoch uses every token once.

What is a target. Labels are unshifted (the model shifts them) and -100 is no target:
  - the first token of a row has no context, so it is none;
  - with attention across documents off, the first token of a document is none either: the position
    that would predict it is the end of the document before, and that one has no say in what follows;
  - padding is none. Only evaluation splits are padded, in their last row; training leaves those tokens out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from depthscale.errors import DataError
from depthscale.nn.loss import IGNORED_LABEL

SMALLEST_CONTEXT = 3

Item = dict[str, torch.Tensor]


def stream_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """The narrowest unsigned integer that holds every id.

    Example:
        >>> stream_dtype(65_536).__name__, stream_dtype(65_537).__name__
        ('uint16', 'uint32')
    """
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def pack_stream(
    documents: Iterable[NDArray[np.int64]], *, end_of_text: int, vocab_size: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Join documents into one stream, the end-of-text token after each.

    Args:
        documents: token ids of each document, within [0, vocab_size). One without tokens is left out.
        end_of_text: the id that ends each document.
        vocab_size: decides the stream's width.

    Returns:
        The stream, uint16 or uint32, and int64 offsets at which its documents start.

    Raises:
        DataError: an id lies outside the vocabulary.
    """
    dtype = stream_dtype(vocab_size)
    pieces: list[NDArray[Any]] = []
    starts: list[int] = []
    length = 0
    for ids in documents:
        if not len(ids):
            continue
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise DataError(
                f"token id {ids.max() if ids.max() >= vocab_size else ids.min()} lies outside the vocabulary"
                f" of {vocab_size}; the tokenizer and its vocabulary do not fit"
            )
        starts.append(length)
        pieces.append(np.append(ids, end_of_text).astype(dtype))
        length += len(ids) + 1
    stream = np.concatenate(pieces) if pieces else np.empty(0, dtype)
    return stream, np.asarray(starts, dtype=np.int64)


class PackedDataset(Dataset[Item]):
    """Rows of T tokens over one packed stream.

    An item holds int64[T] tensors:
        ``input_ids``
        ``document_ids``: 0 for the row's first document, 1 for the next, …; padding counts to the last one
        ``labels``: the ids, or -100 where there is no target
        ``attention_mask``: 1 for tokens, 0 for padding

    Args:
        stream: token ids, possibly a memory map.
        starts: offsets at which documents start, ascending from 0.
        context_length: T, at least 3, so that a full row always holds a target.
        attend_across_documents: whether a document's first token may be predicted from the one before.
        pad_last_row: keep a shorter last row, padded, if it holds a target; otherwise leave its tokens out.
        pad_id: the id used as padding.

    Attributes:
        num_rows: rows in an epoch.
        num_tokens: tokens of the stream, used or not.
        num_dropped_tokens: tokens that no row holds.
        num_targets: labels that are not -100, over all rows.
        rows_per_block: None, as an epoch's rows are shuffled as a whole; see ``streamed_rows.py``.
    """

    rows_per_block = None

    def __init__(
        self,
        stream: NDArray[Any],
        starts: NDArray[np.int64],
        context_length: int,
        *,
        attend_across_documents: bool,
        pad_last_row: bool,
        pad_id: int,
    ) -> None:
        if context_length < SMALLEST_CONTEXT:
            raise DataError(f"context_length came as {context_length}; expected at least {SMALLEST_CONTEXT} tokens")
        self.stream = stream
        self.starts = starts
        self.context_length = context_length
        self.attend_across_documents = attend_across_documents
        self.pad_id = pad_id
        self.num_tokens = len(stream)
        full_rows, tail = divmod(len(stream), context_length)
        keep_tail = pad_last_row and self._count_targets(full_rows * context_length, len(stream)) > 0
        self.num_rows = full_rows + keep_tail
        self.num_dropped_tokens = 0 if keep_tail else tail
        self.num_targets = self._count_targets(0, len(stream) - self.num_dropped_tokens)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> Item:
        if not 0 <= row < self.num_rows:
            raise IndexError(f"row {row} of {self.num_rows}")
        low = row * self.context_length
        tokens = self.stream[low : low + self.context_length]
        num_padding = self.context_length - len(tokens)
        first, last = np.searchsorted(self.starts, [low, low + len(tokens)], side="left")
        starts_in_row = self.starts[first:last] - low

        input_ids = np.full(self.context_length, self.pad_id, dtype=np.int64)
        input_ids[: len(tokens)] = tokens
        begins_document = np.zeros(self.context_length, dtype=np.int64)
        # A document that starts with the row is its first, number 0, as is one that started before it.
        begins_document[starts_in_row[starts_in_row > 0]] = 1
        labels = input_ids.copy()
        labels[0] = IGNORED_LABEL
        if not self.attend_across_documents:
            labels[starts_in_row] = IGNORED_LABEL
        attention_mask = np.ones(self.context_length, dtype=np.int64)
        if num_padding:
            labels[-num_padding:] = IGNORED_LABEL
            attention_mask[-num_padding:] = 0
        return {
            "input_ids": torch.from_numpy(input_ids),
            "document_ids": torch.from_numpy(np.cumsum(begins_document)),
            "labels": torch.from_numpy(labels),
            "attention_mask": torch.from_numpy(attention_mask),
        }

    def _count_targets(self, low: int, high: int) -> int:
        """Targets among stream tokens ``low`` … ``high`` - 1, where ``low`` begins a row."""
        if high <= low:
            return 0
        num_row_starts = -(-(high - low) // self.context_length)
        no_targets = num_row_starts
        if not self.attend_across_documents:
            starts = self.starts[np.searchsorted(self.starts, low) : np.searchsorted(self.starts, high)]
            no_targets += int(np.count_nonzero(starts % self.context_length))
        return high - low - no_targets


class PackedCollator:
    """Stack items into a batch, leaving out what the batch does not need.

    ``document_ids`` is passed only when attention across documents is off and some row holds several, and
    ``attention_mask`` only when some row is padded: without both, attention is plainly causal and fast.
    """

    def __init__(self, *, attend_across_documents: bool) -> None:
        self.attend_across_documents = attend_across_documents

    def __call__(self, items: Sequence[Item]) -> Item:
        batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
        if self.attend_across_documents or not bool(batch["document_ids"].any()):
            del batch["document_ids"]
        if bool(batch["attention_mask"].all()):
            del batch["attention_mask"]
        return batch

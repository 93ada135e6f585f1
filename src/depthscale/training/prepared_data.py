"""What a run trains and is judged on: three packed splits of one text, with its tokenizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from depthscale.errors import DataError, unknown_name
from depthscale.training.dataset import PackedCollator, PackedDataset
from depthscale.training.near_duplicates import JACCARD_THRESHOLD, SHINGLE_WORDS
from depthscale.training.streamed_rows import StreamedRows

NEAR_DUPLICATE_RULE = f"word {SHINGLE_WORDS}-shingles, Jaccard similarity >= {JACCARD_THRESHOLD}"


@dataclass(frozen=True)
class PreparedSplit:
    """One split, packed.

    Attributes:
        dataset: its rows.
        num_documents: documents in it; of a stream's training split, in its first shard.
        num_bytes: their UTF-8 bytes, end-of-text tokens not counted.
    """

    dataset: PackedDataset | StreamedRows
    num_documents: int
    num_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream, end-of-text tokens included."""
        return self.dataset.num_tokens

    @property
    def counted_tokens(self) -> NDArray[Any]:
        """The tokens that ``num_bytes`` are the bytes of: all, or those of a stream's first shard."""
        return self.dataset.first_shard.ids if isinstance(self.dataset, StreamedRows) else self.dataset.stream

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes that a token stands for, on average."""
        return self.num_bytes / len(self.counted_tokens)

    def bits_per_byte(self, loss_nats: float) -> float:
        """loss_nats / ln 2 * num_tokens / num_bytes: comparable between tokenizers."""
        return loss_nats / math.log(2) * len(self.counted_tokens) / self.num_bytes


@dataclass(frozen=True)
class PreparedData:
    """A corpus, deduplicated, split, tokenized and packed.

    Attributes:
        name: the corpus as it was asked for.
        corpus_sha256: over all texts as read, before duplicates are dropped; of a stream, over its name, subset, split
            and commit and its held-out tokens.
        tokenizer: to be saved with every checkpoint.
        tokenizer_spec: the tokenizer as it was asked for.
        tokenizer_sha256: over its JSON form.
        vocab_size: rows that the model's embedding needs.
        splits: ``train``, ``tuning`` and ``report``.
        num_documents_read: documents before duplicates are dropped; of a stream, up to the end of its first shard.
        num_bytes_read: their UTF-8 bytes.
        num_exact_duplicates: documents dropped because an earlier one has the same text.
        num_near_duplicates: documents dropped because they resemble an earlier one.
        context_length: T.
        attend_across_documents: whether a row's documents see one another.
        split_settings: what decided the split.
        duplicate_rule: which documents were dropped as duplicates, in words.
    """

    name: str
    corpus_sha256: str
    tokenizer: PreTrainedTokenizerFast
    tokenizer_spec: str
    tokenizer_sha256: str
    vocab_size: int
    splits: dict[str, PreparedSplit]
    num_documents_read: int
    num_bytes_read: int
    num_exact_duplicates: int
    num_near_duplicates: int
    context_length: int
    attend_across_documents: bool
    split_settings: dict[str, Any]
    duplicate_rule: str = NEAR_DUPLICATE_RULE

    @property
    def collate(self) -> PackedCollator:
        """Stacks rows of any split into a batch for the model."""
        return PackedCollator(attend_across_documents=self.attend_across_documents)

    def unigram_loss_nats(self, split: str) -> float:
        """Cross-entropy of a split's tokens under the training split's token frequencies, the unigram floor.

        -sum_t n_t log q_t / sum_t n_t with q_t = (m_t + 1) / sum_t (m_t + 1); n counts the split's tokens,
        m those of ``train`` (of a stream: of its first shard). A model that stays above it has not learned to use its
        context.

        Args:
            split: ``train``, ``tuning`` or ``report``.

        Returns:
            Nats per token.
        """
        if split not in self.splits:
            raise DataError(unknown_name("split", split, self.splits))
        counts = self._token_counts(split)
        return float(-(counts @ self._train_log_frequencies) / counts.sum())

    def describe(self) -> dict[str, Any]:
        """Everything that a result must carry of its data, as plain JSON values."""
        return {
            "corpus": self.name,
            "corpus_sha256": self.corpus_sha256,
            "num_documents_read": self.num_documents_read,
            "num_bytes_read": self.num_bytes_read,
            "num_exact_duplicates": self.num_exact_duplicates,
            "num_near_duplicates": self.num_near_duplicates,
            "near_duplicate_rule": self.duplicate_rule,
            "tokenizer": self.tokenizer_spec,
            "tokenizer_sha256": self.tokenizer_sha256,
            "vocab_size": self.vocab_size,
            "context_length": self.context_length,
            "attend_across_documents": self.attend_across_documents,
            **self.split_settings,
            "splits": {
                name: {
                    "num_documents": split.num_documents,
                    "num_bytes": split.num_bytes,
                    "num_tokens": split.num_tokens,
                    "num_rows": split.dataset.num_rows,
                    **_targets(split.dataset),
                    "bytes_per_token": split.bytes_per_token,
                    "unigram_loss_nats": self.unigram_loss_nats(name),
                }
                for name, split in self.splits.items()
            },
        }

    def _token_counts(self, split: str) -> NDArray[np.float64]:
        return np.bincount(self.splits[split].counted_tokens, minlength=self.vocab_size).astype(np.float64)

    @cached_property
    def _train_log_frequencies(self) -> NDArray[np.float64]:
        smoothed = self._token_counts("train") + 1
        log_frequencies: NDArray[np.float64] = np.log(smoothed / smoothed.sum())
        return log_frequencies


def _targets(dataset: PackedDataset | StreamedRows) -> dict[str, int | None]:
    """Targets and dropped tokens over all rows; not known of rows that may not have come yet."""
    if isinstance(dataset, StreamedRows):
        return {"num_targets": None, "num_dropped_tokens": None}
    return {"num_targets": dataset.num_targets, "num_dropped_tokens": dataset.num_dropped_tokens}

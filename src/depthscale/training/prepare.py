"""From the name of a corpus and of a tokenizer to three packed splits, cached.

read -> drop exact and near-duplicates -> split by document -> tokenizer (trained on ``train``) -> pack
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from depthscale.errors import DataError, unknown_name
from depthscale.training.cache import cached_folder, default_cache_dir
from depthscale.training.corpora import corpus_fingerprint, corpus_sha256, read_corpus
from depthscale.training.dataset import PackedCollator, PackedDataset, pack_stream
from depthscale.training.near_duplicates import JACCARD_THRESHOLD, SHINGLE_WORDS, find_near_duplicates
from depthscale.training.splits import SPLITS, split_documents
from depthscale.training.tokenizer import (
    bpe_entries,
    encode_documents,
    is_trained_on_corpus,
    load_tokenizer,
    tokenizer_from_json,
    tokenizer_sha256,
    tokenizer_to_json,
    train_byte_level_bpe,
    vocabulary_size,
)

# To be raised whenever the same settings would give other tokens or another layout.
SCHEMA_VERSION = 1

_SUMMARY = "summary.json"
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class PreparedSplit:
    """One split, packed.

    Attributes:
        dataset: its rows.
        num_documents: documents in it.
        num_bytes: their UTF-8 bytes, end-of-text tokens not counted.
    """

    dataset: PackedDataset
    num_documents: int
    num_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream, end-of-text tokens included."""
        return self.dataset.num_tokens

    def bits_per_byte(self, loss_nats: float) -> float:
        """loss_nats / ln 2 * num_tokens / num_bytes: comparable between tokenizers."""
        return loss_nats / math.log(2) * self.num_tokens / self.num_bytes


@dataclass(frozen=True)
class PreparedData:
    """A corpus, deduplicated, split, tokenized and packed.

    Attributes:
        name: the corpus as it was asked for.
        corpus_sha256: over all texts as read, before duplicates are dropped.
        tokenizer: to be saved with every checkpoint.
        tokenizer_spec: the tokenizer as it was asked for.
        tokenizer_sha256: over its JSON form.
        vocab_size: rows that the model's embedding needs.
        splits: ``train``, ``tuning`` and ``report``.
        num_documents_read: documents before duplicates are dropped.
        num_bytes_read: their UTF-8 bytes.
        num_exact_duplicates: documents dropped because an earlier one has the same text.
        num_near_duplicates: documents dropped because they resemble an earlier one.
        context_length: T.
        attend_across_documents: whether a row's documents see one another.
        split_settings: the fractions and the seed of the split.
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
    split_settings: dict[str, float]

    @property
    def collate(self) -> PackedCollator:
        """Stacks rows of any split into a batch for the model."""
        return PackedCollator(attend_across_documents=self.attend_across_documents)

    def unigram_loss_nats(self, split: str) -> float:
        """Cross-entropy of a split's tokens under the training split's token frequencies, the unigram floor.

        -sum_t n_t log q_t / sum_t n_t with q_t = (m_t + 1) / sum_t (m_t + 1); n counts the split's tokens,
        m those of ``train``. A model that stays above it has not learned to use its context.

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
            "near_duplicate_rule": f"word {SHINGLE_WORDS}-shingles, Jaccard similarity >= {JACCARD_THRESHOLD}",
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
                    "num_targets": split.dataset.num_targets,
                    "num_dropped_tokens": split.dataset.num_dropped_tokens,
                    "bytes_per_token": split.num_bytes / split.num_tokens,
                    "unigram_loss_nats": self.unigram_loss_nats(name),
                }
                for name, split in self.splits.items()
            },
        }

    def _token_counts(self, split: str) -> NDArray[np.float64]:
        stream = self.splits[split].dataset.stream
        return np.bincount(stream, minlength=self.vocab_size).astype(np.float64)

    @cached_property
    def _train_log_frequencies(self) -> NDArray[np.float64]:
        smoothed = self._token_counts("train") + 1
        log_frequencies: NDArray[np.float64] = np.log(smoothed / smoothed.sum())
        return log_frequencies


def prepare_data(
    *,
    corpus: str,
    tokenizer: str,
    context_length: int,
    tuning_fraction: float,
    report_fraction: float,
    split_seed: int,
    attend_across_documents: bool,
    text_field: str = "text",
    cache_dir: Path | None = None,
) -> PreparedData:
    """Prepare a corpus, or find it prepared in the cache.

    The cache is keyed by the corpus's files (path, size, time of change), the tokenizer, the split and the
    rules for duplicates; neither the context length nor the attention choice enters, since they are applied
    to the stream when it is read.

    Args:
        corpus: ``stdlib``, or the path of a text file, a .jsonl file or a folder.
        tokenizer: ``bytes``, ``bpe:N``, or the path or Hub id of a pretrained one.
        context_length: tokens per row, at least 3.
        tuning_fraction: share of the bytes for ``tuning``.
        report_fraction: share of the bytes for ``report``.
        split_seed: which documents go where.
        attend_across_documents: whether documents in one row see one another.
        text_field: field of JSONL lines that holds the text.
        cache_dir: default ``$DEPTHSCALE_CACHE``, else the user's cache folder.

    Raises:
        DataError: the corpus, tokenizer, fractions or cache cannot be used as given, or the training split
            does not fill one row.
    """
    if is_trained_on_corpus(tokenizer):
        bpe_entries(tokenizer)
        pretrained = None
    else:
        pretrained = load_tokenizer(tokenizer)
    # Before anything is encoded: encoding resets truncation, which is part of the JSON form.
    pretrained_sha256 = None if pretrained is None else tokenizer_sha256(pretrained)
    split_settings = {
        "tuning_fraction": tuning_fraction,
        "report_fraction": report_fraction,
        "split_seed": split_seed,
    }
    key_parts = {
        "schema": SCHEMA_VERSION,
        "corpus": corpus_fingerprint(corpus),
        "text_field": text_field,
        "tokenizer": pretrained_sha256 or tokenizer,
        "near_duplicates": [SHINGLE_WORDS, JACCARD_THRESHOLD],
        **split_settings,
    }
    key = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        _build(folder, corpus, text_field, tokenizer, pretrained, tuning_fraction, report_fraction, split_seed)

    folder = cached_folder(cache_dir or default_cache_dir(), key, build)
    if pretrained is None:
        pretrained = tokenizer_from_json((folder / _TOKENIZER).read_text(encoding="utf-8"))
    summary = json.loads((folder / _SUMMARY).read_text())
    splits = {
        name: PreparedSplit(
            dataset=PackedDataset(
                np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False),
                np.load(folder / f"{name}_starts.npy", allow_pickle=False),
                context_length,
                attend_across_documents=attend_across_documents,
                pad_last_row=name != "train",
                pad_id=pretrained.eos_token_id,
            ),
            **summary["splits"][name],
        )
        for name in SPLITS
    }
    _require_rows(splits, context_length)
    return PreparedData(
        name=corpus,
        tokenizer=pretrained,
        tokenizer_spec=tokenizer,
        tokenizer_sha256=pretrained_sha256 or tokenizer_sha256(pretrained),
        vocab_size=vocabulary_size(pretrained),
        splits=splits,
        context_length=context_length,
        attend_across_documents=attend_across_documents,
        split_settings=split_settings,
        **summary["corpus"],
    )


def _build(
    folder: Path,
    corpus: str,
    text_field: str,
    spec: str,
    pretrained: PreTrainedTokenizerFast | None,
    tuning_fraction: float,
    report_fraction: float,
    split_seed: int,
) -> None:
    documents = read_corpus(corpus, text_field)
    duplicates = find_near_duplicates([document.text for document in documents])
    parts = split_documents(
        [documents[index] for index in duplicates.kept],
        tuning_fraction=tuning_fraction,
        report_fraction=report_fraction,
        seed=split_seed,
    )
    tokenizer = pretrained
    if tokenizer is None:
        tokenizer = train_byte_level_bpe([document.text for document in parts["train"]], bpe_entries(spec))
        (folder / _TOKENIZER).write_text(tokenizer_to_json(tokenizer), encoding="utf-8")
    for name, part in parts.items():
        stream, starts = pack_stream(
            encode_documents(tokenizer, [document.text for document in part]),
            end_of_text=tokenizer.eos_token_id,
            vocab_size=vocabulary_size(tokenizer),
        )
        if not len(stream):
            raise DataError(f"tokenizer '{spec}' makes no token of the {name} split; choose another tokenizer")
        np.save(folder / f"{name}.npy", stream, allow_pickle=False)
        np.save(folder / f"{name}_starts.npy", starts, allow_pickle=False)
    summary = {
        "corpus": {
            "corpus_sha256": corpus_sha256(documents),
            "num_documents_read": len(documents),
            "num_bytes_read": sum(document.num_bytes for document in documents),
            "num_exact_duplicates": len(duplicates.exact),
            "num_near_duplicates": len(duplicates.near),
        },
        "splits": {
            name: {"num_documents": len(part), "num_bytes": sum(document.num_bytes for document in part)}
            for name, part in parts.items()
        },
    }
    (folder / _SUMMARY).write_text(json.dumps(summary, indent=1))


def _require_rows(splits: dict[str, PreparedSplit], context_length: int) -> None:
    for name, split in splits.items():
        if not split.dataset.num_rows:
            raise DataError(
                f"the {name} split holds {split.num_tokens} tokens, too few for a row of {context_length};"
                " use a larger corpus, a larger fraction or a smaller context_length"
            )

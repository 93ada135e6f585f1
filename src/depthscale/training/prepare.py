"""From the name of a corpus and of a tokenizer to three packed splits, cached.

read -> drop exact and near-duplicates -> split by document -> tokenizer (trained on ``train``) -> pack

A stream is not read as a whole: its head is held out and the rest comes shard by shard, as it is trained on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from depthscale.errors import DataError
from depthscale.runs.data_config import DataConfig
from depthscale.training.cache import cached_folder, default_cache_dir
from depthscale.training.corpora import corpus_fingerprint, corpus_sha256, read_corpus
from depthscale.training.dataset import PackedDataset, pack_stream
from depthscale.training.near_duplicates import JACCARD_THRESHOLD, SHINGLE_WORDS, find_near_duplicates
from depthscale.training.prepared_data import PreparedData, PreparedSplit
from depthscale.training.splits import SPLITS, split_documents
from depthscale.training.stream_cache import HELD_OUT_SPLITS, StreamCache
from depthscale.training.streamed_rows import StreamedRows
from depthscale.training.streams import StreamSource
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

STREAM_DUPLICATE_RULE = (
    "none dropped, but exact copies of tuning texts from the report split, and of both from the training split"
)
#: Tokens of each held-out split of a stream, unless ``data.held_out_tokens`` says otherwise.
HELD_OUT_TOKENS = 2**20

_SUMMARY = "summary.json"
_TOKENIZER = "tokenizer.json"


def prepare_data(settings: DataConfig, *, cache_dir: Path | None = None) -> PreparedData:
    """Prepare a corpus, or find it prepared in the cache.

    The cache is keyed by the corpus's files (path, size, time of change), the tokenizer, the split and the
    rules for duplicates; neither the context length nor the attention choice enters, since they are applied
    to the stream when it is read.

    Args:
        settings: the text, its tokenizer, its splits and its rows.
        cache_dir: default ``$DEPTHSCALE_CACHE``, else the user's cache folder.

    Raises:
        DataError: the corpus, tokenizer, fractions or cache cannot be used as given, or the training split
            does not fill one row.
    """
    if is_trained_on_corpus(settings.tokenizer):
        bpe_entries(settings.tokenizer)
        pretrained = None
    else:
        pretrained = load_tokenizer(settings.tokenizer)
    if settings.is_stream:
        assert pretrained is not None, "a stream's settings name a tokenizer that is not trained on its text"
        return _prepare_stream(settings, pretrained, cache_dir or default_cache_dir())
    # Before anything is encoded: encoding resets truncation, which is part of the JSON form.
    pretrained_sha256 = None if pretrained is None else tokenizer_sha256(pretrained)
    split_settings = settings.model_dump(include={"tuning_fraction", "report_fraction", "split_seed"})
    key_parts = {
        "schema": SCHEMA_VERSION,
        "corpus": corpus_fingerprint(settings.corpus),
        "text_field": settings.text_field,
        "tokenizer": pretrained_sha256 or settings.tokenizer,
        "near_duplicates": [SHINGLE_WORDS, JACCARD_THRESHOLD],
        **split_settings,
    }
    key = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        _build(folder, settings, pretrained)

    folder = cached_folder(cache_dir or default_cache_dir(), key, build)
    if pretrained is None:
        pretrained = tokenizer_from_json((folder / _TOKENIZER).read_text(encoding="utf-8"))
    summary = json.loads((folder / _SUMMARY).read_text())
    splits = {
        name: PreparedSplit(
            dataset=PackedDataset(
                np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False),
                np.load(folder / f"{name}_starts.npy", allow_pickle=False),
                settings.context_length,
                attend_across_documents=settings.attend_across_documents,
                pad_last_row=name != "train",
                pad_id=pretrained.eos_token_id,
            ),
            **summary["splits"][name],
        )
        for name in SPLITS
    }
    _require_rows(splits, settings.context_length)
    return PreparedData(
        name=settings.corpus,
        tokenizer=pretrained,
        tokenizer_spec=settings.tokenizer,
        tokenizer_sha256=pretrained_sha256 or tokenizer_sha256(pretrained),
        vocab_size=vocabulary_size(pretrained),
        splits=splits,
        context_length=settings.context_length,
        attend_across_documents=settings.attend_across_documents,
        split_settings=split_settings,
        **summary["corpus"],
    )


def _build(folder: Path, settings: DataConfig, pretrained: PreTrainedTokenizerFast | None) -> None:
    documents = read_corpus(settings.corpus, settings.text_field)
    duplicates = find_near_duplicates([document.text for document in documents])
    parts = split_documents(
        [documents[index] for index in duplicates.kept],
        tuning_fraction=settings.tuning_fraction,
        report_fraction=settings.report_fraction,
        seed=settings.split_seed,
    )
    tokenizer = pretrained
    if tokenizer is None:
        tokenizer = train_byte_level_bpe(
            [document.text for document in parts["train"]], bpe_entries(settings.tokenizer)
        )
        (folder / _TOKENIZER).write_text(tokenizer_to_json(tokenizer), encoding="utf-8")
    for name, part in parts.items():
        stream, starts = pack_stream(
            encode_documents(tokenizer, [document.text for document in part]),
            end_of_text=tokenizer.eos_token_id,
            vocab_size=vocabulary_size(tokenizer),
        )
        if not len(stream):
            raise DataError(
                f"tokenizer '{settings.tokenizer}' makes no token of the {name} split; choose another tokenizer"
            )
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


def _prepare_stream(settings: DataConfig, tokenizer: PreTrainedTokenizerFast, cache_dir: Path) -> PreparedData:
    source = StreamSource.from_corpus(
        settings.corpus,
        subset=settings.subset,
        split=settings.stream_split,
        text_field=settings.text_field,
        revision=settings.revision,
    )
    cache = StreamCache(cache_dir, source, tokenizer, settings.held_out_tokens or HELD_OUT_TOKENS)
    # Before anything is encoded, as above.
    sha256 = tokenizer_sha256(tokenizer)
    assert settings.train_tokens is not None, "a stream's settings say it"
    held_out = {name: cache.held_out(name) for name in HELD_OUT_SPLITS}
    rules = {"attend_across_documents": settings.attend_across_documents, "pad_id": tokenizer.eos_token_id}
    train = StreamedRows(cache, settings.context_length, settings.train_tokens, **rules)
    pieces = {"train": train.first_shard, **held_out}
    identity = {
        **{key: value for key, value in source.identity().items() if not source.is_local or key == "split"},
        "revision": cache.revision,
        # Later shards are made when they are asked for: a folder's files must stand for them.
        "files": source.listing(),
        **{name: piece.sha256 for name, piece in pieces.items()},
    }
    splits = {
        name: PreparedSplit(
            train
            if name == "train"
            else PackedDataset(piece.ids, piece.starts, settings.context_length, pad_last_row=True, **rules),
            piece.num_documents,
            piece.num_bytes,
        )
        for name, piece in pieces.items()
    }
    _require_rows(splits, settings.context_length)
    return PreparedData(
        name=settings.corpus,
        corpus_sha256=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        tokenizer=tokenizer,
        tokenizer_spec=settings.tokenizer,
        tokenizer_sha256=sha256,
        vocab_size=vocabulary_size(tokenizer),
        splits=splits,
        num_documents_read=pieces["train"].num_documents_read,
        num_bytes_read=sum(piece.num_bytes for piece in pieces.values()),
        num_exact_duplicates=0,
        num_near_duplicates=0,
        context_length=settings.context_length,
        attend_across_documents=settings.attend_across_documents,
        split_settings={
            "train_tokens": settings.train_tokens,
            "held_out_tokens": cache.held_out_tokens,
            "subset": source.subset,
            "stream_split": source.split,
            "revision": cache.revision,
        },
        duplicate_rule=STREAM_DUPLICATE_RULE,
    )


def _require_rows(splits: dict[str, PreparedSplit], context_length: int) -> None:
    for name, split in splits.items():
        if not split.dataset.num_rows:
            raise DataError(
                f"the {name} split holds {split.num_tokens} tokens, too few for a row of {context_length};"
                " use a larger corpus, a larger fraction or a smaller context_length"
            )

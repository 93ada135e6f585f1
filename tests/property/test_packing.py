"""Packing for any documents and any row length."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthscale.training.dataset import IGNORED_LABEL, PackedCollator, PackedDataset, pack_stream
from depthscale.training.tokenizer import byte_tokenizer, encode_documents, train_byte_level_bpe

EOS = 40
TOKENIZERS = [byte_tokenizer(), train_byte_level_bpe(["the loop <|endoftext|> é\r\n  the end"] * 3, 270)]

documents_of_ids = st.lists(st.lists(st.integers(0, EOS - 1), min_size=1, max_size=30), min_size=1, max_size=12)


def packed(documents, context_length, attend, pad):
    stream, starts = pack_stream([np.array(ids, np.int64) for ids in documents], end_of_text=EOS, vocab_size=EOS + 1)
    return PackedDataset(stream, starts, context_length, attend_across_documents=attend, pad_last_row=pad, pad_id=EOS)


@given(documents_of_ids, st.integers(3, 20), st.booleans(), st.booleans())
def test_every_token_is_used_once_and_targets_are_counted(documents, context_length, attend, pad):
    dataset = packed(documents, context_length, attend, pad)
    rows = [dataset[index] for index in range(len(dataset))]
    used = torch.cat([torch.empty(0, dtype=torch.int64), *(r["input_ids"][r["attention_mask"] == 1] for r in rows)])
    expected = [token for ids in documents for token in [*ids, EOS]]
    assert used.tolist() == expected[: len(expected) - dataset.num_dropped_tokens]
    assert dataset.num_dropped_tokens < context_length
    assert dataset.num_targets == sum(int((row["labels"] != IGNORED_LABEL).sum()) for row in rows)
    assert all((row["labels"] != IGNORED_LABEL).any() for row in rows)


@given(documents_of_ids, st.integers(3, 20), st.booleans())
def test_document_ids_and_labels_follow_the_documents(documents, context_length, attend):
    dataset = packed(documents, context_length, attend, True)
    owner = [number for number, ids in enumerate(documents) for _ in range(len(ids) + 1)]
    for index in range(len(dataset)):
        row = dataset[index]
        real = int(row["attention_mask"].sum())
        owners = owner[index * context_length :][:real]
        assert row["document_ids"][:real].tolist() == [number - owners[0] for number in owners]
        assert set(row["document_ids"][real:].tolist()) <= {owners[-1] - owners[0]}
        for position in range(context_length):
            is_target = 0 < position < real and (attend or owners[position] == owners[position - 1])
            expected = int(row["input_ids"][position]) if is_target else IGNORED_LABEL
            assert row["labels"][position] == expected


@settings(max_examples=50)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=6), st.sampled_from(TOKENIZERS))
def test_the_stream_decodes_to_the_documents(texts, tokenizer):
    stream, starts = pack_stream(
        encode_documents(tokenizer, texts), end_of_text=tokenizer.eos_token_id, vocab_size=len(tokenizer)
    )
    ends = [*starts[1:], len(stream)][: len(starts)]
    decoded = [tokenizer.decode(stream[a : b - 1]) for a, b in zip(starts, ends, strict=True)]
    assert decoded == [text for text in texts if text]
    assert int((stream == tokenizer.eos_token_id).sum()) == len(decoded)


@given(documents_of_ids, st.integers(3, 12), st.booleans())
def test_a_batch_is_its_rows_whatever_its_size(documents, context_length, attend):
    dataset = packed(documents, context_length, attend, True)
    collate = PackedCollator(attend_across_documents=attend)
    rows = [dataset[index] for index in range(len(dataset))]
    for size in (1, 3, 8):
        batches = [collate(rows[low : low + size]) for low in range(0, len(rows), size)]
        for key in ("input_ids", "labels"):
            joined = torch.cat([torch.empty((0, context_length), dtype=torch.int64), *(b[key] for b in batches)])
            assert joined.tolist() == [row[key].tolist() for row in rows]
        for batch in batches:
            several = bool(batch.get("document_ids", torch.zeros(1)).any())
            assert several == ("document_ids" in batch)

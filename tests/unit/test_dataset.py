"""Packed rows, batches and the order of the data."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from depthscale.errors import DataError
from depthscale.training.batch_order import EpochOrderSampler, epoch_order
from depthscale.training.dataset import IGNORED_LABEL, PackedCollator, PackedDataset, pack_stream

EOS = 9


def packed(lengths, context_length, *, attend=False, pad=True):
    documents = [np.full(length, number % EOS, np.int64) for number, length in enumerate(lengths)]
    stream, starts = pack_stream(documents, end_of_text=EOS, vocab_size=10)
    return PackedDataset(stream, starts, context_length, attend_across_documents=attend, pad_last_row=pad, pad_id=EOS)


def test_a_stream_is_the_documents_each_with_its_end():
    stream, starts = pack_stream(
        [np.array([1, 2]), np.array([], np.int64), np.array([3])], end_of_text=EOS, vocab_size=10
    )
    assert stream.tolist() == [1, 2, EOS, 3, EOS]
    assert starts.tolist() == [0, 3]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32), (70_000, np.uint32)])
def test_the_integer_width_holds_every_id(vocab_size, dtype):
    largest = vocab_size - 1
    stream, _ = pack_stream([np.array([0, largest])], end_of_text=largest, vocab_size=vocab_size)
    assert stream.dtype == dtype
    assert stream.tolist() == [0, largest, largest]


@pytest.mark.parametrize("wrong", [-1, 10, 70_000])
def test_an_id_outside_the_vocabulary_is_refused(wrong):
    with pytest.raises(DataError, match=f"token id {wrong} lies outside the vocabulary of 10"):
        pack_stream([np.array([1, wrong])], end_of_text=EOS, vocab_size=10)


def test_one_row_by_hand_with_documents_kept_apart():
    # The stream is 0 0 9, 1 1 1 9, 2 2 9: ten tokens in rows of four.
    dataset = packed([2, 3, 2], 4)
    rows = [dataset[index] for index in range(3)]
    assert [row["input_ids"].tolist() for row in rows] == [[0, 0, 9, 1], [1, 1, 9, 2], [2, 9, 9, 9]]
    assert [row["document_ids"].tolist() for row in rows] == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert [row["labels"].tolist() for row in rows] == [
        [-100, 0, 9, -100],
        [-100, 1, 9, -100],
        [-100, 9, -100, -100],
    ]


def test_attending_across_documents_makes_their_first_tokens_targets():
    dataset = packed([2, 3, 1], 4, attend=True)
    assert dataset[0]["labels"].tolist() == [-100, 0, 9, 1]
    assert dataset[0]["document_ids"].tolist() == [0, 0, 0, 1]


def test_a_document_that_begins_with_the_row_is_number_zero():
    dataset = packed([3, 3], 4)
    assert dataset[1]["document_ids"].tolist() == [0, 0, 0, 0]
    assert dataset[1]["labels"].tolist() == [-100, 1, 1, 9]


def test_the_last_row_of_an_evaluation_split_is_padded():
    dataset = packed([6], 4)
    last = dataset[1]
    assert last["input_ids"].tolist() == [0, 0, EOS, EOS]
    assert last["labels"].tolist() == [-100, 0, EOS, -100]
    assert last["attention_mask"].tolist() == [1, 1, 1, 0]
    assert last["document_ids"].tolist() == [0, 0, 0, 0]
    assert (dataset.num_rows, dataset.num_dropped_tokens, dataset.num_targets) == (2, 0, 5)


def test_training_leaves_the_last_tokens_out_and_says_how_many():
    dataset = packed([6], 4, pad=False)
    assert (dataset.num_rows, dataset.num_dropped_tokens, dataset.num_targets) == (1, 3, 3)
    with pytest.raises(IndexError):
        dataset[1]


@pytest.mark.parametrize("attend", [False, True])
def test_a_last_row_without_a_target_is_left_out(attend):
    # A single token: a batch of that row alone would have the mean loss 0 / 0.
    dataset = packed([3, 4], 4, attend=attend)
    assert (dataset.num_rows, dataset.num_dropped_tokens) == (2, 1)


def test_too_short_a_context_is_refused():
    with pytest.raises(DataError, match="context_length came as 2; expected at least 3"):
        packed([5], 2)


def test_the_collator_passes_only_what_the_batch_needs():
    dataset = packed([3, 2, 8, 3], 4)
    several = [bool(dataset[index]["document_ids"].any()) for index in range(len(dataset))]
    alone, mixed = several.index(False), several.index(True)
    apart, together = (PackedCollator(attend_across_documents=attend) for attend in (False, True))
    assert set(apart([dataset[alone]])) == {"input_ids", "labels"}
    assert set(apart([dataset[alone], dataset[mixed]])) == {"input_ids", "labels", "document_ids"}
    assert set(together([dataset[alone], dataset[mixed]])) == {"input_ids", "labels"}
    padded = packed([6], 4)
    assert set(apart([padded[0], padded[1]])) == {"input_ids", "labels", "attention_mask"}
    assert all(value.dtype == torch.int64 for value in apart([padded[0], padded[1]]).values())


@pytest.mark.parametrize("attend", [False, True])
def test_the_loss_of_a_split_does_not_depend_on_the_batch_size(attend):
    # A bigram model by hand: the sum over targets of -log p(token | token before).
    dataset = packed([5, 2, 11, 3, 7], 6, attend=attend)
    log_p = torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)
    losses = []
    for batch_rows in (1, 3, 8):
        total, count = 0.0, 0
        for batch in DataLoader(dataset, batch_rows, collate_fn=PackedCollator(attend_across_documents=attend)):
            labels = batch["labels"][:, 1:]
            is_target = labels != IGNORED_LABEL
            scores = log_p[batch["input_ids"][:, :-1], labels.clamp(min=0)]
            total -= scores[is_target].sum().item()
            count += int(is_target.sum())
        assert count == dataset.num_targets
        losses.append(total / count)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-12)


# -- order -----------------------------------------------------------------------------------------------


def test_an_epoch_holds_every_row_once_and_epochs_and_seeds_differ():
    orders = [epoch_order(50, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    assert all(sorted(order.tolist()) == list(range(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert orders[0].dtype == np.int64


def test_the_order_stays_the_same_between_versions():
    # A snapshot (NumPy 2.4.6): committed studies must be repeatable.
    assert epoch_order(8, seed=3, epoch=2).tolist() == [4, 0, 5, 3, 7, 6, 1, 2]


def test_the_sampler_goes_on_across_epochs_without_a_gap():
    rows = list(EpochOrderSampler(7, seed=4, num_samples=20))
    expected = np.concatenate([epoch_order(7, 4, epoch) for epoch in range(3)])[:20]
    assert rows == expected.tolist()


@pytest.mark.parametrize("start", [0, 3, 7, 8, 15, 19])
def test_a_sampler_that_starts_later_gives_the_rest(start):
    whole = list(EpochOrderSampler(7, seed=4, num_samples=20))
    rest = EpochOrderSampler(7, seed=4, num_samples=20 - start, start=start)
    assert list(rest) == whole[start:]
    assert len(rest) == 20 - start


def test_a_loader_over_the_sampler_has_full_batches_over_the_epochs_edge():
    batches = list(BatchSampler(EpochOrderSampler(5, seed=0, num_samples=12), batch_size=4, drop_last=False))
    assert [len(batch) for batch in batches] == [4, 4, 4]


def test_bad_counts_are_refused():
    with pytest.raises(DataError, match="num_rows=0"):
        epoch_order(0, 0, 0)
    with pytest.raises(DataError, match="seed=-1"):
        epoch_order(3, -1, 0)
    with pytest.raises(DataError, match="num_samples=0"):
        EpochOrderSampler(3, 0, 0)

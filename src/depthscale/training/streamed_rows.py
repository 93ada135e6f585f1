"""Rows of T tokens over the shards of a stream; the training split of a corpus that is not held as a whole."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property

from torch.utils.data import Dataset

from depthscale.errors import DataError
from depthscale.training.dataset import SMALLEST_CONTEXT, Item, PackedDataset
from depthscale.training.stream_cache import Piece, StreamCache

#: Shards kept open; rows come shard by shard, and a batch may hold the end of one and the beginning of the next.
_OPEN_SHARDS = 2


class StreamedRows(Dataset[Item]):
    """The first ``train_tokens`` // T rows of a stream, as :class:`PackedDataset` gives them.

    Each shard is cut into rows by itself, and its last tokens that fill no row are left out. A row's shard is made
    when it is first asked for.

    Args:
        cache: the shards.
        context_length: T, from 3 to the tokens of a shard.
        train_tokens: tokens of an epoch.
        attend_across_documents: as for :class:`PackedDataset`.
        pad_id: as for :class:`PackedDataset`.

    Attributes:
        num_rows: rows in an epoch.
        num_tokens: tokens in an epoch.
        rows_per_block: rows of a shard; the order of an epoch goes shard by shard.
    """

    def __init__(
        self,
        cache: StreamCache,
        context_length: int,
        train_tokens: int,
        *,
        attend_across_documents: bool,
        pad_id: int,
    ) -> None:
        if not SMALLEST_CONTEXT <= context_length <= cache.shard_tokens:
            raise DataError(
                f"context_length came as {context_length}; expected {SMALLEST_CONTEXT} to {cache.shard_tokens} tokens,"
                " the length of a shard"
            )
        self.cache = cache
        self.context_length = context_length
        self.attend_across_documents = attend_across_documents
        self.pad_id = pad_id
        self.rows_per_block = cache.shard_tokens // context_length
        self.num_rows = train_tokens // context_length
        self.num_tokens = self.num_rows * context_length
        self._open: OrderedDict[int, PackedDataset] = OrderedDict()
        if self.num_rows:
            self._require_row(0)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> Item:
        if not 0 <= row < self.num_rows:
            raise IndexError(f"row {row} of {self.num_rows}")
        return self._require_row(row)[row % self.rows_per_block]

    @property
    def num_shards(self) -> int:
        """Shards in an epoch."""
        return -(-self.num_rows // self.rows_per_block)

    @cached_property
    def first_shard(self) -> Piece:
        """The shard that stands for the whole where tokens are counted."""
        return self.cache.shard(0)

    def make_all(self) -> None:
        """Make every shard of the epoch now, rather than when it is asked for.

        Raises:
            DataError: the stream ends before it.
        """
        for shard in range(self.num_shards):
            self._require_row(min((shard + 1) * self.rows_per_block, self.num_rows) - 1)

    def _require_row(self, row: int) -> PackedDataset:
        """The shard of a row, which must reach as far as the row."""
        index, within = divmod(row, self.rows_per_block)
        rows = self._shard(index)
        if within >= rows.num_rows:
            last = index * self.rows_per_block + rows.num_rows
            raise DataError(
                f"data set '{self.cache.source.name}' ends after {last} rows of {self.context_length} training tokens;"
                f" set data.train_tokens to at most {last * self.context_length} (a run that takes more then begins a"
                " second epoch)"
            )
        return rows

    def _shard(self, index: int) -> PackedDataset:
        if index in self._open:
            return self._open[index]
        piece = self.cache.shard(index)
        self._open[index] = PackedDataset(
            piece.ids,
            piece.starts,
            self.context_length,
            attend_across_documents=self.attend_across_documents,
            pad_last_row=False,
            pad_id=self.pad_id,
        )
        while len(self._open) > _OPEN_SHARDS:
            self._open.popitem(last=False)
        return self._open[index]

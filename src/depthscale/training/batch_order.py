"""The order in which rows are trained on: a function of the seed and the step alone.

Every arm of a comparison that uses the same seed therefore sees the same batches, and a resumed run goes on
where it stopped. Epochs follow one another without a gap: a batch may hold the last rows of one epoch and the
first of the next, so no row is skipped and no batch is short.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from depthscale.errors import DataError


def epoch_order(num_rows: int, seed: int, epoch: int, block: int | None = None) -> NDArray[np.int64]:
    """A permutation of the rows for one epoch, or of those of one block of it.

    It is the argsort of raw 64-bit draws of PCG64(seed, epoch), which NumPy keeps the same in every version; for a
    block of PCG64(seed, epoch, block).

    Args:
        num_rows: rows of the dataset or block, at least 1.
        seed: at least 0.
        epoch: from 0.
        block: from 0; None where the rows are shuffled as a whole.

    Returns:
        int64[num_rows], every row once.

    Example:
        >>> sorted(epoch_order(4, seed=0, epoch=0).tolist())
        [0, 1, 2, 3]
    """
    if num_rows < 1 or seed < 0 or epoch < 0:
        raise DataError(
            f"epoch_order came with num_rows={num_rows}, seed={seed}, epoch={epoch}; expected at least 1, 0 and 0"
        )
    entropy = [seed, epoch] if block is None else [seed, epoch, block]
    draws = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(num_rows)
    return np.argsort(draws, kind="stable").astype(np.int64)


class EpochOrderSampler(Sampler[int]):
    """Rows ``start``, ``start + 1``, … of the endless sequence of epoch orders, ``num_samples`` of them.

    A run of S steps with B rows a step takes ``num_samples = S * B`` and is one pass of its DataLoader,
    however many epochs that is. With ``rows_per_block``, blocks follow one another and rows are shuffled inside each:
    the order of a stream, whose later rows may not have come yet.
    """

    def __init__(
        self, num_rows: int, seed: int, num_samples: int, start: int = 0, rows_per_block: int | None = None
    ) -> None:
        if num_samples < 1 or start < 0:
            raise DataError(
                f"EpochOrderSampler came with num_samples={num_samples}, start={start}; expected at least 1 and 0"
            )
        self.num_rows = num_rows
        self.seed = seed
        self.num_samples = num_samples
        self.start = start
        self.rows_per_block = rows_per_block

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        end = self.start + self.num_samples
        position = self.start
        while position < end:
            epoch, offset = divmod(position, self.num_rows)
            block, first, count = None, 0, self.num_rows
            if self.rows_per_block is not None:
                block = offset // self.rows_per_block
                first = block * self.rows_per_block
                count = min(self.rows_per_block, self.num_rows - first)
            order = first + epoch_order(count, self.seed, epoch, block)
            rows = order[offset - first : offset - first + end - position]
            yield from rows.tolist()
            position += len(rows)

"""Each token's vector of layer angles, gathered in bounded memory: mean, covariance, and a uniform sample.

One feature a layer: theta(h_l, h_{l+1}), l = 0 ... L-1. Mean and covariance are of all tokens (pairwise updates,
Chan, Golub & LeVeque 1979, in float64); the sample keeps the tokens with the smallest of independent random keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DataError

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

#: Tokens kept: 30 layers of float64 are 16 MB.
CAPACITY = 65_536


@dataclass(frozen=True)
class TokenSample:
    """Some tokens with what is known of each.

    Attributes:
        vectors: [tokens, layers], radians.
        positions: [tokens], place in the document from 0.
        token_ids: [tokens].
        documents: [tokens], a number for each document.
    """

    vectors: Array
    positions: Whole
    token_ids: Whole
    documents: Whole

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> TokenSample:
        """Some of the tokens, by mask or index."""
        return TokenSample(self.vectors[rows], self.positions[rows], self.token_ids[rows], self.documents[rows])


class TokenVectors:
    """Running mean, covariance and sample of token vectors.

    Args:
        num_layers: length of a vector.
        capacity: tokens that the sample keeps at most.
        seed: of which tokens those are.

    Attributes:
        num_tokens: tokens that count.
        num_invalid: tokens left out, since an angle was not finite (a zero state has no direction).
    """

    def __init__(self, num_layers: int, capacity: int = CAPACITY, seed: int = 0) -> None:
        self.num_layers, self.capacity = num_layers, capacity
        self.num_tokens = self.num_invalid = 0
        self._generator = np.random.default_rng(seed)
        self._mean = np.zeros(num_layers)
        self._scatter = np.zeros((num_layers, num_layers))
        self._keys = np.empty(0)
        self._sample = TokenSample(np.empty((0, num_layers)), *(np.empty(0, dtype=np.int64) for _ in range(3)))

    def add(self, vectors: Array, positions: Whole, token_ids: Whole, documents: Whole) -> None:
        """Count some tokens.

        Args:
            vectors: [tokens, layers], radians.
            positions, token_ids, documents: [tokens].

        Raises:
            DataError: the arrays do not fit together.
        """
        count = len(vectors)
        if vectors.shape != (count, self.num_layers) or {len(positions), len(token_ids), len(documents)} != {count}:
            raise DataError(
                f"token vectors came with shape {vectors.shape} and {len(positions)} positions, {len(token_ids)} ids,"
                f" {len(documents)} documents; expected [tokens, {self.num_layers}] and one of each per token"
            )
        batch = TokenSample(vectors.astype(np.float64), positions, token_ids, documents)
        good = np.asarray(np.isfinite(batch.vectors).all(axis=1), dtype=np.bool_)
        self.num_invalid += int((~good).sum())
        batch = batch if good.all() else batch.take(good)
        if not len(batch):
            return
        mean = batch.vectors.mean(axis=0)
        centered = batch.vectors - mean
        total = self.num_tokens + len(batch)
        shift = mean - self._mean
        self._scatter += centered.T @ centered + np.outer(shift, shift) * (self.num_tokens * len(batch) / total)
        self._mean += shift * (len(batch) / total)
        self.num_tokens = total
        self._keep(batch)

    @property
    def mean(self) -> Array:
        """[layers], over all tokens."""
        return self._mean.copy()

    @property
    def covariance(self) -> Array:
        """[layers, layers], over all tokens, divided by their number less one."""
        result: Array = self._scatter / max(self.num_tokens - 1, 1)
        return result

    @property
    def sample(self) -> TokenSample:
        """The tokens kept: all of them, as long as they are no more than ``capacity``."""
        return self._sample

    def _keep(self, batch: TokenSample) -> None:
        keys = np.concatenate([self._keys, self._generator.random(len(batch))])
        joined = TokenSample(
            np.concatenate([self._sample.vectors, batch.vectors]),
            np.concatenate([self._sample.positions, batch.positions]),
            np.concatenate([self._sample.token_ids, batch.token_ids]),
            np.concatenate([self._sample.documents, batch.documents]),
        )
        if len(keys) > self.capacity:
            kept = np.sort(np.argpartition(keys, self.capacity)[: self.capacity])
            keys, joined = keys[kept], joined.take(kept)
        self._keys, self._sample = keys, joined

"""Near-duplicate documents, found by MinHash and confirmed by their true Jaccard similarity.

A document is the set of its word 5-shingles. Two documents are near-duplicates when the Jaccard similarity of
their sets, |A & B| / |A | B|, is at least 0.5. Candidates come from locality-sensitive hashing of 192 minima
in 64 bands of 3; each is checked on the sets themselves, so that no document is dropped by chance, and a pair
at 0.5 is missed with probability (1 - 0.5^3)^64 < 2e-4, one at 0.7 with (1 - 0.7^3)^64 < 1e-11.

Source: Broder 1997 (shingles, minima); Lee et al., arXiv 2107.06499 (5-shingles, before training). Where we
differ: they drop at 0.8, which leaves short files made from one template (similarity 0.68 among the standard
library's codecs) on both sides of a split.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHINGLE_WORDS = 5
JACCARD_THRESHOLD = 0.5
NUM_BANDS = 64
BAND_ROWS = 3

_WORD = re.compile(r"\w+")
_SEED = 20210714


@dataclass(frozen=True)
class Deduplication:
    """Which documents stay.

    Attributes:
        kept: indices that stay, ascending.
        exact: indices dropped because an earlier document has the same text.
        near: (dropped index, earlier index that it resembles) of each near-duplicate.
    """

    kept: tuple[int, ...]
    exact: tuple[int, ...]
    near: tuple[tuple[int, int], ...]


def find_near_duplicates(texts: Sequence[str]) -> Deduplication:
    """Keep the first of any texts that are equal or alike; compare with texts that stay only.

    Letter case and everything that is no word character are ignored by the shingles, so texts of fewer than
    five words are one shingle and texts without words are compared exactly.

    Args:
        texts: the documents' texts, in corpus order.
    """
    kept: list[int] = []
    exact: list[int] = []
    near: list[tuple[int, int]] = []
    seen: set[bytes] = set()
    shingles: dict[int, NDArray[np.uint64]] = {}
    buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
    word_hashes: dict[str, int] = {}
    for index, text in enumerate(texts):
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen:
            exact.append(index)
            continue
        seen.add(digest)
        own = _shingle_hashes(text, word_hashes)
        keys = _band_keys(own) if len(own) else []
        candidates = sorted({earlier for key in keys for earlier in buckets[key]})
        alike = next((c for c in candidates if jaccard(shingles[c], own) >= JACCARD_THRESHOLD), None)
        if alike is not None:
            near.append((index, alike))
            continue
        kept.append(index)
        shingles[index] = own
        for key in keys:
            buckets[key].append(index)
    return Deduplication(tuple(kept), tuple(exact), tuple(near))


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sets, each an array without repeats; in [0, 1].

    Example:
        >>> jaccard(np.array([1, 2, 3], np.uint64), np.array([2, 3, 4], np.uint64))
        0.5
    """
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared / (len(left) + len(right) - shared)


def _shingle_hashes(text: str, word_hashes: dict[str, int]) -> NDArray[np.uint64]:
    """Sorted distinct 64-bit hashes of the text's word shingles; ``word_hashes`` is a cache that grows."""
    words = _WORD.findall(text.lower())
    for word in words:
        if word not in word_hashes:
            word_hashes[word] = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
    hashes = np.fromiter((word_hashes[word] for word in words), dtype=np.uint64, count=len(words))
    if not len(hashes):
        return hashes
    width = min(SHINGLE_WORDS, len(hashes))
    windows = np.lib.stride_tricks.sliding_window_view(hashes, width)
    # A polynomial in an odd base, modulo 2^64: word order enters and no word's hash is lost.
    combined = np.zeros(len(windows), dtype=np.uint64)
    for position in range(width):
        combined = combined * np.uint64(0x9E3779B97F4A7C15) + windows[:, position]
    return np.unique(combined)


def _permutations() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Odd factors and offsets of the multiply-add hashes that stand for random permutations."""
    draws = np.random.PCG64(_SEED).random_raw(2 * NUM_BANDS * BAND_ROWS)
    factors, offsets = draws.reshape(2, -1)
    return factors | np.uint64(1), offsets


_FACTORS, _OFFSETS = _permutations()


def _band_keys(shingles: NDArray[np.uint64]) -> list[tuple[int, bytes]]:
    minima = np.empty(len(_FACTORS), dtype=np.uint64)
    for row, (factor, offset) in enumerate(zip(_FACTORS, _OFFSETS, strict=True)):
        minima[row] = (shingles * factor + offset).min()
    return [(band, minima[band * BAND_ROWS : (band + 1) * BAND_ROWS].tobytes()) for band in range(NUM_BANDS)]

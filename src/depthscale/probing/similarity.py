"""Do layers compute alike? Every block applied to every layer's state.

    u(l, l') = B_l(h_l') - h_l'                     block l on the state that enters layer l'
    cosine map   mean over tokens of cos(u(l, l'), u(l', l'))          1 on the diagonal
    size map     mean over tokens of ||u(l, l')|| / ||u(l', l')||

Two layers are alike where the block of one gives the other's update on the other's state, and the reverse. Groups come
from average linkage of 1 - the mean of both directions, cut where the mean silhouette is largest; one group is the
answer where no cut has a silhouette of ``SMALLEST_SILHOUETTE``.

Source: Rousseeuw 1987 for the silhouette, and its reading of values below a quarter as no structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from depthscale.probing.intervention_run import CleanPassage
from depthscale.probing.ledger import Ledger
from depthscale.statistics.angles import cosine

Array = NDArray[np.float64]

SMALLEST_SILHOUETTE = 0.25
MOST_GROUPS = 8


@dataclass(frozen=True)
class SimilarityMap:
    """The maps, block by state [N][N], and what they say.

    Attributes:
        cosines, sizes: see the module; None where no token has both updates.
        groups: group of each visit, numbered by first appearance.
        silhouette: mean silhouette of the groups; None with one group.
        num_tokens: tokens averaged over.
    """

    cosines: tuple[tuple[float | None, ...], ...]
    sizes: tuple[tuple[float | None, ...], ...]
    groups: tuple[int, ...]
    silhouette: float | None
    num_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def similarity_map(
    texts: Sequence[CleanPassage], ledger: Ledger, on_done: Callable[[int, int], None] | None = None
) -> SimilarityMap:
    """Measure both maps over some passages, one row of them (one block) at a time.

    Args:
        texts: from :func:`depthscale.probing.intervention_run.prepare`; N^2 block calls are made on each.
        ledger: keeps each row as it is measured.
        on_done: told how many blocks of how many are done.
    """
    num_visits = texts[0].clean.num_visits
    rows = []
    for block in range(num_visits):
        key = f"similarity/{block}"
        rows.append(ledger[key] if key in ledger else ledger.add(key, _row(texts, block)))
        if on_done is not None:
            on_done(block + 1, num_visits)
    cosines = np.array([[np.nan if v is None else v for v in row["cosines"]] for row in rows], dtype=np.float64)
    groups, silhouette = functional_groups(cosines)
    return SimilarityMap(
        tuple(tuple(row["cosines"]) for row in rows),
        tuple(tuple(row["sizes"]) for row in rows),
        groups,
        silhouette,
        sum(int(text.passage.counted.sum()) for text in texts),
    )


def functional_groups(cosines: Array) -> tuple[tuple[int, ...], float | None]:
    """Groups of visits and their mean silhouette, from a cosine map [N, N].

    Example:
        >>> alike = np.kron(np.eye(2), np.ones((3, 3)))
        >>> functional_groups(alike)
        ((0, 0, 0, 1, 1, 1), 1.0)
        >>> functional_groups(np.eye(4))
        ((0, 0, 0, 0), None)
    """
    size = len(cosines)
    one_group = (0,) * size
    if size < 3:
        return one_group, None
    distance = 1 - np.nan_to_num((cosines + cosines.T) / 2)
    np.fill_diagonal(distance, 0.0)
    distance = distance.clip(min=0.0)
    tree = linkage(squareform(distance, checks=False), "average")
    best, labels = SMALLEST_SILHOUETTE, None
    for count in range(2, min(MOST_GROUPS, size - 1) + 1):
        found = fcluster(tree, count, "maxclust")
        score = _silhouette(distance, found) if len(set(found)) > 1 else 0.0
        if score > best:
            best, labels = score, found
    if labels is None:
        return one_group, None
    order = {label: index for index, label in enumerate(dict.fromkeys(labels.tolist()))}
    return tuple(order[label] for label in labels.tolist()), best


def _silhouette(distance: Array, labels: NDArray[np.int32]) -> float:
    """Mean over members of (b - a) / max(a, b); 0 for one alone in its group."""
    scores = []
    for index, label in enumerate(labels):
        own = labels == label
        if own.sum() == 1:
            scores.append(0.0)
            continue
        within = distance[index, own].sum() / (own.sum() - 1)
        nearest = min(distance[index, labels == other].mean() for other in set(labels) - {label})
        largest = max(within, nearest)
        scores.append(float((nearest - within) / largest) if largest > 0 else 0.0)
    return float(np.mean(scores))


def _row(texts: Sequence[CleanPassage], block: int) -> dict[str, Any]:
    """One block on every layer's state: means over the tokens of all passages."""
    num_visits = texts[0].clean.num_visits
    sums = np.zeros((2, num_visits))
    counts = np.zeros(num_visits)
    with torch.no_grad():
        for text in texts:
            counted, clean = text.passage.counted, text.clean
            for layer in range(num_visits):
                state = clean.inputs[layer]
                # A copy, since some blocks write into the state that they are given.
                update = (clean.calls[block].apply(state.clone()) - state)[counted].float()
                own = clean.update(layer)[counted].float()
                likeness = cosine(update, own).double()
                known = likeness.isfinite()
                size = (update.norm(dim=-1) / own.norm(dim=-1)).double()
                sums[0, layer] += float(likeness[known].sum())
                sums[1, layer] += float(size[known].sum())
                counts[layer] += int(known.sum())
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return {"cosines": means[0].tolist(), "sizes": means[1].tolist()}

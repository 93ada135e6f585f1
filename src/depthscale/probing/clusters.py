"""Do all tokens use the depth alike? Groups of tokens by their vectors of layer angles.

The first three principal components of the vectors (from the covariance of all tokens) and the stop depth, which a
group that stops early differs in whatever the other variance is, are tested for a gap one by one. Without a proven and
deep gap the answer is one group; otherwise the deepest gap cuts the tokens in two.

Resamples are random halves of the documents, drawn without replacement, since a document drawn twice would put its
tokens on top of each other: a mean over halves varies as a mean over fresh sets of all documents does, so its
percentiles are intervals as they stand. Tokens of one document are not independent, documents are taken to be.

Source: the question and the figure to compare with (99.6 % of tokens even, 0.4 % stop early, in Pythia-410m) are arXiv
2602.05970's; the test is :mod:`depthscale.probing.gap`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DataError
from depthscale.probing.depth_use import stop_depths
from depthscale.probing.gap import FEWEST, LEVEL, NUM_FEATURES, Gap, find_gap
from depthscale.probing.token_vectors import TokenSample, TokenVectors

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

NUM_COMPONENTS = NUM_FEATURES - 1
STOP_DEPTH = "stop depth"
NUM_RESAMPLES = 50
#: Fewer documents than this give no interval and no stability.
FEWEST_DOCUMENTS = 8
_NUM_TOP_TOKENS = 10
_NUM_POSITIONS = 8
_NUM_SCATTER = 1500


@dataclass(frozen=True)
class Group:
    """One group of tokens, from the sample.

    Attributes:
        num_tokens: how many.
        num_distinct: different vectors among them; equal ones come from equal contexts.
        profile: mean angle of each layer [layers], radians.
        stop_depth: median over its tokens, see :mod:`depthscale.probing.depth_use`; None where none turns.
        first_share: share that are first tokens of documents.
        positions: share at each of the first positions of a document.
        top_tokens: most frequent token ids with their counts.
    """

    num_tokens: int
    num_distinct: int
    profile: tuple[float, ...]
    stop_depth: float | None
    first_share: float
    positions: tuple[float, ...]
    top_tokens: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Stability:
    """How the split fares on halves of the documents.

    Attributes:
        num_resamples: halves looked at.
        found: share of them in which two groups are found again.
        jaccard: mean overlap of the small group found with the one of all documents, 0 where none is found.
    """

    num_resamples: int
    found: float
    jaccard: float


@dataclass(frozen=True)
class TokenGroups:
    """The answer.

    Attributes:
        num_groups: 1 or 2.
        reason: the test in words.
        num_tokens, num_invalid: counted, and left out for an angle that does not exist.
        num_sampled, num_documents: what test and groups rest on.
        level: of the test, over its features together.
        explained: variance share of the first components.
        directions: [components][layers].
        feature: which one the cut is on, "component 1" ... or "stop depth"; None with one group.
        cut: where; radians along a component, a share of the layers for the stop depth.
        valley: density at the cut over the lower peak beside it.
        share: of the small group.
        share_interval: 95 % over halves of the documents; None with too few of them.
        small, large: the groups; with one group ``small`` is None.
        stability: None with one group or too few documents.
        scatter: (first component, second component, in the small group) of some tokens of each group.
    """

    num_groups: int
    reason: str
    num_tokens: int
    num_invalid: int
    num_sampled: int
    num_documents: int
    level: float
    explained: tuple[float, ...]
    directions: tuple[tuple[float, ...], ...]
    feature: str | None
    cut: float | None
    valley: float | None
    share: float | None
    share_interval: tuple[float, float] | None
    small: Group | None
    large: Group
    stability: Stability | None
    scatter: tuple[tuple[float, float, bool], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def token_groups(vectors: TokenVectors, seed: int = 0, num_resamples: int = NUM_RESAMPLES) -> TokenGroups:
    """Find out whether the tokens fall into one group or two.

    Args:
        vectors: what was gathered, at least FEWEST tokens.
        seed: of the resamples and of which tokens the scatter shows.
        num_resamples: halves of the documents.

    Raises:
        DataError: too few tokens.
    """
    sample = vectors.sample
    if len(sample) < FEWEST:
        raise DataError(f"{len(sample)} tokens came to look for groups in; expected at least {FEWEST}")
    generator = np.random.default_rng(seed)
    explained, directions = _components(vectors.covariance)
    scores = (sample.vectors - vectors.mean) @ directions
    features = _features(scores, sample.vectors)
    found, reason = _deepest_gap(features)
    documents = np.unique(sample.documents)
    small = np.zeros(len(sample), dtype=np.bool_)
    interval = stability = None
    if found is not None:
        small = _small_side(features[found[0]], found[1].cut)
        if len(documents) >= FEWEST_DOCUMENTS:
            interval, stability = _resample(sample, small, documents, generator, num_resamples)
    return TokenGroups(
        num_groups=1 if found is None else 2,
        reason=reason,
        num_tokens=vectors.num_tokens,
        num_invalid=vectors.num_invalid,
        num_sampled=len(sample),
        num_documents=len(documents),
        level=LEVEL,
        explained=tuple(explained.tolist()),
        directions=tuple(tuple(column) for column in directions.T.tolist()),
        feature=None if found is None else found[0],
        cut=None if found is None else found[1].cut,
        valley=None if found is None else found[1].valley,
        share=None if found is None else float(small.mean()),
        share_interval=interval,
        small=None if found is None else _describe(sample.take(small)),
        large=_describe(sample.take(~small)),
        stability=stability,
        scatter=_scatter(scores, small, generator),
    )


def _components(covariance: Array) -> tuple[Array, Array]:
    """Variance shares and directions [layers, components] of the first components, each with its largest entry up."""
    values, directions = np.linalg.eigh(covariance)
    count = min(NUM_COMPONENTS, len(values))
    values, directions = values[::-1], directions[:, ::-1][:, :count]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(count)])
    total = max(float(values.sum()), np.finfo(np.float64).tiny)
    return values[:count] / total, directions * signs


def _features(scores: Array, vectors: Array) -> dict[str, Array]:
    """What is tested: [tokens] each, the components first."""
    named = {f"component {index + 1}": column for index, column in enumerate(scores.T)}
    return {**named, STOP_DEPTH: stop_depths(vectors)}


def _deepest_gap(features: Mapping[str, Array]) -> tuple[tuple[str, Gap] | None, str]:
    gaps = []
    for name, values in features.items():
        known = values[np.isfinite(values)]
        gap = find_gap(known) if len(known) >= FEWEST else None
        if gap is not None:
            gaps.append((name, gap))
    if not gaps:
        return None, f"no component has a gap at the {LEVEL:.0%} level, nor has the stop depth"
    name, gap = min(gaps, key=lambda item: item[1].valley)
    if not gap.is_deep:
        return None, f"{name} has a shoulder only: its density falls to {gap.valley:.2f} of the lower peak"
    return (name, gap), (
        f"{name} has a gap at the {LEVEL:.0%} level, where the density is {gap.valley:.2f} of the lower peak beside it"
    )


def _small_side(scores: Array, cut: float) -> Mask:
    above: Mask = scores > cut
    return above if 2 * int(above.sum()) <= len(above) else ~above


def _resample(
    sample: TokenSample, small: Mask, documents: NDArray[np.int64], generator: np.random.Generator, count: int
) -> tuple[tuple[float, float], Stability]:
    shares, overlaps, hits = [], [], 0
    for _ in range(count):
        half = generator.choice(documents, size=len(documents) // 2, replace=False)
        rows = np.isin(sample.documents, half)
        shares.append(float(small[rows].mean()))
        again = _split(sample.vectors[rows])
        hits += again is not None
        overlaps.append(0.0 if again is None else _jaccard(again, small[rows]))
    low, high = np.quantile(shares, [0.025, 0.975])
    return (float(low), float(high)), Stability(count, hits / count, float(np.mean(overlaps)))


def _split(vectors: Array) -> Mask | None:
    """The small group of some tokens by themselves, or None."""
    if len(vectors) < FEWEST:
        return None
    _, directions = _components(np.cov(vectors, rowvar=False).reshape(vectors.shape[1], -1))
    scores = (vectors - vectors.mean(axis=0)) @ directions
    features = _features(scores, vectors)
    found, _ = _deepest_gap(features)
    return None if found is None else _small_side(features[found[0]], found[1].cut)


def _jaccard(first: Mask, second: Mask) -> float:
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else 1.0


def _describe(group: TokenSample) -> Group:
    depths = stop_depths(group.vectors)
    known = depths[np.isfinite(depths)]
    counts = np.bincount(group.positions.clip(max=_NUM_POSITIONS), minlength=_NUM_POSITIONS + 1)[:_NUM_POSITIONS]
    return Group(
        num_tokens=len(group),
        num_distinct=len(np.unique(group.vectors, axis=0)),
        profile=tuple(group.vectors.mean(axis=0).tolist()),
        stop_depth=float(np.median(known)) if len(known) else None,
        first_share=float((group.positions == 0).mean()),
        positions=tuple((counts / len(group)).tolist()),
        top_tokens=tuple(Counter(group.token_ids.tolist()).most_common(_NUM_TOP_TOKENS)),
    )


def _scatter(scores: Array, small: Mask, generator: np.random.Generator) -> tuple[tuple[float, float, bool], ...]:
    """Some tokens of each group, so that a small one is seen."""
    points: list[tuple[float, float, bool]] = []
    for mask in (~small, small):
        rows = np.flatnonzero(mask)
        if len(rows) > _NUM_SCATTER:
            rows = np.sort(generator.choice(rows, size=_NUM_SCATTER, replace=False))
        second = scores[rows, 1] if scores.shape[1] > 1 else np.zeros(len(rows))
        points += zip(scores[rows, 0].tolist(), second.tolist(), small[rows].tolist(), strict=True)
    return tuple(points)

"""Figures of regime evidence that follow from states alone, row by row of text, bulk and end layers apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthscale.probing.depth_use import bulk_layers, stop_depths
from depthscale.probing.intervals import Measured, mean_of_rows, resampled
from depthscale.probing.nulls import random_directions
from depthscale.statistics.angles import angle, cosine


@dataclass(frozen=True)
class Geometry:
    """Of one model on one text.

    Attributes:
        update_cosine: mean cosine of neighboring updates in the bulk.
        end_update_cosine: of the first two, and of the last two updates.
        update_cosine_profile: of each pair of neighbors, N - 1.
        angle: mean theta(h_l, h_{l+1}) in the bulk, radians.
        end_angles: of the first and of the last layer.
        straightness: ||sum of the bulk's updates|| over the sum of their norms: 1 for a straight line, about
            1 / sqrt(n) for n uncorrelated updates of one size.
        stop_spread: standard deviation over tokens of their stop depth, a share of the bulk's layers.
        even_spread: the same after every layer's angles changed places among the tokens, what is left of the spread
            where no token stops early as a whole.
    """

    update_cosine: Measured
    end_update_cosine: tuple[Measured, Measured]
    update_cosine_profile: tuple[float, ...]
    angle: Measured
    end_angles: tuple[Measured, Measured]
    straightness: Measured
    stop_spread: Measured
    even_spread: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class _Tokens:
    """Row of each token [n], update cosines [n, N-1], angles [n, N], straightness [n]."""

    rows: np.ndarray
    cosines: np.ndarray
    angles: np.ndarray
    straightness: np.ndarray


def geometry(
    states: Sequence[Sequence[Tensor]], counted: Sequence[Tensor], at_random: bool = False, seed: int = 0
) -> Geometry:
    """The figures over some passages.

    Args:
        states: of each passage h_0 ... h_N, each ``[rows, tokens, width]``.
        counted: of each passage bool ``[rows, tokens]``.
        at_random: give every update a random direction first, norms as they are: the null.
        seed: of directions, of the even spread's permutations and of resamples.
    """
    tokens = _tokens(states, counted, at_random, seed)
    num_layers = tokens.angles.shape[1]
    bulk = bulk_layers(num_layers)
    pairs = slice(bulk.start, bulk.stop - 1) if bulk.stop - bulk.start > 1 else slice(0, num_layers - 1)
    row_ids = np.unique(tokens.rows)
    by_row = [np.flatnonzero(tokens.rows == row) for row in row_ids]

    def measured(values: np.ndarray, unit: str = "") -> Measured:
        return mean_of_rows([float(_mean_of_finite(values[row], 0)) for row in by_row], unit, seed)

    depths = stop_depths(tokens.angles)
    center = _mean_of_finite(depths, 0)
    # Count, sum and sum of squares of each row about the mean of all, from which any draw of rows follows.
    moments = np.array([_moments(depths[row] - center) for row in by_row])

    def spread(rows: np.ndarray) -> float:
        return _deviation(moments[rows].sum(axis=0))

    generator = np.random.default_rng(seed)
    even = stop_depths(generator.permuted(tokens.angles, axis=0)) - center
    return Geometry(
        update_cosine=measured(_mean_of_finite(tokens.cosines[:, pairs], 1)),
        end_update_cosine=(measured(tokens.cosines[:, 0]), measured(tokens.cosines[:, -1])),
        update_cosine_profile=tuple(_mean_of_finite(tokens.cosines, 0).tolist()),
        angle=measured(_mean_of_finite(tokens.angles[:, bulk], 1), "rad"),
        end_angles=(measured(tokens.angles[:, 0], "rad"), measured(tokens.angles[:, -1], "rad")),
        straightness=measured(tokens.straightness),
        stop_spread=resampled(spread, len(by_row), seed=seed),
        even_spread=_deviation(_moments(even)),
    )


def _tokens(states: Sequence[Sequence[Tensor]], counted: Sequence[Tensor], at_random: bool, seed: int) -> _Tokens:
    rows, cosines, angles, straightness = [], [], [], []
    offset = 0
    for number, (passage, mask) in enumerate(zip(states, counted, strict=True)):
        picked = [state[mask].float() for state in passage]
        if at_random:
            picked = random_directions(picked, seed + number)
        updates = [after - before for before, after in pairwise(picked)]
        bulk = bulk_layers(len(updates))
        rows.append(mask.nonzero()[:, 0].cpu().numpy() + offset)
        cosines.append(torch.stack([cosine(a, b) for a, b in pairwise(updates)], dim=1))
        angles.append(torch.stack([angle(a, b) for a, b in pairwise(picked)], dim=1))
        total = (picked[bulk.stop] - picked[bulk.start]).norm(dim=-1)
        straightness.append(total / sum(update.norm(dim=-1) for update in updates[bulk]))
        offset += len(mask)
    return _Tokens(np.concatenate(rows), *(_numpy(parts) for parts in (cosines, angles, straightness)))


def _mean_of_finite(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean over an axis of what is finite; NaN where nothing is (a token that no layer moves)."""
    known = np.isfinite(values)
    sums, counts = np.where(known, values, 0.0).sum(axis=axis), known.sum(axis=axis)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _moments(values: np.ndarray) -> np.ndarray:
    known = values[np.isfinite(values)]
    return np.array([len(known), known.sum(), (known**2).sum()], dtype=np.float64)


def _deviation(moments: np.ndarray) -> float:
    """Standard deviation from count, sum and sum of squares about a center nearby."""
    count, total, squares = moments
    return float(np.sqrt(max(squares / count - (total / count) ** 2, 0.0))) if count else float("nan")


def _numpy(parts: Sequence[Tensor]) -> np.ndarray:
    found: np.ndarray = torch.cat(list(parts)).double().cpu().numpy()
    return found

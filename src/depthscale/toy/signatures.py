"""What a deep model does from state to state, and what it loses without a block or with two of them swapped.

    step norm      |h_{l+1} - h_l|                            ensemble averaging and a smooth flow: both about 1 / depth
    update angle   angle of h_{l+1} - h_l to the next         about pi/2 in an ensemble, small in a smooth flow
    turn           angle of h_l to h_{l+1}
    whole turn     angle of h_0 to h_L

Angles in radians, over inputs and layers in float64. Source: arXiv 2602.05970.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from depthscale.statistics.angles import angle
from depthscale.statistics.norms import root_mean_square

States = Sequence[Float[Tensor, "replicates inputs width"]]


def signatures(states: States) -> list[dict[str, Any]]:
    """Norms and angles of each replicate's states, means over inputs.

    Args:
        states: h_0 to h_L.

    Returns:
        For each replicate the means over layers, and the profile over layers of norms and update angles. A mean is null
        where there is nothing to take it of: a block that does nothing has no direction.
    """
    updates = [after - before for before, after in pairwise(states)]
    norms = torch.stack([_norm(state) for state in states], dim=1)
    step_norms = torch.stack([_norm(update) for update in updates], dim=1)
    turns = torch.stack([_angle(a, b) for a, b in pairwise(states)], dim=1)
    whole = _angle(states[0], states[-1])
    pairs = [_angle(a, b) for a, b in pairwise(updates)]
    update_angles = torch.stack(pairs, dim=1) if pairs else torch.empty(len(whole), 0)
    return [
        {
            "norm_start": float(norms[r, 0]),
            "norm_end": float(norms[r, -1]),
            "step_norm": float(step_norms[r].mean()),
            "turn": float(turns[r].mean()),
            "update_angle": float(update_angles[r].mean()) if pairs else None,
            "whole_turn": float(whole[r]),
            "profile": {
                "norm": norms[r].tolist(),
                "step_norm": step_norms[r].tolist(),
                "turn": turns[r].tolist(),
                "update_angle": update_angles[r].tolist(),
            },
        }
        for r in range(len(whole))
    ]


def swapped(schedule: Sequence[int]) -> list[tuple[int, ...]]:
    """Every schedule with two neighboring visits swapped, where that changes anything.

    Example:
        >>> swapped((0, 1, 1))
        [(1, 0, 1)]
    """
    found = []
    for place in range(len(schedule) - 1):
        if schedule[place] != schedule[place + 1]:
            changed = list(schedule)
            changed[place], changed[place + 1] = changed[place + 1], changed[place]
            found.append(tuple(changed))
    return found


def removed(schedule: Sequence[int]) -> list[tuple[int, ...]]:
    """Every schedule with one visit left out.

    Example:
        >>> removed((0, 1))
        [(1,), (0,)]
    """
    return [(*schedule[:place], *schedule[place + 1 :]) for place in range(len(schedule))]


def tolerance(
    losses: Callable[[Sequence[int]], Float[Tensor, " replicates"]], schedule: Sequence[int]
) -> list[dict[str, float | None]]:
    """Loss with visits swapped or left out, over the loss as trained: the geometric mean over places.

    Args:
        losses: loss of every replicate under a schedule.
        schedule: as trained.

    Returns:
        For each replicate ``swap`` and ``removal``; None where there is no such place.
    """
    as_trained = losses(schedule).double().log()

    def mean_ratio(schedules: Sequence[Sequence[int]]) -> list[float | None]:
        if not schedules:
            return [None] * len(as_trained)
        logs = torch.stack([losses(each).double().log() for each in schedules])
        return [float(value) for value in (logs.mean(dim=0) - as_trained).exp()]

    pairs = zip(mean_ratio(swapped(schedule)), mean_ratio(removed(schedule)), strict=True)
    return [{"swap": swap, "removal": removal} for swap, removal in pairs]


def _norm(x: Tensor) -> Tensor:
    return (root_mean_square(x) * x.shape[-1] ** 0.5).mean(dim=-1)


def _angle(x: Tensor, y: Tensor) -> Tensor:
    return angle(x, y).nanmean(dim=-1)

"""Quantities that refer to the end of the pass: they need all states of a micro-batch at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depthscale.probing.local_quantities import Values, norm, over_tokens
from depthscale.probing.located import LocatedModel
from depthscale.statistics.angles import angle, cosine


def end_quantities(located: LocatedModel, states: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Angles to the end, projection on the way from start to end, and cosine of each update with it.

    The end is the raw output of the last visit. ``angle_to_normed_end`` takes it after the final norm, as Hugging
    Face's last hidden state is; a model without a final norm has no such angle.

    Args:
        located: whose final norm is applied.
        states: h_0 ... h_N of one pass, ``[rows, tokens, width]``.

    Returns:
        name -> one tensor ``[rows * tokens]`` a layer.
    """
    start, end = states[0], states[-1]
    with torch.no_grad():
        normed = None if located.final_norm is None else located.final_norm(end)
    values: dict[str, list[Tensor]] = {}
    for layer, state in enumerate(states):
        device = state.device
        found = over_tokens(_of_state, [state, start.to(device), end.to(device)])
        if normed is not None:
            found |= over_tokens(_of_normed_end, [state, normed.to(device)])
        if layer < len(states) - 1:
            found |= over_tokens(_of_update, [state, states[layer + 1].to(device), start.to(device), end.to(device)])
        else:
            del found["angle_to_end"]
        for name, value in found.items():
            values.setdefault(name, []).append(value)
    return values


def _of_state(state: Tensor, start: Tensor, end: Tensor) -> Values:
    total = end - start
    along = ((state - start) * total).sum(dim=-1)
    return {"angle_to_end": angle(state, end), "projection_on_total": along / norm(total).square()}


def _of_normed_end(state: Tensor, normed_end: Tensor) -> Values:
    return {"angle_to_normed_end": angle(state, normed_end)}


def _of_update(state: Tensor, following: Tensor, start: Tensor, end: Tensor) -> Values:
    return {"update_total_cosine": cosine(following - state, end - start)}

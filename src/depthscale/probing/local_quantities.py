"""Quantities of neighbors: norms, updates and adjacent angles, computed while the model runs.

Only two earlier states are held, as references to what the model itself made; the work is done a slice of tokens at a
time, so that its temporaries stay in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from depthscale.probing.states import Visit
from depthscale.statistics.angles import angle

#: Elements of one slice of one state on a CPU; an accelerator takes all tokens at once.
_SLICE_ELEMENTS = 1 << 17

Values = dict[str, Tensor]


class LocalQuantities:
    """Told of every visit of one pass; holds one float per token, visit and quantity.

    Args:
        sublayers: also reduce the updates of attention and MLP.

    Attributes:
        values: name -> one tensor ``[rows * tokens]`` a layer, in float32 or better, in the order of the layers.
    """

    def __init__(self, sublayers: bool = False) -> None:
        self._sublayers = sublayers
        self.values: dict[str, list[Tensor]] = {}
        self._earlier: list[Tensor] = []
        self._parts: tuple[Tensor, Tensor] | None = None

    def begin(self, embedding_output: Tensor) -> None:
        """Start anew."""
        self.values = {}
        self._parts = None
        self._earlier = [embedding_output]
        self._append(over_tokens(_first_state, [embedding_output]))

    def visit(self, visit: Visit) -> None:
        """Reduce what one visit did."""
        # With a device map neighbors may lie on different devices.
        earlier = [state.to(visit.output.device) for state in self._earlier]
        self._append(over_tokens(_first_update if len(earlier) == 1 else _next_update, [*earlier, visit.output]))
        self._earlier = [earlier[-1], visit.output]
        if self._sublayers and visit.attention is not None and visit.mlp is not None:
            parts = (visit.attention, visit.mlp)
            self._append(over_tokens(_parts_of_visit, parts))
            if self._parts is not None:
                before = [part.to(visit.output.device) for part in self._parts]
                self._append(over_tokens(_parts_of_neighbors, [*before, *parts]))
            self._parts = parts

    def release(self) -> None:
        """Let go of the states that are still held."""
        self._earlier, self._parts = [], None

    def _append(self, values: Values) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)


def over_tokens(reduce: Callable[..., Values], states: Sequence[Tensor]) -> Values:
    """``reduce`` on slices of the tokens of states ``[..., width]``, in float32 or better, put together again.

    Args:
        reduce: takes as many tensors ``[tokens, width]`` and returns tensors ``[tokens]`` by name.
    """
    width = states[0].shape[-1]
    flat = [state.reshape(-1, width) for state in states]
    on_cpu = flat[0].device.type == "cpu"
    size = max(1, _SLICE_ELEMENTS // width) if on_cpu else max(1, flat[0].shape[0])
    dtype = torch.promote_types(flat[0].dtype, torch.float32)
    pieces = [
        reduce(*(state.to(dtype) for state in parts))
        for parts in zip(*(state.split(size) for state in flat), strict=True)
    ]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def norm(x: Tensor) -> Tensor:
    """|x| over the last axis."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return size


def _first_state(state: Tensor) -> Values:
    return {"hidden_state_norm": norm(state)}


def _first_update(before: Tensor, after: Tensor) -> Values:
    return _update(before, after, after - before)


def _next_update(earlier: Tensor, before: Tensor, after: Tensor) -> Values:
    update = after - before
    return {**_update(before, after, update), "update_angle": angle(before - earlier, update)}


def _update(before: Tensor, after: Tensor, update: Tensor) -> Values:
    turned = angle(before, after)
    size, start = norm(update), norm(before)
    return {
        "hidden_state_norm": norm(after),
        "update_norm": size,
        # A zero state has no size to compare with; infinity would be the mean of all.
        "relative_update_norm": (size / start).masked_fill(start == 0, math.nan),
        "state_angle": turned,
        # 1 - cos without its cancellation at small angles.
        "block_influence": 2 * torch.sin(turned / 2).square(),
    }


def _parts_of_visit(attention: Tensor, mlp: Tensor) -> Values:
    return {
        "attention_update_norm": norm(attention),
        "mlp_update_norm": norm(mlp),
        "attention_mlp_angle": angle(attention, mlp),
    }


def _parts_of_neighbors(attention: Tensor, mlp: Tensor, next_attention: Tensor, next_mlp: Tensor) -> Values:
    return {
        "attention_update_angle": angle(attention, next_attention),
        "mlp_update_angle": angle(mlp, next_mlp),
    }

"""One visit's keys and values, in memory that grows by doubling instead of being copied for every token."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer

#: Tokens of room beyond the first ones that come: a short text then never moves.
SMALLEST_ROOM = 64


class GrowingSlot(DynamicLayer):
    """transformers' ``DynamicLayer`` whose ``keys`` and ``values`` start longer buffers.

    ``DynamicLayer`` concatenates, so that each token copies all that the slot holds, and a looped model has a slot for
    every visit. Here new tokens are written behind the old ones and a full buffer doubles: a token costs the same
    copying however long the text before it is. Tensors that others put in place (reordered beams, offloading) are
    moved into a buffer of their own when the next token comes.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``[batch, heads, tokens, head_dim]`` and return all that the slot holds."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            # Writing in place would change what an earlier pass keeps for its backward.
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        total = length + key_states.shape[-2]
        if not self._has_room(total):
            room = max(total + SMALLEST_ROOM, 2 * length)
            self.buffers = (_moved(self.keys, key_states, room), _moved(self.values, value_states, room))
        assert self.buffers is not None
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[..., length:total, :] = new
        keys, values = (buffer[..., :total, :] for buffer in self.buffers)
        self.keys, self.values = keys, values
        return keys, values

    def fork(self) -> GrowingSlot:
        """A slot that holds the same tokens and writes its next ones elsewhere."""
        forked = GrowingSlot()
        forked.__dict__.update(self.__dict__, buffers=None)
        return forked

    def reset(self) -> None:
        super().reset()
        self.buffers = None

    def _has_room(self, total: int) -> bool:
        """Whether the held tensors still start the buffers, and ``total`` tokens fit there."""
        if self.buffers is None:
            return False
        return all(
            held.data_ptr() == buffer.data_ptr()
            and held.stride() == buffer.stride()
            and held.shape[0] == buffer.shape[0]
            and total <= buffer.shape[-2]
            for held, buffer in zip((self.keys, self.values), self.buffers, strict=True)
        )


def _moved(held: torch.Tensor, new: torch.Tensor, room: int) -> torch.Tensor:
    """A buffer like ``new`` with ``room`` tokens that starts with what is held."""
    *leading, _, head_dim = new.shape
    buffer = new.new_empty((*leading, room, head_dim))
    if held.numel():
        buffer[..., : held.shape[-2], :] = held
    return buffer

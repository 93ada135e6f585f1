"""Early exit: the next-token loss as if the model ended at layer l.

    logit_lens        head(final norm(h_l)); the norm is computed anew for every layer
    last_block_lens   head(final norm(last block(h_l))), the block called exactly as the model called it

Both equal the model's own loss at the last layer: l = N for the first, l = N - 1 for the second. Logits are made a
slice of tokens and of the vocabulary at a time, so that not even one layer's logits are ever whole.

Source: ``last_block_lens`` is the early exit of arXiv 2602.05970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from depthscale.probing.located import LocatedModel
from depthscale.probing.states import leaving_state

_TOKEN_SLICE = 512
_VOCABULARY_SLICE = 4096


@dataclass(frozen=True)
class BlockCall:
    """How a block was called: its positional arguments after the state, and its keywords but the state."""

    block: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state_name: str | None

    def repeat(self, located: LocatedModel, state: Tensor) -> Tensor:
        """The same call with another state, mask and positions as they were; the raw output."""
        block = located.blocks[self.block]
        if self.state_name is None:
            return leaving_state(block, block(state, *self.args, **self.kwargs))
        return leaving_state(block, block(**{self.state_name: state}, **self.kwargs))


def block_call(block: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BlockCall:
    """What :func:`~depthscale.probing.states.watch_visits` tells of a call, without its state."""
    if args:
        return BlockCall(block, args[1:], dict(kwargs), None)
    name = next(name for name in ("hidden_states", "hidden_state", "x") if name in kwargs)
    return BlockCall(block, (), {key: value for key, value in kwargs.items() if key != name}, name)


def logit_lens_losses(
    located: LocatedModel, states: Sequence[Tensor], targets: Tensor, counted: Tensor
) -> list[Tensor]:
    """Loss in nats at every l = 0 ... N, ``[counted tokens]`` each.

    Args:
        located: whose norm and head are used.
        states: h_0 ... h_N, ``[rows, tokens, width]``.
        targets: int64 ``[rows, tokens]``, the token after each.
        counted: bool ``[rows, tokens]``.
    """
    wanted = targets[counted]
    with torch.no_grad():
        return [exit_losses(located, state[counted.to(state.device)], wanted) for state in states]


def last_block_lens_losses(
    located: LocatedModel, states: Sequence[Tensor], targets: Tensor, counted: Tensor, last_call: BlockCall
) -> list[Tensor]:
    """Loss in nats at every l = 0 ... N - 1, ``[counted tokens]`` each.

    Args:
        located, states, targets, counted: as for :func:`logit_lens_losses`.
        last_call: of the last visit of the pass that gave the states.
    """
    wanted = targets[counted]
    losses = []
    device = states[-1].device
    with torch.no_grad():
        for state in states[:-1]:
            exited = last_call.repeat(located, state.to(device))
            losses.append(exit_losses(located, exited[counted.to(device)], wanted))
    return losses


def exit_losses(located: LocatedModel, states: Tensor, targets: Tensor) -> Tensor:
    """-log p(target) of raw states taken as the last, in float32 or better.

    Args:
        located: whose norm and head are used.
        states: ``[tokens, width]``.
        targets: int64 ``[tokens]``.
    """
    losses = []
    for state, target in zip(states.split(_TOKEN_SLICE), targets.split(_TOKEN_SLICE), strict=True):
        read = located.head_input(state)
        target = target.to(read.device)
        if type(located.head) is nn.Linear:
            losses.append(_linear_head_losses(located, located.head, read, target))
        else:
            logits = _wide(located.capped(located.head(read)))
            losses.append(functional.cross_entropy(logits, target, reduction="none"))
    return torch.cat(losses)


def _linear_head_losses(located: LocatedModel, head: nn.Linear, read: Tensor, targets: Tensor) -> Tensor:
    """log sum exp over slices of the vocabulary, less the target's logit."""
    normalizers: list[Tensor] = []
    target_logits: Tensor | None = None
    for start in range(0, head.weight.shape[0], _VOCABULARY_SLICE):
        stop = start + _VOCABULARY_SLICE
        bias = None if head.bias is None else head.bias[start:stop]
        logits = _wide(located.capped(functional.linear(read, head.weight[start:stop], bias)))
        normalizers.append(torch.logsumexp(logits, dim=-1))
        inside = (targets >= start) & (targets < stop)
        column = (targets - start).clamp(0, logits.shape[1] - 1)
        found = logits.gather(1, column[:, None])[:, 0]
        target_logits = found if target_logits is None else torch.where(inside, found, target_logits)
    assert target_logits is not None, "a head has at least one row"
    return torch.logsumexp(torch.stack(normalizers), dim=0) - target_logits


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))

"""What the figures would be if nothing had been learned, if the text made no sense, if directions meant nothing.

untrained           the same configuration with fresh weights, on the same text
shuffled            the same model, the tokens of every row in random order
random directions   the same norms of h_0 and of every update, token by token, in independent random directions

In high dimension random updates are orthogonal as well, so an update angle of pi/2 shows nothing by itself.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from depthscale.probing.errors import ProbingError
from depthscale.probing.states import TokenBatch


def untrained(model: nn.Module, seed: int = 0) -> nn.Module:
    """The same configuration with the weights of its own initialization, in evaluation mode.

    Args:
        model: has a ``config``, as models of transformers do.
        seed: of the weights; torch's own random state is left as it was.

    Raises:
        ProbingError: a model without a configuration.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise ProbingError(
            f"{type(model).__name__} has no config to build an untrained model from; leave that null out"
        )
    config = copy.deepcopy(config)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh: nn.Module = type(model)(config)
    return fresh.to(device=parameter.device, dtype=parameter.dtype).eval()


def shuffled(batch: TokenBatch, keep_first: bool, seed: int = 0) -> TokenBatch:
    """The real tokens of every row in random order; padding stays where it is.

    Args:
        batch: rows of token ids.
        keep_first: leave the first real token of each row in place, as one that begins the text must be.
        seed: of the orders.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = batch.input_ids.clone()
    for row, real in enumerate(batch.real):
        places = real.nonzero()[:, 0][int(keep_first) :]
        order = torch.randperm(len(places), generator=generator).to(places.device)
        ids[row, places] = ids[row, places[order]]
    return TokenBatch(ids, batch.attention_mask)


def random_directions(states: list[Tensor], seed: int = 0) -> list[Tensor]:
    """States whose first and whose updates have the norms of the given ones and random directions.

    Args:
        states: h_0 ... h_N, each ``[tokens, width]``.
        seed: of the directions.

    Returns:
        As many, float32.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(like: Tensor) -> Tensor:
        direction = torch.randn(like.shape, generator=generator).to(like.device)
        return direction * (like.float().norm(dim=-1, keepdim=True) / direction.norm(dim=-1, keepdim=True))

    found = [drawn(states[0])]
    for before, after in pairwise(states):
        found.append(found[-1] + drawn(after.float() - before.float()))
    return found

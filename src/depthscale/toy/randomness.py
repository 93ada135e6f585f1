"""Seeded draws: every tensor follows from its seed and its name alone, not from what was drawn before it."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor


def generator(seed: int, name: str, index: int = 0) -> torch.Generator:
    """A generator of its own for each (seed, name, index).

    Example:
        >>> a, b = generator(0, "inputs", 3), generator(0, "inputs", 3)
        >>> bool((torch.rand(4, generator=a) == torch.rand(4, generator=b)).all())
        True
    """
    entropy = np.random.SeedSequence([seed, zlib.crc32(name.encode()), index])
    return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def normal_inputs(seed: int, name: str, index: int, count: int, width: int) -> Tensor:
    """x ~ N(0, I) [count, width]."""
    return torch.randn(count, width, generator=generator(seed, name, index))


def correlated_uniform(source: torch.Generator, bound: float, count: int, shape: tuple[int, ...], rho: float) -> Tensor:
    """``count`` tensors, each uniform in (-bound, bound), with correlation ``rho`` between neighbors.

    A Gaussian chain z_{l+1} = r z_l + sqrt(1 - r^2) e through its distribution function. r = 2 sin(pi rho / 6) makes
    the correlation of the uniforms rho; at rho = 0 they are independent and at rho = 1 one and the same.

    Args:
        source: generator.
        bound: of the uniform, the default of ``torch.nn.Linear`` is 1 / sqrt(fan in).
        count: length of the chain.
        shape: of each tensor.
        rho: 0 to 1.

    Returns:
        [count, *shape], float32.
    """
    r = 2 * math.sin(math.pi * rho / 6)
    # At rho = 1 the sine is a rounding error away from 1/2.
    r = 1.0 if rho == 1 else r
    draws = torch.randn(count, *shape, generator=source, dtype=torch.float64)
    for index in range(1, count):
        draws[index] = r * draws[index - 1] + math.sqrt(1 - r * r) * draws[index]
    return ((2 * torch.special.ndtr(draws) - 1) * bound).to(torch.float32)

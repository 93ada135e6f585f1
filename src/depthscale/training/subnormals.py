"""Arithmetic without subnormal numbers, for as long as a run trains on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_subnormals() -> Iterator[None]:
    """Take subnormal numbers (below 1.2e-38 in float32) for zero, as GPUs' fast paths do; undone at the end.

    Where gradients vanish on their way through the visits (unscaled post-norm, many rounds), they and their squares
    in Adam become subnormal, which slows a CPU down severalfold; a number thirty orders of magnitude below
    Adam's epsilon changes no weight. The mode belongs to the calling thread, and to threads it starts later; where
    the processor has none, nothing changes.
    """
    before = _are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _are_flushed() -> bool:
    """torch can set the mode but not read it."""
    return (torch.tensor([1e-310], dtype=torch.float64) / 2).item() == 0

"""Accelerators by name: what a budget of FLOPs takes in hours, under an assumed utilization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from depthscale.errors import PlanError, unknown_name

#: Share of the peak that a well-tuned dense transformer of this size reaches; assumed, not measured here.
ASSUMED_UTILIZATION = 0.4


@dataclass(frozen=True)
class Accelerator:
    """One device.

    Attributes:
        name: as its maker calls it.
        peak_flops: dense bfloat16 matrix products per second, in FLOPs, without sparsity.
        memory_bytes: of the device.
    """

    name: str
    peak_flops: float
    memory_bytes: float


#: Source: NVIDIA's data sheets of the H100 and H200 (SXM form); half of the printed figure, which is with sparsity.
ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {
        "H100": Accelerator("NVIDIA H100 SXM, 80 GB", 989e12, 80e9),
        "H200": Accelerator("NVIDIA H200 SXM, 141 GB", 989e12, 141e9),
    }
)


def accelerator(name: str) -> Accelerator:
    """The device of that name.

    Raises:
        PlanError: no such device is known; the nearest is suggested.
    """
    if name not in ACCELERATORS:
        raise PlanError(unknown_name("accelerator", name, ACCELERATORS))
    return ACCELERATORS[name]


def device_hours(flops: float, device: Accelerator, utilization: float = ASSUMED_UTILIZATION) -> float:
    """flops / (utilization * peak) in hours of one device; divide by their number for hours on the clock.

    Args:
        flops: of the whole training, attention counted as the utilization counts it (here: at full T^2).
        device: where.
        utilization: share of the peak, in (0, 1].

    Raises:
        PlanError: the utilization is out of range.

    Example:
        >>> round(device_hours(3.6e18, ACCELERATORS["H100"], utilization=0.5), 2)
        2.02
    """
    if not (math.isfinite(utilization) and 0 < utilization <= 1):
        raise PlanError(f"utilization came as {utilization!r}; expected a share of the peak above 0 and up to 1")
    return flops / (utilization * device.peak_flops) / 3600

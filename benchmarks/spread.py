"""Ratios of a benchmark in three numbers; the benchmarks beside it import it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Median and ends over the turns, within each of which a ratio was taken."""
    return {"median": statistics.median(ratios), "smallest": min(ratios), "largest": max(ratios)}

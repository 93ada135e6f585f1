"""Histograms of streams, and the quantiles they give to within the width of a bin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def even_edges(low: float, high: float, num_bins: int) -> Float[Tensor, " edges"]:
    """Edges of bins of equal width, for values with natural ends such as angles and cosines."""
    return torch.linspace(low, high, num_bins + 1, dtype=torch.float64)


def signed_log_edges(smallest: float, largest: float, bins_per_decade: int = 100) -> Float[Tensor, " edges"]:
    """Edges of bins of equal ratio on both sides of zero, for values of unknown size.

    With 100 bins a decade a bin is 2.3 % wide, and so a quantile is right to 2.3 % or better. One bin holds
    (-smallest, smallest).

    Source: the bins of DDSketch, arXiv 1908.10693.
    """
    decades = math.log10(largest / smallest)
    positive = torch.logspace(
        math.log10(smallest), math.log10(largest), round(decades * bins_per_decade) + 1, dtype=torch.float64
    )
    return torch.cat([-positive.flip(0), positive])


class StreamingHistogram:
    """Counts in fixed bins, one row a group; what falls outside the edges is counted in the nearest bin.

    The result does not depend on the order or the cutting of the stream, and two histograms add up.

    Args:
        num_groups: groups.
        edges: ascending, float64.

    Example:
        >>> histogram = StreamingHistogram(1, even_edges(0.0, 10.0, 100))
        >>> histogram.add(torch.arange(0.05, 10.0, 0.1)[None])
        >>> [round(value, 2) for value in histogram.quantiles([0.25, 0.5])[0].tolist()]
        [2.5, 5.0]
    """

    def __init__(self, num_groups: int, edges: Float[Tensor, " edges"]) -> None:
        self.edges = edges
        self.counts = torch.zeros(num_groups, edges.numel() - 1, dtype=torch.int64)

    def add(self, values: Float[Tensor, "groups samples"]) -> None:
        """Count samples of every group; NaN is left out."""
        num_groups, num_bins = self.counts.shape
        bins = torch.bucketize(values.double().contiguous(), self.edges[1:-1], right=True)
        offsets = torch.arange(num_groups)[:, None] * num_bins
        flat = (bins + offsets)[~values.isnan()]
        self.counts += torch.bincount(flat, minlength=num_groups * num_bins).view(num_groups, num_bins)

    def quantiles(self, levels: Sequence[float]) -> Float[Tensor, "groups levels"]:
        """Quantiles of each group, samples taken as even within a bin; NaN without samples."""
        cumulative = self.counts.cumsum(dim=1).double()
        total = cumulative[:, -1:]
        wanted = torch.tensor(levels, dtype=torch.float64)[None] * total
        bins = torch.searchsorted(cumulative, wanted).clamp(max=self.counts.shape[1] - 1)
        inside = self.counts.gather(1, bins).double()
        below = cumulative.gather(1, bins) - inside
        share = ((wanted - below) / inside.clamp(min=1.0)).clamp(0.0, 1.0)
        found = self.edges[bins] + share * (self.edges[bins + 1] - self.edges[bins])
        return torch.where(total > 0, found, float("nan"))

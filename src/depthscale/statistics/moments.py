"""Means and spreads of streams of samples, in memory that does not grow with the number of samples."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


class StreamingMoments:
    """Count, mean, variance and range of several groups, each fed in chunks.

    Chunks are merged by Chan's formula in float64, so that the result does not depend on how the samples were cut, and
    a large mean costs no digits of a small variance. NaN is no sample: it is counted apart.

    Source: Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing sample variances.

    Example:
        >>> moments = StreamingMoments(1)
        >>> moments.add(torch.tensor([[1.0, 2.0]]))
        >>> moments.add(torch.tensor([[6.0, float("nan")]]))
        >>> moments.mean.tolist(), moments.variance.tolist(), moments.num_undefined.tolist()
        ([3.0], [7.0], [1])
    """

    def __init__(self, num_groups: int) -> None:
        self.count = torch.zeros(num_groups, dtype=torch.int64)
        self.num_undefined = torch.zeros(num_groups, dtype=torch.int64)
        self.minimum = torch.full((num_groups,), float("inf"), dtype=torch.float64)
        self.maximum = torch.full((num_groups,), float("-inf"), dtype=torch.float64)
        self._mean = torch.zeros(num_groups, dtype=torch.float64)
        self._squares = torch.zeros(num_groups, dtype=torch.float64)

    def add(self, values: Float[Tensor, "groups samples"]) -> None:
        """Take in samples of every group."""
        values = values.double()
        undefined = values.isnan()
        count = (~undefined).sum(dim=1)
        self.num_undefined += undefined.sum(dim=1)
        if not bool((count > 0).any()):
            return
        # Groups without a sample in this chunk keep everything as it is.
        some = count.clamp(min=1)
        mean = values.nan_to_num(nan=0.0, posinf=None, neginf=None).sum(dim=1) / some
        off = torch.where(undefined, 0.0, values - mean[:, None])
        total = self.count + count
        apart = torch.where(count > 0, mean - self._mean, 0.0)
        self._squares += off.square().sum(dim=1) + apart.square() * self.count * count / total.clamp(min=1)
        self._mean += apart * count / total.clamp(min=1)
        self.count = total
        self.minimum = torch.minimum(self.minimum, torch.where(undefined, float("inf"), values).amin(dim=1))
        self.maximum = torch.maximum(self.maximum, torch.where(undefined, float("-inf"), values).amax(dim=1))

    @property
    def mean(self) -> Float[Tensor, " groups"]:
        """Mean of each group; NaN without samples."""
        return torch.where(self.count > 0, self._mean, float("nan"))

    @property
    def variance(self) -> Float[Tensor, " groups"]:
        """Unbiased variance of each group; NaN below two samples."""
        return torch.where(self.count > 1, self._squares / (self.count - 1).clamp(min=1), float("nan"))


class StreamingClusteredMean:
    """Mean over all samples, and its standard error when samples come in clusters.

    Tokens of one document resemble each other, so that sigma / sqrt(tokens) would promise too much. With S_d the sum
    and n_d the number of samples of cluster d, m = sum S_d / sum n_d is a ratio, whose error is linearized:

        se = sqrt(D / (D - 1) * sum_d (S_d - m n_d)^2) / sum_d n_d

    Each cluster must come whole, in one call. Source: Cochran, Sampling Techniques, 3rd edition, section 6.3.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_clusters = torch.zeros(num_groups, dtype=torch.int64)
        self._sums = torch.zeros(5, num_groups, dtype=torch.float64)

    def add(self, values: Float[Tensor, "groups samples"], clusters: Int[Tensor, " samples"]) -> None:
        """Take in whole clusters; ``clusters`` numbers each sample's in any way. NaN is left out."""
        if values.shape[1] == 0:
            return
        _, members = clusters.unique(return_inverse=True)
        values = values.double()
        defined = ~values.isnan()
        shape = (values.shape[0], int(members.max()) + 1)
        sums = torch.zeros(shape, dtype=torch.float64).index_add_(1, members, torch.where(defined, values, 0.0))
        counts = torch.zeros(shape, dtype=torch.float64).index_add_(1, members, defined.double())
        self.num_clusters += (counts > 0).sum(dim=1)
        parts = (sums, counts, sums.square(), sums * counts, counts.square())
        self._sums += torch.stack([part.sum(dim=1) for part in parts])

    @property
    def mean(self) -> Float[Tensor, " groups"]:
        """Mean over all samples of all clusters; NaN without samples."""
        return self._sums[0] / self._sums[1]

    @property
    def standard_error(self) -> Float[Tensor, " groups"]:
        """Of the mean; NaN below two clusters, whose spread is not known."""
        _, counts, squares, products, count_squares = self._sums
        mean = self.mean
        spread = (squares - 2 * mean * products + mean.square() * count_squares).clamp(min=0.0)
        factor = self.num_clusters.double() / (self.num_clusters - 1).clamp(min=1)
        error = (factor * spread).sqrt() / counts
        return torch.where(self.num_clusters > 1, error, float("nan"))


class StreamingPositionMeans:
    """Count and mean of several groups at every position of a row.

    Args:
        num_groups: groups.
        num_positions: largest position plus one.
    """

    def __init__(self, num_groups: int, num_positions: int) -> None:
        self.count = torch.zeros(num_groups, num_positions, dtype=torch.float64)
        self._sum = torch.zeros(num_groups, num_positions, dtype=torch.float64)

    def add(self, values: Float[Tensor, "groups samples"], positions: Int[Tensor, " samples"]) -> None:
        """Take in samples at their positions; NaN is left out."""
        values = values.double()
        defined = ~values.isnan()
        self._sum.index_add_(1, positions, torch.where(defined, values, 0.0))
        self.count.index_add_(1, positions, defined.double())

    @property
    def mean(self) -> Float[Tensor, "groups positions"]:
        """NaN where no sample came."""
        return self._sum / self.count

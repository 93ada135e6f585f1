"""The profile of a model: every quantity by layer and by position, in memory that does not grow with the tokens."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from depthscale.probing.catalog import QUANTITIES, QuantityScale
from depthscale.probing.quantities import TokenQuantities
from depthscale.statistics.histograms import StreamingHistogram, even_edges, signed_log_edges
from depthscale.statistics.moments import StreamingClusteredMean, StreamingMoments, StreamingPositionMeans

#: Levels that profiles are drawn with.
QUANTILE_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)

_EDGES: dict[QuantityScale, Tensor] = {
    "angle": even_edges(0.0, math.pi, 1440),
    "cosine": even_edges(-1.0, 1.0, 1000),
    "size": signed_log_edges(1e-8, 1e8),
}


class Profile:
    """Running statistics of every quantity.

    Args:
        num_positions: longest row in tokens.
    """

    def __init__(self, num_positions: int) -> None:
        self.num_positions = num_positions
        self.num_tokens = 0
        self._quantities: dict[str, _QuantityProfile] = {}

    def add(self, tokens: TokenQuantities) -> None:
        """Take in tokens; the tokens of one row must come together, since a row is a document."""
        self.num_tokens += tokens.num_tokens
        for name, values in tokens.values.items():
            if name not in self._quantities:
                self._quantities[name] = _QuantityProfile(name, values.shape[0], self.num_positions)
            self._quantities[name].add(values, tokens.rows, tokens.positions)

    @property
    def names(self) -> tuple[str, ...]:
        """Quantities seen, in the order of the catalog."""
        return tuple(name for name in QUANTITIES if name in self._quantities)

    def to_dict(self) -> dict[str, Any]:
        """By name: formula, unit, tokens, and by layer mean, standard error, standard deviation, quantiles, range."""
        return {name: self._quantities[name].to_dict() for name in self.names}

    def mean_by_position(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean ``[layers, positions]``, NaN where no token counts, and the number of tokens behind each."""
        positions = self._quantities[name].positions
        return positions.mean, positions.count

    def histogram(self, name: str) -> StreamingHistogram:
        """Counts by layer and bin."""
        return self._quantities[name].histogram


class _QuantityProfile:
    def __init__(self, name: str, num_layers: int, num_positions: int) -> None:
        self.name = name
        self.moments = StreamingMoments(num_layers)
        self.clustered = StreamingClusteredMean(num_layers)
        self.histogram = StreamingHistogram(num_layers, _EDGES[QUANTITIES[name].scale])
        self.positions = StreamingPositionMeans(num_layers, num_positions)

    def add(self, values: Tensor, rows: Tensor, positions: Tensor) -> None:
        self.moments.add(values)
        self.clustered.add(values, rows)
        self.histogram.add(values)
        self.positions.add(values, positions)

    def to_dict(self) -> dict[str, Any]:
        quantity = QUANTITIES[self.name]
        moments = self.moments
        # A quantile interpolated within a bin can lie outside what was seen.
        quantiles = self.histogram.quantiles(QUANTILE_LEVELS).clamp(moments.minimum[:, None], moments.maximum[:, None])
        return {
            "formula": quantity.formula,
            "unit": quantity.unit,
            "group": quantity.group,
            "num_tokens": int(moments.count.max()),
            "num_documents": int(self.clustered.num_clusters.max()),
            "num_undefined": moments.num_undefined.tolist(),
            "mean": moments.mean.tolist(),
            "standard_error": self.clustered.standard_error.tolist(),
            "standard_deviation": moments.variance.sqrt().tolist(),
            "minimum": moments.minimum.tolist(),
            "maximum": moments.maximum.tolist(),
            "quantiles": {f"{level:g}": quantiles[:, index].tolist() for index, level in enumerate(QUANTILE_LEVELS)},
        }

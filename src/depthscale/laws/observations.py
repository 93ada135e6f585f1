"""Rows of (columns, loss), with the architecture or run that each row belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DataError, unknown_name

Array = NDArray[np.float64]


def ordinal(number: int) -> str:
    """A rank in print.

    Example:
        >>> [ordinal(n) for n in (1, 2, 3, 11, 40, 101)]
        ['1st', '2nd', '3rd', '11th', '40th', '101st']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass(frozen=True)
class Observations:
    """What laws are fitted to.

    Attributes:
        columns: named arrays [n], natural units.
        loss: [n], positive, nats per token.
        weights: [n], not negative; None weighs every row 1.
        groups: [n] labels of rows that are not independent (an architecture, a run); None means that each row
            stands for itself.
        grouped_on: columns whose values made the groups; empty where the labels came from elsewhere.
    """

    columns: Mapping[str, Array]
    loss: Array
    weights: Array | None = None
    groups: NDArray[np.intp] | None = None
    grouped_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        loss = np.asarray(self.loss, dtype=np.float64)
        if loss.ndim != 1 or not len(loss):
            raise DataError(f"losses came with shape {loss.shape}; expected a list of at least one number")
        columns = {name: np.asarray(values, dtype=np.float64) for name, values in self.columns.items()}
        lengths = {name: np.shape(values) for name, values in columns.items()}
        if self.weights is not None:
            lengths["weights"] = np.shape(self.weights)
        if self.groups is not None:
            lengths["groups"] = np.shape(self.groups)
        for name, shape in lengths.items():
            if shape != loss.shape:
                raise DataError(f"'{name}' came with shape {shape}; expected {loss.shape}, one entry per loss")
        bad = np.flatnonzero(~(np.isfinite(loss) & (loss > 0)))
        if len(bad):
            raise DataError(
                f"loss is {float(loss[bad[0]])!r} in row {bad[0]} ({len(bad)} such rows);"
                " expected positive finite losses: leave diverged rows out"
            )
        weights = self.weights
        if weights is not None:
            weights = np.asarray(weights, dtype=np.float64)
            if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
                raise DataError("weights came negative, not finite or all zero; expected at least one positive")
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "weights", weights)

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.loss)

    @property
    def num_weighted_rows(self) -> int:
        """Rows whose weight is not zero: what degrees of freedom count."""
        return int((self.row_weights > 0).sum())

    @property
    def row_weights(self) -> Array:
        """Weights [n], ones where none were given."""
        return np.ones(self.num_rows) if self.weights is None else self.weights

    @property
    def group_codes(self) -> NDArray[np.intp]:
        """Group of each row as 0 … G-1; every row its own group where none were given."""
        if self.groups is None:
            return np.arange(self.num_rows)
        codes: NDArray[np.intp] = np.unique(self.groups, return_inverse=True)[1].ravel()
        return codes

    @property
    def num_groups(self) -> int:
        """G; the rows themselves where no groups were given."""
        return int(self.group_codes.max()) + 1

    @property
    def counted(self) -> Observations:
        """Without rows of weight zero, which must not count as rows, groups or depths either."""
        return self if self.weights is None or (self.weights > 0).all() else self.take(self.weights > 0)

    @property
    def digest(self) -> str:
        """sha256 over columns, losses and weights, to say in a result which rows it came from."""
        hasher = hashlib.sha256()
        for name in sorted(self.columns):
            hasher.update(name.encode())
            hasher.update(np.ascontiguousarray(self.columns[name]).tobytes())
        hasher.update(self.loss.tobytes())
        hasher.update(self.row_weights.tobytes())
        return hasher.hexdigest()

    @property
    def group_digest(self) -> str:
        """sha256 over the groups' numbers: what a cluster bootstrap rests on."""
        return hashlib.sha256(np.ascontiguousarray(self.group_codes, dtype=np.int64).tobytes()).hexdigest()

    def column(self, name: str) -> Array:
        """One column.

        Raises:
            DataError: no such column; the nearest name is suggested.
        """
        if name not in self.columns:
            raise DataError(unknown_name("column", name, self.columns))
        return self.columns[name]

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Observations:
        """Some rows, by mask or index (repeats allowed)."""
        return Observations(
            {name: values[rows] for name, values in self.columns.items()},
            self.loss[rows],
            None if self.weights is None else self.weights[rows],
            None if self.groups is None else self.groups[rows],
            self.grouped_on,
        )

    def with_column(self, name: str, values: Array) -> Observations:
        """The same rows with one column added or replaced."""
        return replace(self, columns={**self.columns, name: values})

    def with_loss(self, loss: Array) -> Observations:
        """The same rows with other losses, for simulations."""
        return replace(self, loss=loss)

    def grouped_by(self, names: Sequence[str]) -> Observations:
        """Rows that agree in all named columns form one group: an architecture by its width and depth."""
        stacked = np.stack([self.column(name) for name in names], axis=1)
        codes: NDArray[np.intp] = np.unique(stacked, axis=0, return_inverse=True)[1].ravel()
        return replace(self, groups=codes, grouped_on=tuple(names))

    def below_loss_rank(self, rank: int) -> Observations:
        """Rows with a loss strictly below the ``rank``-th largest.

        Source: arXiv 2602.05970's code (rank 40; ties at the 40th go with it, which leaves 203 of 245 rows).
        """
        if not 1 <= rank <= self.num_rows:
            raise DataError(f"loss rank came as {rank}; expected 1 to the {self.num_rows} rows")
        keep = self.loss < np.sort(self.loss)[::-1][rank - 1]
        if not keep.any():
            raise DataError(f"no loss lies below the {ordinal(rank)} largest; expected a rank below {rank}")
        return self.take(keep)

    def without_highest(self, count: int) -> Observations:
        """All but the ``count`` highest losses (among ties, the earlier rows go first).

        Source: the analysis of Chinchilla's points in arXiv 2404.10102 (count 5, which leaves 240 of 245).
        """
        if not 0 <= count < self.num_rows:
            raise DataError(f"rows to drop came as {count}; expected 0 to {self.num_rows - 1}")
        return self.take(np.sort(np.argsort(-self.loss, kind="stable")[count:]))

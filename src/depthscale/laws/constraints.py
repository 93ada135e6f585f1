"""Parameters fixed or shared, as a linear map from what is left free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, unknown_name
from depthscale.laws.bound import BoundLaw
from depthscale.laws.newton import Affine

Array = NDArray[np.float64]


def free(bound: BoundLaw) -> Affine:
    """Nothing fixed."""
    return Affine(np.eye(bound.num_parameters), np.zeros(bound.num_parameters), bound.lower)


def constrain(
    bound: BoundLaw,
    names: Sequence[str],
    fixed: Mapping[str, float] | None = None,
    shared: Sequence[tuple[str, str]] = (),
) -> Affine:
    """Eliminate fixed parameters and pairs that must be equal, both in natural units.

    Args:
        bound: the law on its rows.
        names: its parameters, in order.
        fixed: parameter to value.
        shared: pairs of parameters that are one.

    Raises:
        ConfigError: unknown parameter, a value out of range, constraints that contradict each other, or nothing left.
    """
    size = bound.num_parameters
    rows, values = [], []
    for name, value in (fixed or {}).items():
        index = _index(names, name)
        if bound.coefficient_mask[index]:
            if not value > 0:
                raise ConfigError(f"coefficient '{name}' was fixed at {value!r}; expected a positive number")
            value = math.log(value)
        if index in bound.floors and value < 0:
            raise ConfigError(f"floor '{name}' was fixed at {value!r}; expected zero or more")
        rows.append(np.eye(size)[index])
        values.append(value)
    for first, second in shared:
        rows.append(np.eye(size)[_index(names, first)] - np.eye(size)[_index(names, second)])
        values.append(0.0)
    if not rows:
        return free(bound)
    working = np.stack(rows)
    matrix = working @ bound.transform
    return _eliminate(bound, matrix, np.array(values) - working @ bound.offset)


def _eliminate(bound: BoundLaw, matrix: Array, right: Array) -> Affine:
    """Solve each constraint for one coordinate, a coefficient where it has one, so that floors keep theirs."""
    matrix, right = matrix.copy(), right.copy()
    size = bound.num_parameters
    pivots: list[int] = []
    for row in range(len(matrix)):
        usable = np.abs(matrix[row]) > 1e-12 * max(np.abs(matrix[row]).max(), 1e-300)
        preferred = np.flatnonzero(usable & bound.coefficient_mask)
        candidates = preferred if len(preferred) else np.flatnonzero(usable)
        candidates = np.array([c for c in candidates if c not in pivots])
        if not len(candidates):
            raise ConfigError("two constraints on the same parameters; expected each parameter fixed or shared once")
        pivot = int(candidates[-1])
        pivots.append(pivot)
        right[row] /= matrix[row, pivot]
        matrix[row] /= matrix[row, pivot]
        for other in range(len(matrix)):
            if other != row:
                right[other] -= matrix[other, pivot] * right[row]
                matrix[other] -= matrix[other, pivot] * matrix[row]
    kept = [p for p in range(size) if p not in pivots]
    if not kept:
        raise ConfigError("every parameter is fixed; expected at least one that is left to fit")
    basis, offset = np.zeros((size, len(kept))), np.zeros(size)
    basis[kept, np.arange(len(kept))] = 1.0
    for row, pivot in enumerate(pivots):
        basis[pivot] = -matrix[row, kept]
        offset[pivot] = right[row]
    return Affine(basis, offset, bound.lower[kept])


def _index(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise ConfigError(unknown_name("parameter", name, names))
    return list(names).index(name)

"""The isoFLOP parabola: a popular short cut, its edge cases and its bias beside a law's own optimum.

At one budget losses are fitted by a parabola in ln size; its vertex is taken for the optimum. On a grid that is wide,
or not centered on the optimum, the vertex is off, because the true curve is a sum of powers and no parabola.

Source: Hoffmann et al., arXiv 2203.15556, approach 2; the bias: arXiv 2603.22339.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DataError
from depthscale.laws.frontier import Budget, optimal_shape
from depthscale.laws.law import AdditiveLaw

Array = NDArray[np.float64]

_FEWEST_SIZES = 4


@dataclass(frozen=True)
class Parabola:
    """loss = height + bend * (ln size - ln vertex)^2.

    Attributes:
        vertex: size of least loss; None without an interior optimum.
        verdict: ``interior optimum`` or why there is none.
        coefficients: of 1, ln size, (ln size)^2.
    """

    vertex: float | None
    verdict: str
    coefficients: tuple[float, float, float]


def fit_parabola(sizes: Array, losses: Array) -> Parabola:
    """Fit one budget's rows.

    A parabola that bends down, a vertex outside the sizes, or a least loss on the first or last size is "no interior
    optimum": the grid does not hold it.

    Args:
        sizes: [n] parameters (or widths), positive, at least 4 different ones.
        losses: [n].

    Raises:
        DataError: too few sizes.
    """
    if len(np.unique(sizes)) < _FEWEST_SIZES or not (sizes > 0).all():
        raise DataError(f"{len(np.unique(sizes))} sizes came; expected at least {_FEWEST_SIZES} positive ones")
    logs = np.log(sizes)
    center = logs.mean()
    c0, c1, c2 = np.polynomial.polynomial.polyfit(logs - center, losses, 2)
    coefficients = (float(c0 - c1 * center + c2 * center**2), float(c1 - 2 * c2 * center), float(c2))
    if c2 <= 0:
        return Parabola(None, "no interior optimum: the parabola bends down", coefficients)
    vertex = float(center - c1 / (2 * c2))
    if not logs.min() < vertex < logs.max():
        return Parabola(None, "no interior optimum: the vertex lies outside the sizes", coefficients)
    least = sizes[np.argmin(losses)]
    if least in (sizes.min(), sizes.max()):
        return Parabola(None, "no interior optimum: the least loss is at the edge of the sizes", coefficients)
    return Parabola(float(np.exp(vertex)), "interior optimum", coefficients)


def parabola_bias(
    law: AdditiveLaw, parameters: Mapping[str, float], budget: Budget, compute: float, column: str, sizes: Array
) -> float | None:
    """Vertex over the law's own optimum, minus one, on losses without noise; None without an interior optimum.

    Args:
        law: has two budget columns, ``column`` and the one that takes the rest of the budget.
        parameters: natural units.
        budget: of exactly two columns.
        compute: the budget.
        column: the size.
        sizes: grid [n] of it.
    """
    others = [name for name in budget.powers if name != column]
    if len(others) != 1:
        raise DataError(f"budget has columns {', '.join(budget.powers)}; expected '{column}' and one more")
    rest = (compute / budget.constant / sizes ** budget.powers[column]) ** (1 / budget.powers[others[0]])
    held = {name: np.full(len(sizes), value) for name, value in budget.held.items()}
    losses = law.predict(parameters, {column: sizes, others[0]: rest, **held})
    vertex = fit_parabola(sizes, losses).vertex
    optimum = optimal_shape(law, {k: np.asarray(v) for k, v in parameters.items()}, budget, compute)[column]
    return None if vertex is None else float(vertex / optimum - 1)

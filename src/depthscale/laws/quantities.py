"""Numbers that follow from a law's parameters, with exact gradients.

A quantity is a function of named parameters that works on whole batches. Gradients are taken by a complex step,
so a quantity may use powers, logs, exponentials and arithmetic, but neither abs nor comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, unknown_name
from depthscale.laws.bound import BoundLaw
from depthscale.laws.fitting import Fit

Array = NDArray[np.float64]
Index = NDArray[np.intp]
# Real or complex arrays [S]; NumPy has no name for "either" that mypy can follow through arithmetic.
Values = NDArray[Any]

_STEP = 1e-30


@dataclass(frozen=True)
class Quantity:
    """A named number made from parameters.

    Attributes:
        name: how reports name it.
        function: parameters by name, arrays [S] -> [S].
        positive: profiled and reported on a log scale inside, which suits sizes and ratios.
    """

    name: str
    function: Callable[[Mapping[str, Values]], Values]
    positive: bool = False


def parameter(fit: Fit, name: str) -> Quantity:
    """One parameter as a quantity; coefficients are positive."""
    if name not in fit.law.parameters:
        raise ConfigError(unknown_name("parameter", name, fit.law.parameters))
    index = fit.law.parameters.index(name)
    return Quantity(name, lambda p: p[name], bool(fit.problem.bound.coefficient_mask[index]))


def ratio(first: str, second: str) -> Quantity:
    """first / second, for example alpha_l / alpha_m.

    Example:
        >>> float(ratio("alpha_l", "alpha_m").function({"alpha_l": np.array(1.5), "alpha_m": np.array(0.75)}))
        2.0
    """
    return Quantity(f"{first}/{second}", lambda p: p[first] / p[second])


def evaluate(quantity: Quantity, names: Sequence[str], natural: Array) -> Array:
    """The quantity [S] of natural parameters [S, P]; nan where it does not exist."""
    with np.errstate(all="ignore"):
        values = quantity.function({name: natural[:, i] for i, name in enumerate(names)})
    result: Array = np.broadcast_to(np.asarray(values, dtype=np.float64), len(natural)).copy()
    return result


class Traced:
    """Quantities as functions of internal coordinates, on the scale they are profiled on."""

    def __init__(self, bound: BoundLaw, names: Sequence[str], quantities: Sequence[Quantity]) -> None:
        self._bound, self._names, self._quantities = bound, tuple(names), tuple(quantities)

    def __call__(self, u: Array, kinds: Index) -> tuple[Array, Array]:
        """Values [S] and gradients [S, P] of quantity ``kinds[s]`` at u[s]."""
        values, gradients = np.empty(len(u)), np.empty_like(u)
        for kind in np.unique(kinds):
            members = np.flatnonzero(kinds == kind)
            values[members], gradients[members] = self._one(self._quantities[kind], u[members])
        return values, gradients

    def _one(self, quantity: Quantity, u: Array) -> tuple[Array, Array]:
        bound, size = self._bound, u.shape[1]
        # Point s and its P steps into the complex plane, in one call. A trial point may lie where the quantity does not
        # exist (a loss below the floor): nan there is refused as an objective.
        shifted = np.repeat(u[:, None, :].astype(np.complex128), size, axis=1)
        shifted[:, np.arange(size), np.arange(size)] += 1j * _STEP
        working = shifted.reshape(-1, size) @ bound.transform.T + bound.offset
        with np.errstate(all="ignore"):
            natural = {
                name: np.exp(working[:, i]) if bound.coefficient_mask[i] else working[:, i]
                for i, name in enumerate(self._names)
            }
            value = np.broadcast_to(np.asarray(quantity.function(natural)), len(working)).reshape(len(u), size)
            if quantity.positive:
                value = np.log(value)
        return value[:, 0].real.copy(), value.imag / _STEP

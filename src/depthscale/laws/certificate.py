"""Proof that a fit is at its minimum, or the reasons why it is not.

None of the measures depends on the unit of a column, of the loss, or on the scale of the objective.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DepthscaleError
from depthscale.laws.newton import Problem, eigen

Array = NDArray[np.float64]

LARGEST_SCALED_GRADIENT = 1e-6
LARGEST_STEP_IN_ERRORS = 1e-4
SMALLEST_CURVATURE = 1e-10
LARGEST_SCALE_SHIFT = 1e-6
SMALLEST_AGREEMENT = 0.25
LARGEST_EXCESS = 1e-9


class FitError(DepthscaleError, ValueError):
    """A fit has no certificate, so its parameters are not reported."""


@dataclass(frozen=True)
class Stationarity:
    """How far points of a batch are from a minimum; arrays [S].

    Attributes:
        scaled_gradient: max_p |J_p^T W r| / (|J_p| |r|) under the objective's weights, a cosine in [0, 1].
        step_in_errors: the Newton step that is left, over the parameter's standard error, largest over parameters.
        curvature: smallest eigenvalue of the Hessian scaled to a unit diagonal.
        exact: the rows lie on the law to rounding, where cosines mean nothing.
        at_bound: [S, Z], coordinates held by their bound.
    """

    scaled_gradient: Array
    step_in_errors: Array
    curvature: Array
    exact: NDArray[np.bool_]
    at_bound: NDArray[np.bool_]

    @property
    def holds(self) -> NDArray[np.bool_]:
        """[S], the point passes."""
        good = (self.scaled_gradient <= LARGEST_SCALED_GRADIENT) & (self.step_in_errors <= LARGEST_STEP_IN_ERRORS)
        result: NDArray[np.bool_] = (good | self.exact) & (self.curvature >= SMALLEST_CURVATURE)
        return result


def stationarity(problem: Problem, z: Array) -> Stationarity:
    """Measure a batch of points [S, Z]."""
    value, terms = problem.evaluate(z)
    gradient, hessian, squares = problem.differentiate(z, terms)
    residual = problem.objective.residual(problem.bound.total(problem.internal(z), terms), problem.observed)
    weight = problem.weights * problem.objective.majorizer(residual)
    size = np.sqrt((weight * residual**2).sum(axis=1))
    scale = np.sqrt(np.maximum(squares, 1e-300))
    at_bound = (z <= problem.affine.lower) & (gradient >= 0)
    gradient = np.where(at_bound, 0.0, gradient / scale)
    cosine = np.abs(gradient).max(axis=1) / np.maximum(size, 1e-300)
    hessian = hessian / (scale[:, :, None] * scale[:, None, :])
    free = ~at_bound
    hessian = np.where(free[:, :, None] & free[:, None, :], hessian, 0.0)
    diagonal = np.arange(z.shape[1])
    hessian[:, diagonal, diagonal] = np.where(at_bound, 1.0, hessian[:, diagonal, diagonal])
    values, vectors = eigen(hessian)
    safe = np.maximum(np.abs(values), 1e-14)
    step = np.einsum("spq,sq->sp", vectors, np.einsum("spq,sp->sq", vectors, gradient) / safe)
    variance = np.einsum("spq,sq->sp", vectors**2, 1 / safe)
    rows = np.maximum((problem.weights > 0).sum(axis=1) - z.shape[1], 1)
    # Mean squared influence over mean curvature: s^2 for squares, its robust counterpart for Huber.
    total = np.broadcast_to(problem.weights, residual.shape).sum(axis=1)
    noise = (problem.weights * problem.objective.influence(residual) ** 2).sum(axis=1) / total
    noise *= total / rows
    error = np.sqrt(np.maximum(noise[:, None] * variance, 1e-300))
    exact = value <= 1e-26 * total
    return Stationarity(cosine, (np.abs(step) / error).max(axis=1), values.min(axis=1), np.asarray(exact), at_bound)


@dataclass(frozen=True)
class Certificate:
    """What was checked of one fit.

    Attributes:
        scaled_gradient, step_in_errors, curvature: as in :class:`Stationarity`.
        excess: how far the objective lies above the best found from any start, relative.
        scale_shift: largest change of an internal coordinate when the objective is multiplied by 1e-6 or 1e6;
            None for a bare point, where no optimizer was asked.
        num_starts: independent starts.
        agreeing_starts: those that end at the best minimum.
        at_bound: floors that ended at zero.
        reasons: why the certificate is refused; empty when it holds.
    """

    scaled_gradient: float
    step_in_errors: float
    curvature: float
    excess: float
    scale_shift: float | None
    num_starts: int
    agreeing_starts: int
    at_bound: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """The point is a proven minimum by every check."""
        return not self.reasons

    def require(self) -> None:
        """Refuse what is not proven.

        Raises:
            FitError: with the reasons.
        """
        if self.reasons:
            raise FitError(f"the fit is not certified: {'; '.join(self.reasons)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return {**asdict(self), "holds": self.holds}


def reasons_against(
    scaled_gradient: float,
    step_in_errors: float,
    curvature: float,
    exact: bool,
    excess: float,
    scale_shift: float | None,
    agreeing: int,
    num_starts: int,
    num_rows: int,
    num_free: int,
) -> tuple[str, ...]:
    """Every check that fails, in words."""
    reasons = []
    if num_rows <= num_free:
        # The law then passes through its rows, and every interval would have no width.
        reasons.append(
            f"{num_rows} rows came for {num_free} free parameters; expected more rows than parameters:"
            " fix a parameter or add rows"
        )
    if not exact and scaled_gradient > LARGEST_SCALED_GRADIENT:
        reasons.append(f"the scaled gradient is {scaled_gradient:.1e}, expected at most {LARGEST_SCALED_GRADIENT:.0e}")
    if not exact and step_in_errors > LARGEST_STEP_IN_ERRORS:
        reasons.append(
            f"a Newton step would still move a parameter by {step_in_errors:.2g} standard errors,"
            f" expected at most {LARGEST_STEP_IN_ERRORS:.0e}"
        )
    if curvature < SMALLEST_CURVATURE:
        reasons.append(
            f"the objective is flat or bends down in one direction (scaled curvature {curvature:.1e}):"
            " these rows do not determine every parameter; fix one or add rows"
        )
    if excess > LARGEST_EXCESS:
        reasons.append(f"another start ends {excess:.2g} (relative) lower")
    if scale_shift is not None and not scale_shift <= LARGEST_SCALE_SHIFT:
        reasons.append(f"the answer depends on the objective's scale (shift {scale_shift:.1e})")
    if agreeing < max(2, SMALLEST_AGREEMENT * num_starts):
        reasons.append(f"only {agreeing} of {num_starts} starts end at this minimum")
    return tuple(reasons)

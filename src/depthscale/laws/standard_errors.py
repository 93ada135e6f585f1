"""Standard errors at the minimum, four kinds by name.

    jacobian          s^2 (J^T W J)^-1     trusts the law: residuals independent, one spread, no misfit
    hessian           s^2 H^-1             the objective's own curvature, misfit included
    sandwich          H^-1 B H^-1          B = sum over rows of the squared score: spreads may differ
    cluster_sandwich  likewise, scores summed within groups first: rows of one group may move together

None depends on the unit of the weights: twice every weight is the same fit with the same errors.

For Huber the rows' rho'' is averaged over a band wider than delta: at delta = 1e-3 the rows inside the corner are
too few to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.laws.fitting import Fit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Covariance:
    """Covariance in working coordinates: floor, ln of coefficients, exponents.

    Attributes:
        kind: jacobian, sandwich or cluster_sandwich.
        names: parameters in order.
        matrix: [P, P]; zero rows for fixed parameters and floors on their bound.
        factors: [P], d natural / d working.
    """

    kind: str
    names: tuple[str, ...]
    matrix: Array
    factors: Array

    @property
    def working_errors(self) -> dict[str, float]:
        """Standard errors: of ln c for coefficients (a relative error), else of the parameter itself."""
        return dict(zip(self.names, np.sqrt(np.diag(self.matrix)).tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors in natural units; for coefficients c times the error of ln c."""
        values = np.sqrt(np.diag(self.matrix)) * self.factors
        return dict(zip(self.names, values.tolist(), strict=True))

    @property
    def correlations(self) -> Array:
        """[P, P] in working coordinates; zero where a parameter is held."""
        size = np.sqrt(np.diag(self.matrix))
        safe = np.where(size > 0, size, 1.0)
        out: Array = self.matrix / (safe[:, None] * safe[None, :])
        return out


def jacobian_covariance(fit: Fit) -> Covariance:
    """s^2 (J^T W J)^-1, with J of the residual that was minimized and s^2 = SS / (n - P)."""
    jacobian, keep = _residual_jacobian(fit)
    information = jacobian.T @ (fit.data.row_weights[:, None] * jacobian)
    matrix = noise_variance(fit) * _mean_weight(fit) * np.linalg.inv(information)
    return _in_working_coordinates(fit, "jacobian", matrix, keep)


def hessian_covariance(fit: Fit) -> Covariance:
    """s^2 H^-1, scaled by the mean squared score: what a profile near its minimum agrees with."""
    hessian, keep = _hessian(fit)
    matrix = noise_variance(fit) * mean_curvature(fit) * _mean_weight(fit) * np.linalg.inv(hessian)
    return _in_working_coordinates(fit, "hessian", matrix, keep)


def local_covariance(fit: Fit) -> Array:
    """s^2 H^-1 [P, P] in internal coordinates with floors on their bound let go: directions for a profile's walk.

    A flat or downward direction counts by its size, so that a walk can start along it.
    """
    hessian, _ = _hessian(fit, including_bounds=True)
    values, vectors = np.linalg.eigh(hessian)
    safe = np.maximum(np.abs(values), 1e-12 * np.abs(values).max())
    lead = fit.problem.affine.basis @ vectors
    scale = noise_variance(fit) * mean_curvature(fit) * _mean_weight(fit)
    result: Array = scale * (lead / safe) @ lead.T
    return result


def sandwich_covariance(fit: Fit, clustered: bool = False) -> Covariance:
    """H^-1 B H^-1 with the usual small-sample factors n / (n - P), and G / (G - 1) for clusters.

    Args:
        fit: a fit.
        clustered: sum scores within ``data.groups`` first; few groups (below about 30) make it too small.
    """
    jacobian, keep = _residual_jacobian(fit)
    hessian, _ = _hessian(fit)
    scores = jacobian * (fit.data.row_weights * fit.objective.influence(_internal_residuals(fit)))[:, None]
    rows, size = scores.shape
    factor = rows / max(rows - size, 1)
    if clustered:
        codes = fit.data.group_codes
        count = int(codes.max()) + 1
        summed = np.zeros((count, size))
        np.add.at(summed, codes, scores)
        # Duplicated rows must not count as information: the factor is by clusters alone.
        scores, factor = summed, count / max(count - 1, 1)
    inverse = np.linalg.inv(hessian)
    kind = "cluster_sandwich" if clustered else "sandwich"
    return _in_working_coordinates(fit, kind, factor * inverse @ (scores.T @ scores) @ inverse, keep)


def robust_covariance(fit: Fit) -> Covariance:
    """The sandwich, by clusters wherever the rows have groups: rows of one group may err together."""
    return sandwich_covariance(fit, clustered=fit.data.groups is not None)


def relative_residuals(fit: Fit) -> Array:
    """ln L^ - ln L of the rows [n], scaled by sqrt(n / (n - P)): what a run's own noise is drawn from."""
    count = fit.data.num_weighted_rows
    result: Array = np.log(fit.predicted / fit.data.loss) * np.sqrt(count / max(count - fit.num_free, 1))
    return result


def relative_noise(fit: Fit) -> float:
    """Variance of a row's ln loss around the law, weights counted."""
    weights = fit.data.row_weights
    return float((weights * relative_residuals(fit) ** 2).sum() / weights.sum())


def noise_variance(fit: Fit) -> float:
    """s^2 = SS / (n - P) for squares; mean psi^2 / (mean psi')^2 for Huber. In squared internal residuals."""
    weights = fit.data.row_weights
    influence = fit.objective.influence(_internal_residuals(fit))
    spare = max(fit.data.num_weighted_rows - fit.num_free, 1)
    squares = float((weights * influence**2).sum()) / spare * fit.data.num_weighted_rows / float(weights.sum())
    return squares / mean_curvature(fit) ** 2


def mean_curvature(fit: Fit) -> float:
    """Mean of rho'': 1 for squares; for Huber the slope of mean psi over a band around zero."""
    if fit.objective.kind != "log_huber":
        return 1.0
    weights = fit.data.row_weights
    return float((weights * _smoothed_curvature(fit)).sum() / weights.sum())


def _mean_weight(fit: Fit) -> float:
    """What a curvature summed over weighted rows is too large by, against a variance at a mean weight of one."""
    return float(fit.data.row_weights.mean())


def _internal_residuals(fit: Fit) -> Array:
    return fit.residuals if fit.objective.is_log else fit.residuals / fit.problem.bound.loss_scale


def _smoothed_curvature(fit: Fit) -> Array:
    """rho'' of each row [n], for Huber averaged over a band around its residual."""
    residual = _internal_residuals(fit)
    if fit.objective.kind != "log_huber":
        return np.ones_like(residual)
    spread = 1.4826 * float(np.median(np.abs(residual)))
    band = max(fit.objective.delta, spread * fit.data.num_weighted_rows**-0.2)
    change = fit.objective.influence(residual + band) - fit.objective.influence(residual - band)
    slope: Array = change / (2 * band)
    return slope


def _hessian(fit: Fit, including_bounds: bool = False) -> tuple[Array, NDArray[np.intp]]:
    """Second derivative of the objective by z, with smoothed rho'', without coordinates on their bound."""
    bound, affine = fit.problem.bound, fit.problem.affine
    terms = bound.terms(fit.internal[None])
    predicted = bound.total(fit.internal[None], terms)
    psi = fit.objective.influence(_internal_residuals(fit))[None]
    bend = _smoothed_curvature(fit)[None]
    first, second = (psi / predicted, (bend - psi) / predicted**2) if fit.objective.is_log else (psi, bend)
    weights = fit.data.row_weights[None]
    hessian = affine.basis.T @ bound.contract(terms, weights * first, weights * second)[1][0] @ affine.basis
    keep = np.flatnonzero((fit.z > affine.lower) | including_bounds)
    return hessian[np.ix_(keep, keep)], keep


def _residual_jacobian(fit: Fit) -> tuple[Array, NDArray[np.intp]]:
    """d residual / d z [n, kept], without coordinates on their bound, and which are kept."""
    bound, affine = fit.problem.bound, fit.problem.affine
    jacobian = bound.jacobian(fit.internal[None])[0] @ affine.basis
    if fit.objective.is_log:
        jacobian = jacobian / bound.predict(fit.internal[None])[0][:, None]
    keep = np.flatnonzero(fit.z > affine.lower)
    return jacobian[:, keep], keep


def _in_working_coordinates(
    fit: Fit, kind: str, matrix: NDArray[np.floating[Any]], keep: NDArray[np.intp]
) -> Covariance:
    bound = fit.problem.bound
    lead = bound.transform @ fit.problem.affine.basis[:, keep]
    working = fit.working
    factors = np.where(bound.coefficient_mask, np.exp(np.where(bound.coefficient_mask, working, 0.0)), 1.0)
    covariance = np.asarray(lead @ matrix @ lead.T, dtype=np.float64)
    return Covariance(kind, fit.law.parameters, covariance, factors)

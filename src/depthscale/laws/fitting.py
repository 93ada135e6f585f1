"""The one fitter: many starts at once, the best minimum, and a certificate or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.laws.certificate import Certificate, reasons_against, stationarity
from depthscale.laws.constraints import constrain
from depthscale.laws.law import Law, require_parameters
from depthscale.laws.newton import Affine, Problem, minimize
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations

Array = NDArray[np.float64]

DEFAULT_OBJECTIVE = Objective()
_SCALES = (1e-6, 1.0, 1e6)


@dataclass(frozen=True)
class Fit:
    """A law fitted to rows.

    Attributes:
        law: what was fitted.
        data: the rows, those of weight zero left out.
        objective: what was minimized.
        problem: the fit as a batch of one, from which replicates and profiles are made.
        z: [Z], the free internal coordinates.
        value: the objective as papers print it (mean squares or summed Huber).
        certificate: what was checked.
        fixed: parameters that were held, natural units.
    """

    law: Law
    data: Observations
    objective: Objective
    problem: Problem
    z: Array
    value: float
    certificate: Certificate
    fixed: Mapping[str, float]

    @property
    def internal(self) -> Array:
        """u [P]."""
        point: Array = self.problem.internal(self.z[None])[0]
        return point

    @property
    def working(self) -> Array:
        """[P]: floor, ln of coefficients, exponents, natural units."""
        return self.problem.bound.transform @ self.internal + self.problem.bound.offset

    @property
    def parameters(self) -> dict[str, float]:
        """Natural units.

        Raises:
            FitError: the fit has no certificate.
        """
        self.certificate.require()
        return self.uncertified_parameters

    @property
    def uncertified_parameters(self) -> dict[str, float]:
        """Natural units, certified or not: for showing where something stopped, never as a result."""
        values = to_natural(self.problem, self.z[None])[0]
        return dict(zip(self.law.parameters, values.tolist(), strict=True))

    @property
    def predicted(self) -> Array:
        """Loss at each row [n]."""
        bound = self.problem.bound
        loss: Array = bound.predict(self.internal[None])[0] * bound.loss_scale
        return loss

    @property
    def residuals(self) -> Array:
        """ln predicted - ln observed [n], or predicted - observed under ``raw_squares``."""
        return self.objective.residual(self.predicted, self.data.loss)

    @property
    def num_free(self) -> int:
        """Parameters that were fitted and do not sit on a bound."""
        return len(self.z) - int((self.z <= self.problem.affine.lower).sum())

    @property
    def total(self) -> float:
        """sum w * rho in internal units, what likelihood ratios are made of."""
        return float(self.problem.evaluate(self.z[None])[0][0])

    def to_dict(self) -> dict[str, Any]:
        """Plain data at full precision for a result file.

        Raises:
            FitError: the fit has no certificate.
        """
        return {
            "law": describe(self.law),
            "parameters": self.parameters,
            "fixed": dict(self.fixed),
            "objective": {"kind": self.objective.kind, "delta": self.objective.delta},
            "value": self.value,
            "num_rows": self.data.num_rows,
            "num_groups": self.data.num_groups,
            "data_sha256": self.data.digest,
            "groups_sha256": self.data.group_digest,
            "certificate": self.certificate.to_dict(),
        }


def describe(law: Law) -> dict[str, Any]:
    """A law as plain data: its full form where it has one, else name and parameters."""
    to_dict = getattr(law, "to_dict", None)
    return to_dict() if to_dict else {"name": law.name, "parameters": list(law.parameters)}


def to_natural(problem: Problem, z: Array) -> Array:
    """Natural parameters [S, P] of free coordinates z [S, Z]."""
    bound = problem.bound
    working = problem.internal(z) @ bound.transform.T + bound.offset
    with np.errstate(over="ignore"):
        return np.where(bound.coefficient_mask, np.exp(np.where(bound.coefficient_mask, working, 0.0)), working)


def from_natural(problem: Problem, parameters: Array) -> Array:
    """Free coordinates z [S, Z] of natural parameters [S, P] that satisfy the constraints."""
    bound, affine = problem.bound, problem.affine
    working = np.where(bound.coefficient_mask, np.log(np.where(bound.coefficient_mask, parameters, 1.0)), parameters)
    internal = np.linalg.solve(bound.transform, (working - bound.offset).T).T
    return solve_basis(affine, internal - affine.offset)


def make_problem(
    law: Law,
    data: Observations,
    objective: Objective,
    fixed: Mapping[str, float] | None = None,
    shared: Sequence[tuple[str, str]] = (),
) -> Problem:
    """The fit as a batch of one."""
    bound = law.bind(data.columns, data.loss)
    affine = constrain(bound, law.parameters, fixed, shared)
    observed = data.loss[None] / bound.loss_scale
    return Problem(bound, objective, observed, data.row_weights[None], affine)


def fit(
    law: Law,
    data: Observations,
    objective: Objective = DEFAULT_OBJECTIVE,
    fixed: Mapping[str, float] | None = None,
    shared: Sequence[tuple[str, str]] = (),
    num_starts: int = 24,
) -> Fit:
    """Fit a law and prove it.

    Args:
        law: what to fit.
        data: the rows.
        objective: what to minimize.
        fixed: parameters to hold, natural units.
        shared: pairs of parameters that are one.
        num_starts: independent data-driven starts.

    Raises:
        FitError: the minimum is not certified.
    """
    found = search(law, data, objective, fixed, shared, num_starts)
    found.certificate.require()
    return found


def search(
    law: Law,
    data: Observations,
    objective: Objective = DEFAULT_OBJECTIVE,
    fixed: Mapping[str, float] | None = None,
    shared: Sequence[tuple[str, str]] = (),
    num_starts: int = 24,
) -> Fit:
    """As :func:`fit`, but a failed certificate is returned for inspection and not raised."""
    data = data.counted
    problem = make_problem(law, data, objective, fixed, shared)
    starts = starting_points(problem, data, num_starts)
    # The checks of the objective's scale ride in the same batch: other weights, same start.
    scaled = np.repeat(starts[:1], len(_SCALES), axis=0)
    weights = problem.weights[0] * np.concatenate([np.ones(num_starts), _SCALES])[:, None]
    solution = minimize(replace(problem, weights=weights), np.concatenate([starts, scaled]))
    ends, checks = solution.value[:num_starts], solution.z[num_starts:]
    best = int(np.argmin(np.where(solution.converged[:num_starts], ends, np.inf)))
    shift = float(np.abs(checks - checks[1]).max())
    return _certified(law, data, problem, solution.z[best], ends, shift, fixed or {})


def examine(
    law: Law,
    data: Observations,
    parameters: Mapping[str, float],
    objective: Objective = DEFAULT_OBJECTIVE,
    num_starts: int = 24,
) -> Fit:
    """Put parameters that came from elsewhere through the same certificate.

    Example: coefficients that a paper prints, or the point where another optimizer stopped.
    """
    require_parameters(law, parameters)
    data = data.counted
    problem = make_problem(law, data, objective)
    values = np.array([[parameters[name] for name in law.parameters]])
    own = search(law, data, objective, num_starts=num_starts)
    z = from_natural(problem, values)[0]
    return _certified(law, data, problem, z, np.full(num_starts, own.total), None, {})


def starting_points(problem: Problem, data: Observations, number: int) -> Array:
    """Data-driven starts z [number, Z] under the problem's constraints."""
    u = problem.bound.starts(data.loss, data.row_weights, number)
    return project(problem.affine, u)


def project(affine: Affine, u: Array) -> Array:
    """The free coordinates of points u [S, P] that need not satisfy the constraints."""
    return np.maximum(solve_basis(affine, u - affine.offset), affine.lower)


def solve_basis(affine: Affine, u: Array) -> Array:
    """Least-squares z [S, Z] of basis @ z = u [S, P]."""
    return np.asarray(np.linalg.lstsq(affine.basis, u.T, rcond=None)[0].T, dtype=np.float64)


def _certified(
    law: Law,
    data: Observations,
    problem: Problem,
    z: Array,
    ends: Array,
    shift: float | None,
    fixed: Mapping[str, float],
) -> Fit:
    at = stationarity(problem, z[None])
    value = float(problem.evaluate(z[None])[0][0])
    best = float(min(np.min(ends), value))
    tiny = 1e-24 * float(problem.weights.sum())
    agreeing = int((ends <= value * (1 + 1e-8) + tiny).sum())
    excess = 0.0 if at.exact[0] else (value - best) / max(best, tiny)
    held = np.flatnonzero(at.at_bound[0])
    names = [law.parameters[int(np.argmax(problem.affine.basis[:, k]))] for k in held]
    reasons = reasons_against(
        float(at.scaled_gradient[0]),
        float(at.step_in_errors[0]),
        float(at.curvature[0]),
        bool(at.exact[0]),
        excess,
        shift,
        agreeing,
        len(ends),
        data.num_weighted_rows,
        len(z) - len(held),
    )
    certificate = Certificate(
        float(at.scaled_gradient[0]),
        float(at.step_in_errors[0]),
        float(at.curvature[0]),
        excess,
        shift,
        len(ends),
        agreeing,
        tuple(names),
        reasons,
    )
    weight = float(problem.weights.sum())
    reported = problem.objective.reported(value, weight, problem.bound.loss_scale)
    return Fit(law, data, problem.objective, problem, z, reported, certificate, dict(fixed))

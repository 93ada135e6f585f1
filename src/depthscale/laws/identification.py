"""What a design can and cannot tell apart, by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthscale.laws.fitting import Fit
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.standard_errors import hessian_covariance

Array = NDArray[np.float64]

#: Correlation of two columns' logs above which the design hardly separates their exponents.
COLLINEAR = 0.95
#: Correlation of two estimates above which only their combination is known.
INSEPARABLE = 0.95
_FLAT = 1e-10  # smallest scaled curvature that still counts as one
_LOADING = 0.2  # share of a parameter in a flat direction above which it is named
#: Estimate over standard error below which a parameter is weakly determined.
WEAK = 2.0


@dataclass(frozen=True)
class Identifiability:
    """Correlations of the design and of the estimates.

    Attributes:
        column_correlations: pair of columns to the correlation of their regressors.
        parameters: names of free coordinates: coefficients at the center of the data, not at x = 1.
        correlations: of the estimates [Z, Z]; nan throughout where the objective is flat.
        condition_number: of the Hessian scaled to a unit diagonal; infinite where it is flat.
        collinear_columns: pairs above 0.95 (either sign).
        inseparable: pairs of parameters above 0.95 (either sign), or those that make up a flat direction. A term's
            own coefficient and exponent are not listed: another reference size would part them.
        weak: exponents within 2 standard errors of zero.
    """

    column_correlations: dict[tuple[str, str], float]
    parameters: tuple[str, ...]
    correlations: Array
    condition_number: float
    collinear_columns: tuple[tuple[str, str], ...]
    inseparable: tuple[tuple[str, ...], ...]
    weak: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each finding; empty when the design is sound."""
        lines = [
            f"columns {a} and {b} move together (correlation {self.column_correlations[a, b]:.3f}):"
            " their exponents are hardly separated"
            for a, b in self.collinear_columns
        ]
        lines += [f"{', '.join(names)}: only a combination of them is determined" for names in self.inseparable]
        lines += [f"{name} is within {WEAK:g} standard errors of zero" for name in self.weak]
        return tuple(lines)


def identifiability(fit: Fit) -> Identifiability:
    """Examine a fit from ``fit`` or ``search``: a refused one too, since that is when the reason is wanted."""
    at = fit.problem
    _, terms = at.evaluate(fit.z[None])
    _, hessian, squares = at.differentiate(fit.z[None], terms)
    scale = np.sqrt(np.maximum(squares[0], 1e-300))
    scaled = hessian[0] / (scale[:, None] * scale[None, :])
    keep = np.flatnonzero(fit.z > at.affine.lower)
    scaled = scaled[np.ix_(keep, keep)]
    names = tuple(fit.law.parameters[int(np.argmax(np.abs(at.affine.basis[:, k])))] for k in keep)
    values, vectors = np.linalg.eigh(scaled)
    flat = values[0] <= _FLAT
    if flat:
        correlations = np.full((len(keep), len(keep)), np.nan)
        inseparable: tuple[tuple[str, ...], ...] = tuple(
            tuple(names[i] for i in np.flatnonzero(np.abs(vectors[:, k]) > _LOADING))
            for k in np.flatnonzero(values <= _FLAT)
        )
        weak: tuple[str, ...] = ()
        condition = float("inf")
    else:
        inverse = np.linalg.inv(scaled)
        root = np.sqrt(np.diag(inverse))
        correlations = np.asarray(inverse / (root[:, None] * root[None, :]), dtype=np.float64)
        inseparable = tuple(
            (names[i], names[j])
            for i in range(len(names))
            for j in range(i)
            if abs(correlations[i, j]) > INSEPARABLE and not _same_term(fit, names[i], names[j])
        )
        errors = hessian_covariance(fit).working_errors
        estimates = fit.uncertified_parameters
        exponents = fit.law.exponents if isinstance(fit.law, AdditiveLaw) else ()
        weak = tuple(name for name in exponents if name not in fit.fixed and abs(estimates[name]) < WEAK * errors[name])
        condition = float(values[-1] / values[0])
    columns = column_correlations(fit)
    return Identifiability(
        columns,
        names,
        correlations,
        condition,
        tuple(pair for pair, value in columns.items() if abs(value) > COLLINEAR),
        inseparable,
        weak,
    )


def column_correlations(fit: Fit) -> dict[tuple[str, str], float]:
    """Correlation of each pair of regressors (logs of columns, columns themselves under a decay)."""
    if not isinstance(fit.law, AdditiveLaw):
        return {}
    factors = [factor for term in fit.law.terms for factor in term.factors]
    logs = [f.regressor(fit.data.column(f.column)) for f in factors]
    result = {}
    for j in range(len(factors)):
        for i in range(j):
            if factors[i].column != factors[j].column and logs[i].std() > 0 and logs[j].std() > 0:
                sign = 1.0 if factors[i].kind != "power" else -1.0
                sign *= 1.0 if factors[j].kind != "power" else -1.0
                value = sign * float(np.corrcoef(logs[i], logs[j])[0, 1])
                result[factors[i].column, factors[j].column] = value
    return result


def _same_term(fit: Fit, first: str, second: str) -> bool:
    if not isinstance(fit.law, AdditiveLaw):
        return False
    members = [{term.coefficient, *(f.exponent for f in term.factors)} for term in fit.law.terms]
    return any({first, second} <= names for names in members)

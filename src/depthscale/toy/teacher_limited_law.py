"""c (x^-a - X^-a): a power that is spent where the student is as deep as its teacher, X.

No floor can stand for this: the loss is not what remains at infinite depth but what remains below the teacher's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DataError
from depthscale.laws.bound import BoundLaw

Array = NDArray[np.float64]

_START_EXPONENTS = (0.05, 8.0)


@dataclass(frozen=True)
class TeacherLimitedLaw:
    """L = c (depth^-a - teacher_depth^-a), a > 0.

    Attributes:
        teacher_depth: X, above every depth of the rows.
    """

    teacher_depth: float

    @property
    def name(self) -> str:
        """How reports name the law."""
        return "teacher_limited"

    @property
    def parameters(self) -> tuple[str, ...]:
        """c and a."""
        return ("c", "a")

    @property
    def columns(self) -> tuple[str, ...]:
        """``depth``."""
        return ("depth",)

    def bind(self, columns: Mapping[str, Array], loss: Array, loss_scale: float | None = None) -> BoundLaw:
        """The law on these rows.

        Raises:
            DataError: a depth is not below the teacher's.
        """
        depth = columns["depth"]
        if not (depth < self.teacher_depth).all():
            raise DataError(
                f"a student of depth {depth.max():g} came for a teacher of {self.teacher_depth:g};"
                " expected shallower students for the form that ends at the teacher"
            )
        plain = BoundLaw.from_regressors([-np.log(depth)[:, None]], loss, False, loss_scale)
        # exp(u_0 + z u_1) at the teacher's depth, in the rows' own coordinates.
        spread = 1 / plain.transform[1, 1]
        mean = -plain.transform[0, 1] * spread
        at_teacher = np.full(len(depth), (-np.log(self.teacher_depth) - mean) / spread)
        designs = (plain.designs[0], np.stack([np.ones(len(depth)), at_teacher], axis=1))
        return _Difference(
            ((0, 1), (0, 1)),
            designs,
            (),
            None,
            plain.loss_scale,
            plain.transform,
            plain.offset,
            plain.coefficient_mask,
        )


class _Difference(BoundLaw):
    """exp(Z_1 u) - exp(Z_2 u): two terms that share both parameters, the second counted negative."""

    def terms(self, u: Array) -> Array:
        values = super().terms(u)
        values[1] *= -1
        return values

    def jacobian(self, u: Array) -> Array:
        terms = self.terms(u)
        result: Array = sum(term[:, :, None] * z for term, z in zip(terms, self.designs, strict=True))
        return result

    def contract(self, terms: Array, first: Array, second: Array) -> tuple[Array, Array]:
        slope = sum(term[:, :, None] * z for term, z in zip(terms, self.designs, strict=True))
        gradient = np.einsum("sn,snp->sp", first, slope)
        hessian = np.einsum("sn,snp,snq->spq", second, slope, slope)
        for term, z in zip(terms, self.designs, strict=True):
            hessian += np.einsum("sn,np,nq->spq", first * term, z, z)
        return gradient, hessian

    def squares(self, terms: Array, weight: Array) -> Array:
        slope = sum(term[:, :, None] * z for term, z in zip(terms, self.designs, strict=True))
        result: Array = np.einsum("sn,snp->sp", weight, slope**2)
        return result

    def starts(self, loss: Array, weights: Array, number: int) -> Array:
        exponents = np.geomspace(*_START_EXPONENTS, number)
        u = np.stack([np.zeros(number), exponents / self.transform[1, 1]], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            missing = np.log(loss / self.loss_scale) - np.log(self.predict(u))
        u[:, 0] = (missing * weights).sum(axis=1) / weights.sum()
        return u

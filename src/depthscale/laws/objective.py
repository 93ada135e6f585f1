"""What a fit minimizes: squares or Huber of the log residual, or squares of the raw one.

log_squares  r = ln L^ - ln L,  rho = r^2 / 2                   reported as mean r^2      (arXiv 2602.05970)
log_huber    r = ln L^ - ln L,  rho = Huber_delta(r)            reported as the sum       (arXiv 2203.15556)
raw_squares  r = L^ - L,        rho = r^2 / 2                   reported as mean r^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, unknown_name

Array = NDArray[np.float64]
ObjectiveKind = Literal["log_squares", "log_huber", "raw_squares"]
OBJECTIVE_KINDS: tuple[ObjectiveKind, ...] = get_args(ObjectiveKind)


@dataclass(frozen=True)
class Objective:
    """A kind of residual and the loss on it.

    Attributes:
        kind: one of OBJECTIVE_KINDS.
        delta: where Huber turns from squares to absolute values, in nats of log loss; 1e-3 is nearly L1.
            Used by ``log_huber`` only.
    """

    kind: ObjectiveKind = "log_squares"
    delta: float = 1e-3

    def __post_init__(self) -> None:
        if self.kind not in OBJECTIVE_KINDS:
            raise ConfigError(unknown_name("objective", str(self.kind), OBJECTIVE_KINDS))
        if not 0 < self.delta < math.inf:
            raise ConfigError(f"Huber delta came as {self.delta!r}; expected a positive number such as 1e-3")

    @property
    def is_log(self) -> bool:
        """Residuals are differences of logs."""
        return self.kind != "raw_squares"

    def residual(self, predicted: Array, observed: Array) -> Array:
        """r, from predictions [S, n] and observations [S or 1, n] in the same unit."""
        if not self.is_log:
            return predicted - observed
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(predicted / observed)

    def loss(self, residual: Array) -> Array:
        """rho(r)."""
        if self.kind != "log_huber":
            return 0.5 * residual**2
        size = np.abs(residual)
        clipped = np.minimum(size, self.delta)
        return clipped * (size - 0.5 * clipped)

    def influence(self, residual: Array) -> Array:
        """psi = rho'(r)."""
        return np.clip(residual, -self.delta, self.delta) if self.kind == "log_huber" else residual

    def curvature(self, residual: Array) -> Array:
        """rho''(r)."""
        if self.kind == "log_huber":
            return (np.abs(residual) <= self.delta).astype(np.float64)
        return np.ones_like(residual)

    def majorizer(self, residual: Array) -> Array:
        """psi(r) / r, the weight of the quadratic that lies above rho and touches it at r."""
        if self.kind == "log_huber":
            return self.delta / np.maximum(np.abs(residual), self.delta)
        return np.ones_like(residual)

    def derivatives(self, residual: Array, predicted: Array) -> tuple[Array, Array]:
        """First and second derivative of rho by the prediction."""
        psi, bend = self.influence(residual), self.curvature(residual)
        if not self.is_log:
            return psi, bend
        return psi / predicted, (bend - psi) / predicted**2

    def reported(self, total: float, weight: float, loss_scale: float) -> float:
        """The figure papers print, from sum w * rho and sum w in internal units."""
        if self.kind == "log_huber":
            return total
        mean = 2 * total / weight
        return mean if self.is_log else mean * loss_scale**2

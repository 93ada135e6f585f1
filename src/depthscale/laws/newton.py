"""Damped Newton on a whole batch of fits at once: starts, bootstrap replicates, profile points.

Each member minimizes sum_n w_n rho(r_n(u)) (+ an anchor) with the full Hessian. Negative curvature is turned
round and damped, so a step always goes down; a member leaves the batch when its Newton decrement is at rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from depthscale.laws.bound import BoundLaw
from depthscale.laws.objective import Objective

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Newton decrement^2 over the objective at which no digit of the objective is left to gain.
_DECREMENT = 1e-20
# Below the first, steps are plain Newton and are judged by the gradient, since the objective is flat in floating
# point; they end where they no longer bring it down, which counts as converged below the second.
_NEAR_DECREMENT = 1e-10
_STALLED_DECREMENT = 1e-15
_EXACT_RESIDUAL = 1e-26  # mean rho below it: the rows lie on the law to rounding
_LARGEST_STEP = 2.0  # in internal coordinates, where one unit is a factor e of a term at one spread
_LARGEST_DAMPING = 1e10


@dataclass(frozen=True)
class Affine:
    """u = basis @ z + offset: what is left free when parameters are fixed or shared.

    Attributes:
        basis: [P, Z].
        offset: [P].
        lower: bounds [Z] of z.
    """

    basis: Array
    offset: Array
    lower: Array


@dataclass(frozen=True)
class Anchor:
    """Adds strength / 2 * (h(u) - target)^2: holds a derived quantity near a value, for profiles.

    Whatever the strength, the minimum lies exactly on the profile at the value of h that it reaches.

    Attributes:
        quantity: u [S, P], kinds [S] -> h [S] and its gradient [S, P].
        kinds: [S], which quantity each member holds.
        targets: [S].
        strengths: [S], in units of the objective over h squared.
    """

    quantity: Callable[[Array, Index], tuple[Array, Array]]
    kinds: Index
    targets: Array
    strengths: Array

    def take(self, members: Index) -> Anchor:
        """The same for some members."""
        return replace(
            self, kinds=self.kinds[members], targets=self.targets[members], strengths=self.strengths[members]
        )


@dataclass(frozen=True)
class Problem:
    """A batch of S fits of one law.

    Attributes:
        bound: the law on its rows.
        objective: what is minimized.
        observed: losses over the loss scale, [1, n] or [S, n].
        weights: [1, n] or [S, n], not negative.
        affine: the free coordinates z.
        anchor: optional.
    """

    bound: BoundLaw
    objective: Objective
    observed: Array
    weights: Array
    affine: Affine
    anchor: Anchor | None = None

    def take(self, members: Index) -> Problem:
        """The same for some members."""
        return replace(
            self,
            observed=self.observed if len(self.observed) == 1 else self.observed[members],
            weights=self.weights if len(self.weights) == 1 else self.weights[members],
            anchor=None if self.anchor is None else self.anchor.take(members),
        )

    def internal(self, z: Array) -> Array:
        """u [S, P] of z [S, Z]."""
        return z @ self.affine.basis.T + self.affine.offset

    @np.errstate(divide="ignore", over="ignore", invalid="ignore")
    def evaluate(self, z: Array) -> tuple[Array, Array]:
        """Objective [S] and terms [K, S, n], to be handed on to :meth:`differentiate`.

        Infinite where a prediction has left what floats hold.
        """
        u = self.internal(z)
        terms = self.bound.terms(u)
        residual = self.objective.residual(self.bound.total(u, terms), self.observed)
        value = (self.weights * self.objective.loss(residual)).sum(axis=1)
        if self.anchor is not None:
            distance = self.anchor.quantity(u, self.anchor.kinds)[0] - self.anchor.targets
            value = value + 0.5 * self.anchor.strengths * distance**2
        return np.where(np.isfinite(value), value, np.inf), terms

    @np.errstate(divide="ignore", over="ignore", invalid="ignore")
    def differentiate(self, z: Array, terms: Array) -> tuple[Array, Array, Array]:
        """Gradient [S, Z], Hessian [S, Z, Z] and the majorizer's curvature, diagonal [S, Z]."""
        u = self.internal(z)
        predicted = self.bound.total(u, terms)
        residual = self.objective.residual(predicted, self.observed)
        first, second = self.objective.derivatives(residual, predicted)
        gradient, hessian = self.bound.contract(terms, self.weights * first, self.weights * second)
        weight = self.weights * self.objective.majorizer(residual)
        if self.objective.is_log:
            weight = weight / predicted**2
        squares = self.bound.squares(terms, weight)
        if self.anchor is not None:
            value, slope = self.anchor.quantity(u, self.anchor.kinds)
            pull = self.anchor.strengths * (value - self.anchor.targets)
            gradient = gradient + pull[:, None] * slope
            outer = slope[:, :, None] * slope[:, None, :]
            hessian = hessian + self.anchor.strengths[:, None, None] * outer
            squares = squares + self.anchor.strengths[:, None] * slope**2
        basis = self.affine.basis
        return gradient @ basis, basis.T @ hessian @ basis, squares @ basis**2


@dataclass(frozen=True)
class Solution:
    """Where each member stopped.

    Attributes:
        z: [S, Z].
        value: objective [S], internal units, without being divided by anything.
        converged: [S], the decrement reached rounding with no negative curvature.
        iterations: of the slowest member.
    """

    z: Array
    value: Array
    converged: NDArray[np.bool_]
    iterations: int


def minimize(problem: Problem, start: Array, max_iterations: int = 200) -> Solution:
    """Carry every member from ``start`` [S, Z] to a minimum."""
    z = np.maximum(start, problem.affine.lower)
    value, terms = problem.evaluate(z)
    converged = np.zeros(len(z), dtype=np.bool_)
    previous = np.full(len(z), np.inf)
    damping = np.full(len(z), 1e-2)
    members: Index = np.flatnonzero(np.isfinite(value))
    state = _Curvature.of(problem.take(members), z[members], terms[:, members])
    iterations = 0
    while len(members) and iterations < max_iterations:
        iterations += 1
        part = problem.take(members)
        here = value[members]
        weight = part.weights.sum(axis=1)
        finished = (state.decrement <= _DECREMENT * here) & (state.smallest > -1e-9)
        near = (state.decrement <= _NEAR_DECREMENT * here) & (state.smallest > 0)
        no_gain = state.decrement > 0.25 * previous[members]
        finished |= near & no_gain & (state.decrement <= _STALLED_DECREMENT * here)
        finished |= no_gain & (here <= _EXACT_RESIDUAL * weight)
        previous[members] = state.decrement
        stuck = damping[members] > _LARGEST_DAMPING
        converged[members[finished]] = True
        keep = ~(finished | stuck)
        members, state, part, near = members[keep], state.take(keep), part.take(np.flatnonzero(keep)), near[keep]
        if not len(members):
            break
        step = state.step(np.where(near, 0.0, damping[members]), z[members], part.affine.lower)
        trial = z[members] + step
        trial_value, trial_terms = part.evaluate(trial)
        slack = np.where(near, 1e-12, 4e-16)
        better = trial_value <= value[members] * (1 + slack)
        z[members[better]] = trial[better]
        value[members[better]] = trial_value[better]
        damping[members] = np.where(
            better, np.maximum(damping[members] * 0.1, 1e-15), np.maximum(damping[members] * 6, 1e-6)
        )
        if better.any():
            rows = np.flatnonzero(better)
            moved = _Curvature.of(part.take(rows), trial[rows], trial_terms[:, rows])
            state.replace_rows(rows, moved)
    return Solution(z, value, converged, iterations)


def eigen(hessian: Array) -> tuple[Array, Array]:
    """Eigenvalues [S, Z] and vectors [S, Z, Z]; nan, which passes no test, where a Hessian is not finite."""
    finite = np.asarray(np.isfinite(hessian).all(axis=(1, 2)))
    values, vectors = np.linalg.eigh(np.where(finite[:, None, None], hessian, np.eye(hessian.shape[1])))
    return np.where(finite[:, None], values, np.nan), vectors


@dataclass
class _Curvature:
    """Scaled gradient and eigenvectors of the scaled Hessian at each member's point."""

    scale: Array
    values: Array
    vectors: Array
    slope: Array
    decrement: Array
    smallest: Array

    @classmethod
    def of(cls, problem: Problem, z: Array, terms: Array) -> _Curvature:
        gradient, hessian, squares = problem.differentiate(z, terms)
        scale = np.sqrt(np.maximum(squares, 1e-300))
        # A coordinate that no row feels (or that sits on its bound and would leave) takes no part.
        blocked = (z <= problem.affine.lower) & (gradient > 0)
        gradient = np.where(blocked, 0.0, gradient / scale)
        hessian = hessian / (scale[:, :, None] * scale[:, None, :])
        free = ~blocked
        hessian = np.where(free[:, :, None] & free[:, None, :], hessian, 0.0)
        diagonal = np.arange(z.shape[1])
        hessian[:, diagonal, diagonal] += blocked
        values, vectors = eigen(hessian)
        slope = np.einsum("spq,sp->sq", vectors, gradient)
        decrement = (slope**2 / np.maximum(np.abs(values), 1e-12)).sum(axis=1)
        return cls(scale, values, vectors, slope, decrement, values.min(axis=1))

    def take(self, keep: NDArray[np.bool_]) -> _Curvature:
        if keep.all():
            return self
        return _Curvature(
            self.scale[keep],
            self.values[keep],
            self.vectors[keep],
            self.slope[keep],
            self.decrement[keep],
            self.smallest[keep],
        )

    def replace_rows(self, rows: Index, new: _Curvature) -> None:
        for name in ("scale", "values", "vectors", "slope", "decrement", "smallest"):
            getattr(self, name)[rows] = getattr(new, name)

    def step(self, damping: Array, z: Array, lower: Array) -> Array:
        """Damped step [S, Z], cut at the largest step and at the first bound it meets."""
        curvature = np.maximum(np.abs(self.values), 1e-12) + damping[:, None]
        step = -np.einsum("spq,sq->sp", self.vectors, self.slope / curvature) / self.scale
        step *= np.minimum(1.0, _LARGEST_STEP / np.maximum(np.abs(step).max(axis=1), 1e-300))[:, None]
        room = np.where(step < 0, (z - lower) / np.where(step < 0, -step, 1.0), np.inf)
        # A coordinate already on its bound was taken out above; what remains of it here is rounding.
        room = np.where((z <= lower) & (step < 0), np.inf, room)
        fraction = np.minimum(1.0, room.min(axis=1))[:, None]
        moved = z + fraction * step
        at_bound = room <= fraction
        return np.where(at_bound | (moved < lower), lower - z, fraction * step)

"""A law on its rows: batched value, Jacobian and summed derivatives in internal coordinates.

Internal coordinates u: the floor over the median loss, the log of each coefficient at the columns' mean
regressors, and each exponent times the spread of its regressor. They are the same whatever units the columns
and the loss come in, and ``working = transform @ u + offset`` leads back to (L_0, ln c_k, a_kj), natural units.

Every array leads with the batch: S starts, replicates or profile points at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.stats import qmc

Array = NDArray[np.float64]

# exp(300) squared is still finite: a trial step that lands beyond is refused for its value, not as an overflow.
_LARGEST_LOG_TERM = 300.0
_START_EXPONENTS = (0.05, 3.0)


@dataclass(frozen=True)
class BoundLaw:
    """L_0 + sum_k exp(u_k + Z_k @ u_exponents) on n rows.

    Attributes:
        blocks: per term, its parameter indices [q]; the first is the coefficient.
        designs: per term, d ln(term) / d u [n, q].
        floors: indices of floor parameters; more than one only where several arms are joined.
        masks: per term, the rows it acts on [n] (1 or 0), or None for all; floors come first.
        loss_scale: losses are divided by it inside.
        transform: [P, P], with ``offset`` [P] the way to working coordinates.
        coefficient_mask: [P], true where the working coordinate is the log of the natural parameter.
        arms: the laws that were joined, in the order of their rows; empty for a single law.
    """

    blocks: tuple[tuple[int, ...], ...]
    designs: tuple[Array, ...]
    floors: tuple[int, ...]
    masks: tuple[Array, ...] | None
    loss_scale: float
    transform: Array
    offset: Array
    coefficient_mask: NDArray[np.bool_]
    arms: tuple[BoundLaw, ...] = ()

    @classmethod
    def from_regressors(
        cls, regressors: Sequence[Array], loss: Array, has_floor: bool, loss_scale: float | None = None
    ) -> BoundLaw:
        """Standardize one regressor matrix [n, j] per term and lay the parameters out."""
        scale = float(np.median(loss)) if loss_scale is None else loss_scale
        num_terms, first = len(regressors), int(has_floor)
        size = first + num_terms + sum(r.shape[1] for r in regressors)
        transform, offset = np.eye(size), np.zeros(size)
        mask = np.zeros(size, dtype=np.bool_)
        if has_floor:
            transform[0, 0] = scale
        blocks, designs, next_exponent = [], [], first + num_terms
        for k, matrix in enumerate(regressors):
            coefficient = first + k
            mask[coefficient] = True
            offset[coefficient] = np.log(scale)
            mean, spread = matrix.mean(axis=0), matrix.std(axis=0)
            # A constant column leaves rounding noise as its spread; dividing by it would invent a signal.
            constant = spread <= 1e-12 * np.maximum(np.abs(mean), 1.0)
            spread = np.where(constant, 1.0, spread)
            exponents = range(next_exponent, next_exponent + matrix.shape[1])
            next_exponent += matrix.shape[1]
            for j, exponent in enumerate(exponents):
                transform[exponent, exponent] = 1 / spread[j]
                transform[coefficient, exponent] = -mean[j] / spread[j]
            standardized = np.where(constant, 0.0, (matrix - mean) / spread)
            blocks.append((coefficient, *exponents))
            designs.append(np.concatenate([np.ones((len(matrix), 1)), standardized], axis=1))
        floors = (0,) if has_floor else ()
        return cls(tuple(blocks), tuple(designs), floors, None, scale, transform, offset, mask)

    @classmethod
    def joined(cls, arms: Sequence[BoundLaw]) -> BoundLaw:
        """Arms below each other: every arm's parameters act on its own rows only."""
        shifts = np.cumsum([0, *(arm.num_parameters for arm in arms)])
        counts = [len(arm.designs[0]) for arm in arms]
        first_rows = np.cumsum([0, *counts])
        total = int(first_rows[-1])
        blocks, designs, floors, floor_masks, term_masks = [], [], [], [], []
        for arm, shift, start, count in zip(arms, shifts, first_rows, counts, strict=False):
            rows = slice(int(start), int(start) + count)
            mask = np.zeros(total)
            mask[rows] = 1.0
            floors += [int(shift) + floor for floor in arm.floors]
            floor_masks += [mask for _ in arm.floors]
            for block, design in zip(arm.blocks, arm.designs, strict=True):
                padded = np.zeros((total, design.shape[1]))
                padded[rows] = design
                blocks.append(tuple(int(shift) + p for p in block))
                designs.append(padded)
                term_masks.append(mask)
        return cls(
            tuple(blocks),
            tuple(designs),
            tuple(floors),
            tuple(floor_masks + term_masks),
            arms[0].loss_scale,
            block_diag(*(arm.transform for arm in arms)),
            np.concatenate([arm.offset for arm in arms]),
            np.concatenate([arm.coefficient_mask for arm in arms]),
            tuple(arms),
        )

    @property
    def num_parameters(self) -> int:
        """P."""
        return len(self.offset)

    @property
    def lower(self) -> Array:
        """Bounds [P] of the internal coordinates: the floor is not negative, the rest is free."""
        bounds = np.full(self.num_parameters, -np.inf)
        bounds[list(self.floors)] = 0.0
        return bounds

    def terms(self, u: Array) -> Array:
        """The terms' values [K, S, n] in units of ``loss_scale``, from u [S, P]."""
        logs = np.stack([u[:, block] @ z.T for block, z in zip(self.blocks, self.designs, strict=True)])
        np.minimum(logs, _LARGEST_LOG_TERM, out=logs)
        values: Array = np.exp(logs, out=logs)
        if self.masks is not None:
            values *= np.stack(self.masks[len(self.floors) :])[:, None, :]
        return values

    def total(self, u: Array, terms: Array) -> Array:
        """Sum of floor and terms [S, n]."""
        total: Array = terms.sum(axis=0)
        for floor, mask in self._floor_masks():
            total += u[:, floor, None] * mask
        return total

    def predict(self, u: Array) -> Array:
        """Loss over ``loss_scale`` [S, n]."""
        return self.total(u, self.terms(u))

    def jacobian(self, u: Array) -> Array:
        """d predict / d u [S, n, P]."""
        terms = self.terms(u)
        out = np.zeros((len(u), terms.shape[2], self.num_parameters))
        for floor, mask in self._floor_masks():
            out[:, :, floor] = mask
        for term, block, z in zip(terms, self.blocks, self.designs, strict=True):
            out[:, :, block] = term[:, :, None] * z
        return out

    def contract(self, terms: Array, first: Array, second: Array) -> tuple[Array, Array]:
        """Gradient [S, P] and Hessian [S, P, P] of sum_n F(f_n), with F' = ``first``, F'' = ``second`` [S, n].

        The Jacobian is never formed: every entry is a [S, n] array times a matrix of the data alone.
        """
        size, batch = self.num_parameters, len(first)
        gradient, hessian = np.zeros((batch, size)), np.zeros((batch, size, size))
        for floor, mask in self._floor_masks():
            gradient[:, floor] = (first * mask).sum(axis=1)
            hessian[:, floor, floor] = (second * mask).sum(axis=1)
        for k, (block, z) in enumerate(zip(self.blocks, self.designs, strict=True)):
            rows = np.array(block)
            weighted, curved = first * terms[k], second * terms[k]
            gradient[:, rows] = weighted @ z
            for floor, mask in self._floor_masks():
                hessian[:, floor, rows] = hessian[:, rows, floor] = (curved * mask) @ z
            for other in range(k + 1):
                columns, z_other = np.array(self.blocks[other]), self.designs[other]
                pair = curved * terms[other]
                if other == k:
                    pair += weighted
                products = (z[:, :, None] * z_other[:, None, :]).reshape(len(z), -1)
                values = (pair @ products).reshape(batch, len(rows), len(columns))
                hessian[:, rows[:, None], columns[None, :]] = values
                if other != k:
                    hessian[:, columns[:, None], rows[None, :]] = values.transpose(0, 2, 1)
        return gradient, hessian

    def squares(self, terms: Array, weight: Array) -> Array:
        """Diagonal [S, P] of J^T diag(weight) J, weight [S, n]."""
        out = np.zeros((len(weight), self.num_parameters))
        for floor, mask in self._floor_masks():
            out[:, floor] = (weight * mask).sum(axis=1)
        for term, block, z in zip(terms, self.blocks, self.designs, strict=True):
            out[:, block] = (weight * term * term) @ (z * z)
        return out

    def _floor_masks(self) -> list[tuple[int, Array | float]]:
        masks: Sequence[Array | float] = self.masks if self.masks is not None else [1.0] * len(self.floors)
        return [(floor, masks[i]) for i, floor in enumerate(self.floors)]

    def starts(self, loss: Array, weights: Array, number: int) -> Array:
        """``number`` starting points u [number, P] made from the data alone.

        Exponents are spread evenly (Halton) over 0.05 to 3 in log, in natural units for powers; the floor and
        the coefficients follow from each by linear least squares on the relative error, which is where the
        variable projection of the raw loss and the log loss agree.

        Args:
            loss: [n], natural units.
            weights: [n].
            number: points to return: half of them the best after projection, half evenly from the better half.
        """
        if self.arms:
            edges = np.cumsum([len(arm.designs[0]) for arm in self.arms])[:-1]
            parts = zip(self.arms, np.split(loss, edges), np.split(weights, edges), strict=True)
            return np.concatenate([arm.starts(y, w, number) for arm, y, w in parts], axis=1)
        exponents = [p for block in self.blocks for p in block[1:]]
        unit = qmc.Halton(d=max(len(exponents), 1), scramble=False).random(4 * number + 1)[1:]
        low, high = np.log(_START_EXPONENTS[0]), np.log(_START_EXPONENTS[1])
        # In internal units an exponent of 1 is the regressor's spread; decays have no natural unit of their own
        # but their rows do: both are covered by a range in spreads around 1.
        natural = np.exp(low + (high - low) * unit)
        u = np.zeros((len(unit), self.num_parameters))
        for column, p in enumerate(exponents):
            u[:, p] = natural[:, column] / self.transform[p, p]
        masks = self._floor_masks()
        floors = [np.broadcast_to(mask, (len(unit), len(loss))) for _, mask in masks]
        basis = np.stack([*floors, *self.terms(u)], axis=2)
        root = np.sqrt(weights)
        design = basis * (root * self.loss_scale / loss)[None, :, None]
        normal = np.einsum("snp,snq->spq", design, design, optimize=True)
        ridge = 1e-10 * np.trace(normal, axis1=1, axis2=2)[:, None, None] * np.eye(normal.shape[1])
        right = np.einsum("snp,n->sp", design, root)[:, :, None]
        linear = np.maximum(np.linalg.solve(normal + ridge, right)[:, :, 0], 1e-3)
        error = ((np.einsum("snp,sp->sn", design, linear) - root) ** 2).sum(axis=1)
        u[:, list(self.floors)] = linear[:, : len(masks)]
        u[:, [block[0] for block in self.blocks]] = np.log(linear[:, len(masks) :])
        order = np.argsort(error, kind="stable")
        best = number // 2
        others = np.linspace(best, len(order) // 2, number - best).astype(int)
        picked: Array = u[order[np.concatenate([np.arange(best), others])]]
        return picked

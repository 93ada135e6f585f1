"""kappa: how far the visits of one sublayer pull in the same direction.

    kappa_j = ||sum_r U_rj|| * ||sum_r G_rj|| / (R * max_r ||U_rj|| * max_r ||G_rj||)        within [0, R]

U_rj is the map from the sublayer's parameters at visit r to the final hidden states (a Jacobian), G_rj the gradient
that visit r leaves. Orthogonal visits of one size give 1, identical visits R, and R = 1 gives 1 by definition.
kappa_common takes the two maxima over all sublayers, as the paper's constants C_U and C_G do.

Source: DeepLoop, arXiv 2607.13491, assumption 3.1 and section 3 (the authors define it and do not measure it).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.sublayers import Sublayer, SublayerKind
from depthscale.alignment.sums import VisitSums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SublayerAlignment:
    """One physical sublayer.

    Attributes:
        name: of the sublayer.
        kind: attention, mlp, norm or other.
        num_visits: R, visits that carry gradient.
        kappa: with this sublayer's own maxima.
        kappa_standard_error: from the random probes of U; None with fewer than 2, or where R = 1.
        kappa_common: with the maxima over all sublayers (of norm gains: over all norm gains).
        map_part: ||sum_r U_r|| / max_r ||U_r||, within [0, R].
        gradient_part: ||sum_r G_r|| / max_r ||G_r||, within [0, R]; kappa is their product over R.
        map_sum, map_max: ||sum_r U_r|| and max_r ||U_r||.
        gradient_sum, gradient_max: the same of G.
        relative_branch: beta * epsilon / alpha, the unit of the maxima; None without a rule.
    """

    name: str
    kind: SublayerKind
    num_visits: int
    kappa: float
    kappa_standard_error: float | None
    kappa_common: float
    map_part: float
    gradient_part: float
    map_sum: float
    map_max: float
    gradient_sum: float
    gradient_max: float
    relative_branch: float | None

    @property
    def bound(self) -> float:
        """||sum_r U_r|| * ||sum_r G_r|| = R * kappa * max ||U_r|| * max ||G_r||: its part of the step bound."""
        return self.map_sum * self.gradient_sum

    @property
    def relative_map_max(self) -> float | None:
        """max_r ||U_r|| in units of beta/alpha, the paper's C_U; constant in R where its assumption holds."""
        return None if self.relative_branch is None else self.map_max / self.relative_branch

    @property
    def relative_gradient_max(self) -> float | None:
        """max_r ||G_r|| in units of beta/alpha, the paper's C_G."""
        return None if self.relative_branch is None else self.gradient_max / self.relative_branch


@dataclass(frozen=True)
class Alignment:
    """All sublayers of one model on one batch.

    Attributes:
        sublayers: in the order asked for.
        gradient_of: ``loss`` or ``adam``, what G is.
        map_norm: ``frobenius`` or ``operator``.
        num_probes: random cotangents behind the Frobenius norms.
    """

    sublayers: tuple[SublayerAlignment, ...]
    gradient_of: str
    map_norm: str
    num_probes: int

    @property
    def matrices(self) -> tuple[SublayerAlignment, ...]:
        """The sublayers that kappa is about: all but norm gains (all, where there is nothing else)."""
        return tuple(s for s in self.sublayers if s.kind != "norm") or self.sublayers

    @property
    def kappa(self) -> float:
        """max_j kappa_j."""
        return max(sublayer.kappa for sublayer in self.matrices)

    @property
    def kappa_common(self) -> float:
        """max_j kappa_common_j: the paper's kappa_R."""
        return max(sublayer.kappa_common for sublayer in self.matrices)

    @property
    def bound(self) -> float:
        """sum_j R_j * kappa_j * max ||U_rj|| * max ||G_rj||: times the rate, a bound on an SGD step's first order."""
        return sum(sublayer.bound for sublayer in self.sublayers)

    def shares(self) -> dict[str, float]:
        """Each sublayer's share of the bound; kappa alone is blind to size."""
        total = self.bound
        return {s.name: s.bound / total if total > 0 else math.nan for s in self.sublayers}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        shares = self.shares()
        return {
            "kappa": self.kappa,
            "kappa_common": self.kappa_common,
            "bound": self.bound,
            "gradient_of": self.gradient_of,
            "map_norm": self.map_norm,
            "num_probes": self.num_probes,
            "sublayers": [
                {
                    **dataclasses.asdict(s),
                    "relative_map_max": s.relative_map_max,
                    "relative_gradient_max": s.relative_gradient_max,
                    "share": shares[s.name],
                }
                for s in self.sublayers
            ],
        }


def visit_alignment(
    map_sum: float, map_norms: Sequence[float], gradient_sum: float, gradient_norms: Sequence[float]
) -> float:
    """kappa of one sublayer from its norms.

    Args:
        map_sum: ||sum_r U_r||.
        map_norms: ||U_r||, one per visit.
        gradient_sum: ||sum_r G_r||.
        gradient_norms: ||G_r||, one per visit.

    Raises:
        AlignmentError: there is no visit, the numbers of visits differ, or all visits are zero.

    Example:
        >>> visit_alignment(2**0.5, [1.0, 1.0], 2**0.5, [1.0, 1.0])   # two orthogonal visits
        1.0000000000000002
        >>> visit_alignment(4.0, [2.0, 2.0], 6.0, [3.0, 3.0])         # two identical visits
        2.0
    """
    if not len(map_norms) == len(gradient_norms) > 0:
        raise AlignmentError(
            f"{len(map_norms)} visits of U and {len(gradient_norms)} of G came; expected the same number, at least 1"
        )
    if len(map_norms) == 1:
        return 1.0
    largest = max(map_norms) * max(gradient_norms)
    if not largest > 0:
        raise AlignmentError("every visit's map or gradient is zero, which has no direction; expected a nonzero one")
    return map_sum * gradient_sum / (len(map_norms) * largest)


def align(
    sublayers: Sequence[Sublayer],
    maps: Sequence[Sequence[VisitSums]],
    gradients: Sequence[VisitSums],
    *,
    gradient_of: str = "loss",
    map_norm: str = "frobenius",
) -> Alignment:
    """Put the norms of U and G together.

    Args:
        sublayers: what was measured.
        maps: one list per random probe (or a single one of operator norms), with an entry per sublayer.
        gradients: an entry per sublayer.
        gradient_of: what G is of.
        map_norm: which norm ``maps`` holds.

    Raises:
        AlignmentError: as :func:`visit_alignment`, with the sublayer's name.
    """
    rows = []
    for number, sublayer in enumerate(sublayers):
        counts = {len(probe[number].visit_norms) for probe in maps} | {len(gradients[number].visit_norms)}
        if len(counts) != 1:
            raise AlignmentError(
                f"sublayer '{sublayer.name}' carries gradient in {sorted(counts)} visits, depending on where it comes"
                " from; expected hidden states that the loss depends on in full"
            )
        squared_sums = np.array([probe[number].sum_norm ** 2 for probe in maps])
        squared_visits = np.array([[norm**2 for norm in probe[number].visit_norms] for probe in maps])
        rows.append((sublayer, squared_sums, squared_visits, gradients[number]))
    largest_map, largest_gradient = _largest(rows, norms=False)
    largest_norm_map, largest_norm_gradient = _largest(rows, norms=True)
    found = []
    for sublayer, squared_sums, squared_visits, gradient in rows:
        map_sum = math.sqrt(squared_sums.mean())
        map_norms = np.sqrt(squared_visits.mean(axis=0)).tolist()
        try:
            kappa = visit_alignment(map_sum, map_norms, gradient.sum_norm, gradient.visit_norms)
        except AlignmentError as error:
            raise AlignmentError(f"sublayer '{sublayer.name}': {error}") from error
        num_visits = len(map_norms)
        gradient_max = max(gradient.visit_norms)
        gradient_part = gradient.sum_norm / gradient_max if gradient_max > 0 else 1.0
        common = largest_norm_map * largest_norm_gradient if sublayer.kind == "norm" else largest_map * largest_gradient
        found.append(
            SublayerAlignment(
                name=sublayer.name,
                kind=sublayer.kind,
                num_visits=num_visits,
                kappa=kappa,
                kappa_standard_error=_standard_error(squared_sums, squared_visits, gradient_part),
                kappa_common=map_sum * gradient.sum_norm / (num_visits * common) if common > 0 else math.nan,
                map_part=map_sum / max(map_norms) if max(map_norms) > 0 else 1.0,
                gradient_part=gradient_part,
                map_sum=map_sum,
                map_max=max(map_norms),
                gradient_sum=gradient.sum_norm,
                gradient_max=gradient_max,
                relative_branch=sublayer.relative_branch,
            )
        )
    return Alignment(tuple(found), gradient_of, map_norm, len(maps) if map_norm == "frobenius" else 0)


def _largest(rows: Sequence[tuple[Sublayer, Array, Array, VisitSums]], norms: bool) -> tuple[float, float]:
    """max over sublayers and visits of ||U|| and of ||G||, of norm gains or of all others."""
    chosen = [row for row in rows if (row[0].kind == "norm") == norms]
    maps = [math.sqrt(visits.mean(axis=0).max()) for _, _, visits, _ in chosen]
    return max(maps, default=0.0), max((max(gradient.visit_norms) for *_, gradient in chosen), default=0.0)


def _standard_error(squared_sums: Array, squared_visits: Array, gradient_part: float) -> float | None:
    """Jackknife over the probes; sums and visits of one probe share its cotangent, so their ratio varies little."""
    probes, visits = squared_visits.shape
    if probes < 2 or visits == 1:
        return None
    left_sums = (squared_sums.sum() - squared_sums) / (probes - 1)
    left_visits = (squared_visits.sum(axis=0) - squared_visits) / (probes - 1)
    parts = np.sqrt(left_sums / left_visits.max(axis=1))
    spread = math.sqrt((probes - 1) / probes * float(((parts - parts.mean()) ** 2).sum()))
    return spread * gradient_part / visits

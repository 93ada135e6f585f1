"""The result of measuring kappa over rounds, as plain data: points, growth exponents, threshold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.growth import growth_exponent, stability_threshold
from depthscale.alignment.kappa import Alignment, SublayerAlignment
from depthscale.laws import FitError

DEFINITIONS = {
    "kappa": "||sum_r U_r|| ||sum_r G_r|| / (R max_r ||U_r|| max_r ||G_r||), largest over attention and MLP sublayers",
    "kappa_common": "the same with the maxima over all of those sublayers: the paper's kappa_R",
    "U": "map from a sublayer's parameters at one visit to the states that the head reads, Frobenius norm",
    "G": "gradient of the mean loss that one visit leaves",
    "relative maxima": "in units of beta * epsilon / alpha",
}


@dataclass(frozen=True)
class RoundsPoint:
    """One measured model.

    Attributes:
        rounds: R.
        seed: of its initial weights.
        step: optimizer steps it was trained for.
        alignment: what was measured.
    """

    rounds: int
    seed: int
    step: int
    alignment: Alignment


def arm_result(name: str, points: Sequence[RoundsPoint], level: float = 0.95) -> dict[str, Any]:
    """One arm (a rule and placement at one stage of training): its points and how they grow with R.

    Args:
        name: of the arm.
        points: over rounds and seeds, all at one stage.
        level: of the intervals.
    """
    return {
        "arm": name,
        "points": [
            {"rounds": p.rounds, "seed": p.seed, "step": p.step, **p.alignment.to_dict()}
            for p in sorted(points, key=lambda p: (p.rounds, p.seed))
        ],
        "growth": _growth(points, level),
    }


def _growth(points: Sequence[RoundsPoint], level: float) -> dict[str, Any]:
    """Exponents of the whole model and of each sublayer; the reason in words where there is none."""
    rounds = [float(point.rounds) for point in points]

    def exponent(values: Sequence[float]) -> dict[str, Any]:
        return or_reason(lambda: dataclasses.asdict(growth_exponent(rounds, values, level)))

    def threshold(kappa: Sequence[float], maps: Sequence[float | None], gradients: Sequence[float | None]) -> Any:
        units = [(u, g) for u, g in zip(maps, gradients, strict=True) if u is not None and g is not None]
        if len(units) < len(points):
            return {"reason": "the maxima have no unit, since no rule was applied"}
        return or_reason(
            lambda: stability_threshold(rounds, kappa, [u for u, _ in units], [g for _, g in units], level).to_dict()
        )

    alignments = [point.alignment for point in points]
    map_parts = [max(s.map_part for s in a.matrices) for a in alignments]
    gamma_map = exponent(map_parts)
    return {
        "kappa": exponent([a.kappa for a in alignments]),
        "bound": exponent([a.bound for a in alignments]),
        "map_part": gamma_map,
        # What bounds an Adam step: p = gamma_U / 2.
        "adam_threshold": gamma_map["exponent"] / 2 if "exponent" in gamma_map else None,
        "threshold": threshold(
            [a.kappa_common for a in alignments],
            [_largest(a, lambda s: s.relative_map_max) for a in alignments],
            [_largest(a, lambda s: s.relative_gradient_max) for a in alignments],
        ),
        "sublayers": {
            name: threshold(
                [s.kappa for s in rows],
                [s.relative_map_max for s in rows],
                [s.relative_gradient_max for s in rows],
            )
            for name, rows in _by_sublayer(alignments).items()
        },
    }


def _largest(alignment: Alignment, of: Callable[[SublayerAlignment], float | None]) -> float | None:
    values = [of(sublayer) for sublayer in alignment.matrices]
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _by_sublayer(alignments: Sequence[Alignment]) -> dict[str, list[SublayerAlignment]]:
    """Matrices that every point has, point by point."""
    names = [s.name for s in alignments[0].matrices]
    rows = {name: [s for a in alignments for s in a.matrices if s.name == name] for name in names}
    return {name: found for name, found in rows.items() if len(found) == len(alignments)}


def or_reason(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is computed, or under ``reason`` why it cannot be."""
    try:
        return compute()
    except (AlignmentError, FitError) as error:
        return {"reason": str(error)}

"""Alignment over rounds and seeds under one condition (arm, step, batch size, kind of G), and how it grows with R."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthscale.alignment.growth import threshold_of
from depthscale.alignment.kappa import Alignment, SublayerAlignment
from depthscale.alignment.results import or_reason
from depthscale.alignment.seed_growth import at_one_level, growth_over_seeds, seed_exponents

#: What a point is reduced to: one number each, the largest over attention and MLP sublayers but for the bound.
QUANTITIES: Mapping[str, Callable[[Alignment], float]] = {
    "kappa": lambda a: a.kappa,
    "kappa_common": lambda a: a.kappa_common,
    "map_part": lambda a: max(s.map_part for s in a.matrices),
    "gradient_part": lambda a: max(s.gradient_part for s in a.matrices),
    "relative_map_max": lambda a: max(s.relative_map_max or math.nan for s in a.matrices),
    "relative_gradient_max": lambda a: max(s.relative_gradient_max or math.nan for s in a.matrices),
    "bound": lambda a: a.bound,
}


@dataclass(frozen=True)
class Condition:
    """What is held fixed while R and the seed vary."""

    arm: str
    step: int
    batch_rows: int
    gradient_of: str


@dataclass(frozen=True)
class Point:
    """One measurement under a condition."""

    rounds: int
    seed: int
    loss_nats: float
    alignment: Alignment

    def value(self, quantity: str) -> float:
        """One of QUANTITIES."""
        return QUANTITIES[quantity](self.alignment)


def points_by_condition(cells: Sequence[Mapping[str, Any]]) -> dict[Condition, list[Point]]:
    """The points of all cells, sorted by rounds and seed under each condition."""
    found: dict[Condition, list[Point]] = {}
    for cell in cells:
        for record in cell["points"]:
            key = Condition(cell["arm"], record["step"], record["batch_rows"], record["gradient_of"])
            point = Point(cell["rounds"], cell["seed"], record["loss_nats"], alignment_from(record))
            found.setdefault(key, []).append(point)
    return {key: sorted(points, key=lambda p: (p.rounds, p.seed)) for key, points in found.items()}


def alignment_from(record: Mapping[str, Any]) -> Alignment:
    """The inverse of :meth:`Alignment.to_dict`."""
    names = [field.name for field in dataclasses.fields(SublayerAlignment)]
    sublayers = tuple(SublayerAlignment(**{name: s[name] for name in names}) for s in record["sublayers"])
    return Alignment(sublayers, record["gradient_of"], record["map_norm"], record["num_probes"])


def condition_record(condition: Condition, points: Sequence[Point], level: float) -> dict[str, Any]:
    """Everything that is reported of one condition, as plain data.

    Args:
        condition: what was held.
        points: over rounds and seeds.
        level: of the intervals.
    """
    return {
        **dataclasses.asdict(condition),
        "points": [
            {
                "rounds": p.rounds,
                "seed": p.seed,
                "loss_nats": p.loss_nats,
                **{name: p.value(name) for name in QUANTITIES},
            }
            for p in points
        ],
        "by_rounds": [_at_rounds([p for p in points if p.rounds == r]) for r in sorted({p.rounds for p in points})],
        **_growth(condition, points, level),
    }


def mean_and_error(values: Sequence[float]) -> dict[str, float | None]:
    """Mean over seeds and its standard error, None with a single seed."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}


def _at_rounds(points: Sequence[Point]) -> dict[str, Any]:
    shares = [p.alignment.shares() for p in points]
    return {
        "rounds": points[0].rounds,
        "num_seeds": len(points),
        "loss_nats": statistics.fmean(p.loss_nats for p in points),
        **{name: mean_and_error([p.value(name) for p in points]) for name in QUANTITIES},
        "sublayers": [
            {
                "name": sublayer.name,
                "kind": sublayer.kind,
                "share": statistics.fmean(of_seed[sublayer.name] for of_seed in shares),
                **{
                    key: mean_and_error([getattr(p.alignment.sublayers[index], key) for p in points])
                    for key in ("kappa", "kappa_common", "map_part", "gradient_part")
                },
            }
            for index, sublayer in enumerate(points[0].alignment.sublayers)
        ],
    }


def _growth(condition: Condition, points: Sequence[Point], level: float) -> dict[str, Any]:
    keys = [(p.rounds, p.seed) for p in points]
    values = {name: [p.value(name) for p in points] for name in QUANTITIES}
    # Sizes, whose level differs from seed to seed; the others are shares that start from 1 at R = 1.
    values |= {
        name: at_one_level(keys, values[name]) for name in ("bound", "relative_map_max", "relative_gradient_max")
    }

    def exponent(found: Sequence[float]) -> dict[str, Any]:
        return or_reason(lambda: dataclasses.asdict(growth_over_seeds(keys, found, level)))

    fitted = {name: exponent(values[name]) for name in ("kappa", "gradient_part")}
    found: dict[str, Any] = {
        "growth": fitted,
        "seed_exponents": {name: seed_exponents(keys, values[name]) for name in ("kappa", "kappa_common")},
    }
    if condition.gradient_of != "loss":
        fitted["kappa_common"] = exponent(values["kappa_common"])
        return {**found, "threshold": {"reason": "Adam's update does not shrink as beta/alpha"}}
    fitted |= {name: exponent(values[name]) for name in ("map_part", "bound")}
    behind = {"kappa_common": "gamma", "relative_map_max": "map_growth", "relative_gradient_max": "gradient_growth"}
    threshold = or_reason(
        lambda: threshold_of(*(growth_over_seeds(keys, values[name], level) for name in behind)).to_dict()
    )
    fitted |= {name: threshold if "reason" in threshold else threshold[key] for name, key in behind.items()}
    return {
        **found,
        "threshold": threshold
        if "reason" in threshold
        else {key: threshold[key] for key in ("value", "lower", "upper", "failed")},
        "adam_threshold": fitted["map_part"]["exponent"] / 2 if "exponent" in fitted["map_part"] else None,
        "sublayer_kappa": {
            name: exponent([next(s.kappa for s in p.alignment.sublayers if s.name == name) for p in points])
            for name in (s.name for s in points[0].alignment.matrices)
        },
    }

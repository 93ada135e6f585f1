"""Alignment over rounds and seeds under one condition (arm, step, batch size, kind of G), and how it grows with R."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.growth import growth_exponent, stability_threshold
from depthscale.alignment.kappa import Alignment, SublayerAlignment
from depthscale.laws import LAWS, FitError, Objective, Observations, search

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


def at_one_level(keys: Sequence[tuple[int, int]], values: Sequence[float]) -> list[float]:
    """Sizes with each seed's own level taken out, so that only growth within a seed is left to fit.

    A norm differs between initializations by a factor that all R of one seed share; kappa, which starts from 1 at
    R = 1, has no such level. An exponent is unchanged; its interval, which is not told of the levels, is short by up
    to sqrt((n - 2) / (n - 1 - seeds)) for n points. Seeds that were not all measured at the same R are left alone.

    Args:
        keys: (rounds, seed) of each value.
        values: positive.

    Example:
        >>> [round(v, 6) for v in at_one_level([(1, 0), (2, 0), (1, 1), (2, 1)], [1.0, 2.0, 4.0, 8.0])]
        [2.0, 4.0, 2.0, 4.0]
    """
    rounds_of = {seed: sorted(r for r, s in keys if s == seed) for _, seed in keys}
    if any(found != rounds_of[keys[0][1]] for found in rounds_of.values()) or not all(v > 0 for v in values):
        return list(values)
    own = {seed: statistics.fmean(math.log(v) for (_, s), v in zip(keys, values, strict=True) if s == seed)
           for seed in rounds_of}  # fmt: skip
    middle = statistics.fmean(own.values())
    return [v * math.exp(middle - own[seed]) for (_, seed), v in zip(keys, values, strict=True)]


def _growth(condition: Condition, points: Sequence[Point], level: float) -> dict[str, Any]:
    rounds = [float(p.rounds) for p in points]

    def exponent(values: Sequence[float]) -> dict[str, Any]:
        return or_reason(lambda: dataclasses.asdict(growth_exponent(rounds, values, level)))

    def sizes(name: str) -> list[float]:
        return at_one_level([(p.rounds, p.seed) for p in points], [p.value(name) for p in points])

    common = [p.value("kappa_common") for p in points]
    fitted = {name: exponent([p.value(name) for p in points]) for name in ("kappa", "gradient_part")}
    found: dict[str, Any] = {
        "growth": fitted,
        "seed_exponents": {name: _by_seed(points, name) for name in ("kappa", "kappa_common")},
    }
    if condition.gradient_of != "loss":
        fitted["kappa_common"] = exponent(common)
        return {**found, "threshold": {"reason": "Adam's update does not shrink as beta/alpha"}}
    fitted["map_part"] = exponent([p.value("map_part") for p in points])
    fitted["bound"] = exponent(sizes("bound"))
    threshold = or_reason(
        lambda: stability_threshold(
            rounds, common, sizes("relative_map_max"), sizes("relative_gradient_max"), level=level
        ).to_dict()
    )
    for name, key in (
        ("kappa_common", "gamma"),
        ("relative_map_max", "map_growth"),
        ("relative_gradient_max", "gradient_growth"),
    ):
        fitted[name] = threshold if "reason" in threshold else threshold[key]
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


def _by_seed(points: Sequence[Point], name: str) -> list[float]:
    """The exponent of each seed alone, where it has three points: seeds, not points, are independent."""
    found = []
    for seed in sorted({p.seed for p in points}):
        own = [p for p in points if p.seed == seed]
        rounds, values = np.array([float(p.rounds) for p in own]), np.array([p.value(name) for p in own])
        if len(own) >= 3 and (values > 0).all():
            fit = search(LAWS["growth"], Observations({"x": rounds}, values), Objective("log_squares"))
            found.append(fit.uncertified_parameters["a"])
    return found


def or_reason(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is computed, or under ``reason`` why it cannot be."""
    try:
        return compute()
    except (AlignmentError, FitError) as error:
        return {"reason": str(error)}

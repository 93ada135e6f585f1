"""gamma at every exponent that was measured, and the exponent that agrees with itself."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.alignment.results import or_reason
from depthscale.alignment.self_consistent import GammaPoint, self_consistent_exponent

#: What the arms of one family share with the base arm.
_SHARED = (
    "norm_placement", "plan_kind", "num_blocks", "hidden_size", "num_attention_heads", "mlp", "optimizer", "tokens",
    "lr",
)  # fmt: skip


def exponent_record(
    arms: Sequence[Mapping[str, Any]],
    base: str,
    conditions: Sequence[Mapping[str, Any]],
    edge: tuple[float, float] | None,
    level: float,
) -> dict[str, Any]:
    """p* by the growth of kappa and of kappa_common, with the points it comes from.

    Args:
        arms: descriptions; those of rule power, deepnorm and deeploop that are otherwise like the base enter.
        base: name of that arm.
        conditions: what was measured.
        edge: interval of the exponent at which half of the runs train, from a sweep; None where none was measured.
        level: of the intervals.
    """
    shared = next(arm for arm in arms if arm["name"] == base)
    family = {
        arm["name"]: float(arm["exponent"])
        for arm in arms
        if arm["exponent"] is not None and all(arm[key] == shared[key] for key in _SHARED)
    }
    chosen = [c for c in conditions if c["arm"] in family and c["gradient_of"] == "loss"]
    record: dict[str, Any] = {"arms": family, "edge": None if edge is None else list(edge)}
    for quantity in ("kappa_common", "kappa"):
        points = [point for c in chosen if (point := _gamma_point(c, quantity, family[c["arm"]], level)) is not None]
        # A condition that only some exponents reached would be solved between fewer of them.
        conditions_of = [(point.step, point.batch_rows) for point in points]
        full = {q for q in conditions_of if conditions_of.count(q) == len(set(family.values()))}
        points = [point for point in points if (point.step, point.batch_rows) in full]

        def solve(points: list[GammaPoint] = points) -> dict[str, Any]:
            found = self_consistent_exponent(points, level=level)
            plain = found.to_dict()
            crossings = [_with_sides(crossing) for crossing in plain["crossings"]]
            return {
                **_with_sides(plain),
                "crossings": crossings,
                "is_recommendation": found.is_recommendation(edge),
            }

        record[quantity] = {"points": [dataclasses.asdict(point) for point in points], "solution": or_reason(solve)}
    record["assumptions"] = [
        {
            "arm": c["arm"],
            "step": c["step"],
            "batch_rows": c["batch_rows"],
            "failed": [c["threshold"]["reason"]] if "reason" in c["threshold"] else c["threshold"]["failed"],
        }
        for c in chosen
    ]
    return record


def _with_sides(record: Mapping[str, Any]) -> dict[str, Any]:
    """Beside every end that lies outside the measured exponents the side, since a result file holds no infinity."""
    sides = {
        f"{name}_outside": "above" if record[name] > 0 else "below"
        for name in ("estimate", "lower", "upper")
        if math.isinf(record[name])
    }
    return {**record, **sides}


def _gamma_point(condition: Mapping[str, Any], quantity: str, p: float, level: float) -> GammaPoint | None:
    """gamma with the normal error that has its interval at ``level``, which holds the spread of the seeds too."""
    fit = condition["growth"][quantity]
    if "reason" in fit or not (math.isfinite(fit["lower"]) and math.isfinite(fit["upper"])):
        return None
    error = (fit["upper"] - fit["lower"]) / 2 / statistics.NormalDist().inv_cdf((1 + level) / 2)
    return GammaPoint(p, fit["exponent"], error, condition["step"], condition["batch_rows"])

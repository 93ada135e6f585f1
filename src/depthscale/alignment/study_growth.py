"""How a real step's change of the final states grows with R, beside what the measured alignment predicts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from depthscale.alignment.growth import adam_growth, sgd_growth
from depthscale.alignment.one_step import predict_change
from depthscale.alignment.results import or_reason
from depthscale.alignment.seed_growth import at_one_level, growth_over_seeds
from depthscale.alignment.study_conditions import Condition, Point, mean_and_error
from depthscale.plan import DepthPlan, VisitCounts
from depthscale.residual import ResidualScales, apply_rule

Cell = Mapping[str, Any]

#: Fields of a row that are averaged over seeds and fitted over R.
MEASURED = ("actual", "first_order", "bound", "all_parameters")
PREDICTED = ("predicted", "predicted_aligned", "predicted_in_full")


def growth_records(
    cells: Sequence[Cell],
    points: Mapping[Condition, Sequence[Point]],
    conditions: Sequence[Mapping[str, Any]],
    level: float,
) -> list[dict[str, Any]]:
    """One record for each arm, optimizer and step at which real steps were taken.

    Predictions fix their constant at R = 1, seed by seed: ``predicted`` by the paper's M * kappa * (beta/alpha)^2 with
    the measured kappa_common, ``predicted_aligned`` with kappa = R, both of an SGD step only; ``predicted_in_full`` by
    sum_j ||sum_r U_rj|| * ||dphi_j||, which also knows how the maxima change with R.

    Args:
        cells: of the study.
        points: their alignment.
        conditions: what was fitted to it.
        level: of the intervals.
    """
    records = []
    keys = [(cell["arm"], step["optimizer"], step["step"]) for cell in cells for step in cell["one_steps"]]
    for arm, optimizer, step in dict.fromkeys(keys):
        own = [cell for cell in cells if cell["arm"] == arm]
        rows = _rows(own, optimizer, step, points)
        if not rows:
            continue
        known = [name for name in (*MEASURED, *PREDICTED) if all(r[name] is not None for r in rows)]
        fitted = {name: _growth(rows, name, level) for name in known}
        condition = next(
            c
            for c in conditions
            if (c["arm"], c["step"], c["batch_rows"], c["gradient_of"]) == (arm, step, rows[0]["batch_rows"], "loss")
        )
        records.append(
            {
                "arm": arm,
                "optimizer": optimizer,
                "step": step,
                "lr": rows[0]["lr"],
                "batch_rows": rows[0]["batch_rows"],
                "exponent": effective_exponent(own),
                "rows": rows,
                "by_rounds": [
                    {
                        "rounds": rounds,
                        **{name: mean_and_error([r[name] for r in rows if r["rounds"] == rounds]) for name in known},
                    }
                    for rounds in sorted({r["rounds"] for r in rows})
                ],
                "growth": fitted,
                "expected": expected_growth(condition, optimizer, effective_exponent(own)),
                "bound_holds": all(r["first_order"] <= r["bound"] * (1 + 1e-3) for r in rows),
            }
        )
    return records


def expected_growth(condition: Mapping[str, Any], optimizer: str, p: float) -> dict[str, Any] | None:
    """1 + gamma - 4p of an SGD step, gamma_U - 2p of an Adam step, with the ends of the measured exponent.

    Args:
        condition: with the growth of ``kappa_common`` and ``map_part``.
        optimizer: ``sgd`` or ``adamw``.
        p: exponent of the rule.
    """
    fit = condition["growth"]["kappa_common" if optimizer == "sgd" else "map_part"]
    if "reason" in fit:
        return None
    grow = sgd_growth if optimizer == "sgd" else adam_growth
    return {key: grow(fit[key], p) for key in ("exponent", "lower", "upper")}


def effective_exponent(cells: Sequence[Cell]) -> float:
    """p of beta/alpha ~ R^-2p from the rule's own numbers (1/2 for inverse_rounds); NaN at a single R."""
    known = {cell["rounds"]: cell["relative_branch"] for cell in cells}
    if len(known) < 2:
        return math.nan
    x, y = np.log(list(known)), np.log(list(known.values()))
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    # So that 0.5 is not written as 0.5000000000000001.
    return round(-slope / 2, 9)


def _rows(
    cells: Sequence[Cell], optimizer: str, step: int, points: Mapping[Condition, Sequence[Point]]
) -> list[dict[str, Any]]:
    """One row per rounds and seed; seeds without a step at R = 1 have no constant and are left out."""
    found = {
        (cell["rounds"], cell["seed"]): (cell, record)
        for cell in cells
        for record in cell["one_steps"]
        if (record["optimizer"], record["step"]) == (optimizer, step)
    }
    rows = []
    for (rounds, seed), (cell, record) in sorted(found.items()):
        if (1, seed) not in found:
            continue
        first_cell, first = found[1, seed]
        condition = Condition(cell["arm"], step, record["batch_rows"], "loss")
        by_key = {(p.rounds, p.seed): p for p in points[condition]}
        here, there = by_key[rounds, seed], by_key[1, seed]
        full = first["actual"] * _full_bound(here, record) / _full_bound(there, first)
        predicted = aligned = None
        if optimizer == "sgd":
            models = _model(first_cell), _model(cell)
            kappa = min(here.value("kappa_common"), float(rounds))
            # Below 1 at R = 1 where no sublayer has both maxima, which the constant takes up.
            predicted = predict_change(first["actual"], *models, [kappa]) / there.value("kappa_common")
            aligned = predict_change(first["actual"], *models)
        rows.append(
            {
                "rounds": rounds,
                "seed": seed,
                "lr": record["lr"],
                "batch_rows": record["batch_rows"],
                **{name: record[name] for name in MEASURED},
                "predicted": predicted,
                "predicted_aligned": aligned,
                "predicted_in_full": full,
            }
        )
    return rows


def _growth(rows: Sequence[Mapping[str, Any]], name: str, level: float) -> dict[str, Any]:
    keys = [(r["rounds"], r["seed"]) for r in rows]
    values = at_one_level(keys, [r[name] for r in rows])
    return or_reason(lambda: dataclasses.asdict(growth_over_seeds(keys, values, level)))


def _full_bound(point: Point, record: Mapping[str, Any]) -> float:
    """sum_j ||sum_r U_rj|| * ||dphi_j|| with Frobenius norms of U."""
    return sum(s.map_sum * record["lengths"].get(s.name, 0.0) for s in point.alignment.matrices)


def _model(cell: Cell) -> tuple[VisitCounts, ResidualScales]:
    counts = DepthPlan.looped(cell["num_blocks"], cell["rounds"]).counts()
    return counts, apply_rule(cell["rule"], counts, cell["rule_arguments"])

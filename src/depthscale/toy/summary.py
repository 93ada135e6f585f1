"""A toy study in one result: exponents beside signatures, what looping saves, and a verdict that may be open."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.results import read_result, result_path
from depthscale.toy.config import ToyStudy, teacher_kind
from depthscale.toy.curves import STILL_FALLING, Curve, make_curves
from depthscale.toy.exponents import LEVEL, MIN_DEPTHS, MIN_RANGE, Exponent, fit_exponent
from depthscale.toy.verdict import verdict

#: Where a study's jobs lie.
JOBS = "jobs"

_SIGNATURE_KEYS = ("norm_start", "norm_end", "step_norm", "turn", "update_angle", "whole_turn")


def summarize(directory: Path, study: ToyStudy) -> dict[str, Any]:
    """Plain data of the whole study, from the results of its jobs.

    Raises:
        ResultError: no job has a result yet, or one is damaged.
    """
    names = list(study.jobs())
    have = [name for name in names if result_path(directory / JOBS / name, "toy_job").exists()]
    if not have:
        raise ResultError(f"no job under {directory / JOBS} has a result yet; run the study first")
    results = [read_result(directory / JOBS / name, "toy_job") for name in have]
    curves = make_curves(results)
    lines = [_line(curve) for curve in curves]
    return {
        "name": study.name,
        "study": study.model_dump(mode="json"),
        "criteria": {
            "min_depths": MIN_DEPTHS,
            "min_range": MIN_RANGE,
            "level": LEVEL,
            "still_falling": STILL_FALLING,
        },
        "missing_jobs": [name for name in names if name not in have],
        "teachers": _teachers(results),
        "lines": lines,
        "looped": [row for curve in curves for row in _looped(curve, curves)],
        "verdict": verdict(lines),
        "seconds": {name: result["seconds"] for name, result in zip(have, results, strict=True)},
        "updates": sum(result["updates"] for result in results),
    }


def _teachers(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Teachers of one kind and size once, with the range of their signature over seeds."""
    found: dict[tuple[float, ...], dict[str, Any]] = {}
    for result in results:
        teacher = result["job"]["teacher"]
        key = tuple(teacher[name] for name in ("rho", "blocks", "width", "hidden"))
        if key not in found or len(result["teachers"]) > len(found[key]["teachers"]):
            found[key] = result
    rows = []
    for (rho, *_), result in sorted(found.items()):
        ranges = {
            key: [min(values), max(values)]
            for key in _SIGNATURE_KEYS
            if (values := [t[key] for t in result["teachers"] if t[key] is not None])
        }
        profile = result["teachers"][0]["profile"]
        rows.append(
            {
                "kind": teacher_kind(rho),
                "rho": rho,
                "blocks": result["job"]["teacher"]["blocks"],
                "seeds": [t["seed"] for t in result["teachers"]],
                "inputs": result["signature_inputs"],
                "ranges": ranges,
                "profile": profile,
            }
        )
    return rows


def _line(curve: Curve) -> dict[str, Any]:
    exponents = [_exponent(curve, number) for number in range(len(curve.ends))]
    return {
        "case": curve.case,
        "teacher": teacher_kind(curve.teacher["rho"]),
        "rho": curve.teacher["rho"],
        "teacher_blocks": curve.teacher["blocks"],
        "loss_kind": curve.loss_kind,
        "family": curve.family,
        "order": curve.order,
        "blocks": curve.blocks,
        "temperature": curve.temperature,
        "ends": list(curve.ends),
        "depths": list(curve.depths),
        "num_replicates": curve.losses.shape[1],
        "losses": curve.losses.tolist(),
        "mean_losses": curve.mean_losses.tolist() if curve.losses.size else None,
        "exponents": [exponent.to_dict() for exponent in exponents],
        "fall": curve.fall,
        "converged": curve.converged,
        "signatures": [_mean_signature(curve, number) for number in range(len(curve.depths))],
        "rates": curve.rates,
        "notes": list(curve.notes),
    }


def _exponent(curve: Curve, end: int) -> Exponent:
    if not curve.losses.size:
        return Exponent(None, "every replicate diverged at some depth")
    # A looped family's depth is its visits; a block of second order counts once, as in the paper.
    return fit_exponent(curve.depths, curve.losses[end], curve.teacher["blocks"])


def _mean_signature(curve: Curve, number: int) -> dict[str, float | None]:
    """Means over replicates at one depth."""
    records = [row[number] for row in curve.records]

    def mean(part: str, key: str) -> float | None:
        values = [r[part][key] for r in records if r[part] is not None and r[part][key] is not None]
        return statistics.fmean(values) if values else None

    return {
        "depth": curve.depths[number],
        **{key: mean("signature", key) for key in _SIGNATURE_KEYS},
        "swap": mean("tolerance", "swap"),
        "removal": mean("tolerance", "removal"),
    }


def _looped(curve: Curve, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Each looped student beside plain ones: equally deep, and the smallest that does as well."""
    beside = (c for c in curves if (c.case, c.temperature) == (curve.case, curve.temperature))
    plain = next((c for c in beside if c.blocks is None and c.order == 1), None)
    if curve.blocks is None or plain is None or not curve.losses.size or not plain.losses.size:
        return []
    rows = []
    parameters = {depth: plain.records[0][i]["num_parameters"] for i, depth in enumerate(plain.depths)}
    losses = dict(zip(plain.depths, plain.mean_losses[-1].tolist(), strict=True))
    for number, depth in enumerate(curve.depths):
        loss = float(curve.mean_losses[-1][number])
        enough = [d for d in plain.depths if losses[d] <= loss]
        rows.append(
            {
                "case": curve.case,
                "teacher": teacher_kind(curve.teacher["rho"]),
                "family": curve.family,
                "temperature": curve.temperature,
                "tuned": curve.rates is not None,
                "plain_tuned": plain.rates is not None,
                "rule": curve.records[0][number]["rule"],
                "blocks": curve.blocks,
                "rounds": depth // curve.blocks,
                "depth": depth,
                "num_parameters": curve.records[0][number]["num_parameters"],
                "loss": loss,
                "plain_loss_at_depth": losses.get(depth),
                "plain_depth_that_reaches_it": enough[0] if enough else None,
                "plain_parameters_that_reach_it": parameters[enough[0]] if enough else None,
            }
        )
    return rows

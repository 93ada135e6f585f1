"""A/A: the same arm twice from other initial weights, and what a difference of two arms must therefore exceed.

The twins go through everything that two arms go through, the choice of their learning rates included. What they
differ by is what the procedure finds where there is nothing to be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from depthscale.studies.differences import paired_difference
from depthscale.studies.study_runs import Study, StudyCell
from depthscale.studies.words import at_budget, decimal


def again_tests(study: Study) -> list[dict[str, Any]]:
    """Every arm that repeats another, cell by cell: its difference, and a test for equivalence with it."""
    found = []
    for arm in study.file.study.arms:
        twin = next((other for other in study.file.study.arms if _is_twin(arm, other)), None)
        if twin is None:
            continue
        for cell in study.cells:
            other = study.cell(twin.name, cell.rounds, cell.budget)
            if cell.arm == arm.name and other is not None:
                subject = f"{cell.label} against {twin.name}, the same but for chance{_rates(study, cell, other)}"
                pair = paired_difference(study, "again", subject, cell, other)
                found.append({**pair, "differs": _differs(pair)})
    return found


def found_in_nothing(again: Iterable[Mapping[str, Any]], cells: Sequence[StudyCell]) -> float:
    """Nats by which one arm differed from itself at the rounds and budget of any of the cells.

    0 where no A/A test was made there, or none found a difference.
    """
    places = {(cell.rounds, cell.budget) for cell in cells}
    return max(
        (
            abs(entry["interval"]["mean"])
            for entry in again
            if entry["differs"] and (entry["a"]["rounds"], entry["a"].get("budget")) in places
        ),
        default=0.0,
    )


def again_warnings(again: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every A/A test that found a difference."""
    return [
        f"{entry['a']['arm']} and {entry['b']['arm']} are one arm and differ by"
        f" {decimal(abs(entry['interval']['mean']))} nats at R = {entry['a']['rounds']}"
        f"{at_budget(entry['a'].get('budget'))}: so much does the procedure find in nothing. There, a direction is"
        " stated only where an interval lies beyond that, and equality only within a larger margin."
        for entry in again
        if entry["differs"]
    ]


def _differs(pair: Mapping[str, Any]) -> bool:
    """Whether the interval excludes 0, from however few pairs: too few for a verdict are enough for caution."""
    interval = pair["interval"]
    return interval is not None and not interval["low"] <= 0 <= interval["high"]


def _is_twin(arm: Any, other: Any) -> bool:
    same = all(getattr(arm, part) == getattr(other, part) for part in ("plan", "model", "train", "match"))
    return bool(same and arm.weight_seed_shift and not other.weight_seed_shift)


def _rates(study: Study, cell: StudyCell, other: StudyCell) -> str:
    own, others = (study.file.cell_rate(side.arm, side.rounds) for side in (cell, other))
    if own is None or others is None or own.lr == others.lr:
        return ""
    return f" and the rates chosen for them, {own.lr:.2g} and {others.lr:.2g}"

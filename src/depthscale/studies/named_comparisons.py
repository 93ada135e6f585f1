"""The comparisons that a study named beforehand: same parameters, equal tokens, equal FLOPs, equal measured time.

Each is a paired difference on terms that are checked against what the runs really spent. Where a side lists several
shapes, the one of the smallest mean loss on the tuning split stands for it; the report split chooses nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from depthscale.runs.comparison_config import CellKey, CellName, ComparisonConfig, Terms
from depthscale.studies import words
from depthscale.studies.again import found_in_nothing
from depthscale.studies.cell_summary import data_seen, epochs_seen, planned_tokens, training_flops, wall_seconds
from depthscale.studies.differences import paired_difference
from depthscale.studies.study_runs import Study, StudyCell, read_tuning

#: Terms in print.
TERMS: Mapping[Terms, str] = MappingProxyType(
    {
        "same_parameters": "Same parameters",
        "equal_tokens": "Equal tokens",
        "equal_flops": "Equal FLOPs",
        "equal_time": "Equal measured time",
    }
)

#: How far what must be equal may be apart, as a share, before it is said. Time is measured, and varies.
_TOLERANCE: Mapping[str, float] = MappingProxyType(
    {"parameters": 0.01, "training FLOPs": 0.01, "tokens": 0.0, "seconds": 0.1}
)

#: What the terms hold equal.
_HELD: Mapping[Terms, tuple[str, ...]] = MappingProxyType(
    {
        "same_parameters": ("parameters", "training FLOPs"),
        "equal_tokens": ("tokens",),
        "equal_flops": ("training FLOPs",),
        "equal_time": ("seconds",),
    }
)


def named_comparisons(study: Study, again: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry per named comparison and budget: a paired difference, its terms, and how each side was chosen.

    ``broken`` names what the terms hold equal and the runs do not; ``added`` is the later addition that brought the
    comparison, a cell that stands for a side or some of its pairs; ``epochs`` and ``data_seen`` tell of each
    side whether its text repeats. All of it is said in ``words``.

    Args:
        again: the study's A/A tests.
    """
    return [
        _named(study, comparison, budget, again)
        for comparison in study.file.study.comparisons
        for budget in study.budgets
    ]


def _named(
    study: Study, comparison: ComparisonConfig, budget: int | None, again: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    sides = {"a": _side(study, comparison.a, budget), "b": _side(study, comparison.b, budget)}
    (a, shapes_a), (b, shapes_b) = sides["a"], sides["b"]
    spent = {name: (_spent(a, name), _spent(b, name)) for name in ("parameters", "tokens", "training FLOPs", "seconds")}
    broken = [name for name in _HELD[comparison.terms] if _apart(spent[name], _TOLERANCE[name])]
    basis = "; ".join(
        f"{name} {words.ratio_words(*both, exact=name in broken)}"
        for name, pair in spent.items()
        if (both := _known(pair))
    )
    terms_here = f"{TERMS[comparison.terms]}{words.at_budget(budget)}"
    subject = f"{terms_here}, {a.arm} at R = {a.rounds} against {b.arm} at R = {b.rounds}"
    terms, beyond = basis or "nothing known of either side", found_in_nothing(again, [a, b])
    pair = paired_difference(study, comparison.terms, subject, a, b, terms, beyond)
    added = _addition(study, comparison, [a, b], pair["seeds"])
    epochs = {"a": epochs_seen(a), "b": epochs_seen(b)}
    said = [pair["words"], *_not_kept(broken, spent), *_other_data(epochs), *_when_added(added, len(pair["seeds"]))]
    return {
        **pair,
        "words": " ".join(said),
        "added": added,
        "held": list(_HELD[comparison.terms]),
        "broken": broken,
        "spent": spent,
        "epochs": epochs,
        "data_seen": {side: data_seen(value) for side, value in epochs.items()},
        "shapes": {"a": shapes_a, "b": shapes_b},
    }


def _addition(
    study: Study, comparison: ComparisonConfig, cells: Sequence[StudyCell], seeds: Sequence[int]
) -> dict[str, Any] | None:
    """The last later addition that this comparison rests on: it, one of its cells, or some of its pairs.

    ``pairs`` is how many pairs came with it, None where all did.
    """
    plain = comparison.model_dump(mode="json", exclude_none=True)
    keys = [list(cell.key) for cell in cells]
    found = None
    for addition in study.additions:
        whole = plain in addition["comparisons"] or any(key in addition.get("cells", []) for key in keys)
        pairs = len(set(seeds) & set(addition.get("seeds", [])))
        if whole or pairs:
            known = {name: addition[name] for name in ("time", "results_before")}
            found = {**known, "pairs": None if whole else pairs}
    return found


def _not_kept(broken: Sequence[str], spent: Mapping[str, tuple[float | None, float | None]]) -> Iterable[str]:
    for name in broken:
        yield f"The terms were not kept: {_amounts(name, spent[name])}."


def _amounts(name: str, pair: tuple[float | None, float | None]) -> str:
    # Counts must be equal to the last one, so that all of their digits matter.
    a, b = (f"{value:,.0f}" if name in ("tokens", "parameters") else f"{value:,.4g}" for value in pair if value)
    return f"{a} against {b} {name}"


def _other_data(epochs: Mapping[str, float | None]) -> Iterable[str]:
    a, b = epochs["a"], epochs["b"]
    if a and b and data_seen(a) != data_seen(b):
        near = min(abs(value - 1) for value in (a, b))
        decimals = 2 if near >= 0.005 else 4
        yield (
            f"The first side saw {data_seen(a)} text ({a:.{decimals}f} epochs), the second {data_seen(b)}"
            f" ({b:.{decimals}f})."
        )


def _when_added(added: Mapping[str, Any] | None, num_pairs: int) -> Iterable[str]:
    if added:
        what = "Added" if added["pairs"] is None else f"{added['pairs']} of {words.count(num_pairs, 'pair')} added"
        yield f"{what} on {added['time'][:10]}, when {words.count(added['results_before'], 'run')} had a result."


def _side(study: Study, names: Sequence[CellName], budget: int | None) -> tuple[StudyCell, list[dict[str, Any]]]:
    """The cell that stands for a side, and every shape with the loss that it was judged by."""
    cells = [cell for name in names if (cell := study.cell(name.arm, name.rounds, budget)) is not None]
    judged = _tuning_losses(study, cells)
    known = [cell for cell in cells if judged[cell.key][0] is not None]
    best = min(known, key=lambda cell: judged[cell.key][0] or 0.0) if known else cells[0]
    shapes = [
        {**cell.names, "tuning_loss_nats": loss, "judged_on": source, "chosen": cell is best}
        for cell, (loss, source) in zip(cells, judged.values(), strict=True)
    ]
    return best, shapes


def _tuning_losses(study: Study, cells: Sequence[StudyCell]) -> dict[CellKey, tuple[float | None, str]]:
    """Loss of every shape on the tuning split and where it comes from, the same for all of them.

    That is the tuning runs where every shape has them at this budget, else the shapes' own runs: a best of several
    rates on one seed is no measure for a mean over other seeds.
    """
    tuned = [_loss_of_tuning_runs(study, cell) for cell in cells]
    if None not in tuned:
        source = "tuning runs, on seeds of their own"
        return {cell.key: (loss, source) for cell, loss in zip(cells, tuned, strict=True)}
    source = "the tuning split of the same runs"
    return {cell.key: (_mean_tuning_loss(cell), source) for cell in cells}


def _loss_of_tuning_runs(study: Study, cell: StudyCell) -> float | None:
    tuning = read_tuning(study.directory)
    if not tuning or tuning.get("budget") != cell.budget:
        return None
    entries = [entry for entry in tuning["cells"] if (entry["arm"], entry["rounds"]) == (cell.arm, cell.rounds)]
    return entries[0].get("best_loss_nats") if entries else None


def _mean_tuning_loss(cell: StudyCell) -> float | None:
    losses = [
        run.training["uniform_loss_nats"] if run.imputed else run.training["final"]["tuning"]["loss_nats"]
        for run in cell.runs.values()
    ]
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if known else None


def _spent(cell: StudyCell, what: str) -> float | None:
    if what == "tokens":
        return planned_tokens(cell)
    if what == "training FLOPs":
        return training_flops(cell)
    if what == "seconds":
        return wall_seconds(cell)
    return next((run.training["budget"]["parameters"] for run in cell.runs.values()), None)


def _known(pair: tuple[float | None, float | None]) -> tuple[float, float] | None:
    a, b = pair
    return (a, b) if a and b else None


def _apart(pair: tuple[float | None, float | None], tolerance: float) -> bool:
    both = _known(pair)
    return both is not None and abs(both[0] - both[1]) > tolerance * max(both)


def broken_terms(named: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every comparison whose runs did not keep its terms."""
    sentences = []
    for entry in named:
        for name in entry["broken"]:
            sentences.append(
                f"{TERMS[entry['question']]} is not what the runs show for {entry['a']['arm']} at R ="
                f" {entry['a']['rounds']} against {entry['b']['arm']} at R = {entry['b']['rounds']}:"
                f" {_amounts(name, entry['spent'][name])}."
            )
    return sentences

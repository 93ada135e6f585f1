"""Downstream scores of a study: one mean per cell and task, and differences paired over the items.

Every run of a study answers the same items, so the noise of which items are asked falls out of a difference. An
interval over items says how sure a difference between *these* runs is; one over seeds, how sure it is between the arms.
A direction is stated only where both leave out 0.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from depthscale.errors import ResultError
from depthscale.runs.results import read_result, result_path
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT, PairedInterval, paired_interval
from depthscale.studies.study_runs import Study, StudyCell

TaskVerdict = Literal["a_higher", "b_higher", "not_decided"]
#: Task, number of shots, metric.
MeasureKey = tuple[str, int, str]


@dataclass(frozen=True)
class CellScores:
    """One measure of one cell: a score per seed and, item by item, its mean over the seeds' runs."""

    values: Mapping[int, float]
    item_keys: tuple[str, ...]
    outcomes: Mapping[int, Sequence[float]]
    higher_is_better: bool

    def item_means(self, seeds: Iterable[int]) -> list[float]:
        """Mean outcome of every item over the runs of those seeds; empty where a run has none by item."""
        runs = [self.outcomes[seed] for seed in seeds]
        return [statistics.fmean(outcomes) for outcomes in zip(*runs, strict=True)]


def compare_tasks(study: Study, questions: Sequence[tuple[str, StudyCell, StudyCell]]) -> dict[str, Any] | None:
    """Scores and paired differences of the runs that were asked downstream tasks.

    Args:
        study: read from its directory.
        questions: (name, cell a, cell b), as the losses are compared.

    Returns:
        Plain data: ``cells`` and ``pairs``; None where no run has a tasks result. A difference is a - b in the
        metric's own unit.

    Raises:
        ResultError: a result is damaged, or two runs were asked different items.
    """
    scores = {cell.key: _cell_scores(study, cell) for cell in study.cells}
    if not any(scores.values()):
        return None
    _require_same_items(scores)
    return {
        "cells": [
            {"arm": cell.arm, "rounds": cell.rounds, **_measure(key), **_summary(found)}
            for cell in study.cells
            for key, found in scores[cell.key].items()
        ],
        "pairs": [
            {
                "question": question,
                "a": {"arm": a.arm, "rounds": a.rounds},
                "b": {"arm": b.arm, "rounds": b.rounds},
                **_measure(key),
                "higher_is_better": found.higher_is_better,
                **_difference(found, scores[b.key][key], study.file.study.confidence),
            }
            for question, a, b in questions
            for key, found in scores[a.key].items()
            if key in scores[b.key] and found.item_keys
        ],
    }


def _cell_scores(study: Study, cell: StudyCell) -> dict[MeasureKey, CellScores]:
    found: dict[MeasureKey, dict[int, dict[str, Any]]] = {}
    for seed, run in cell.runs.items():
        directory = study.directory / run.directory
        if result_path(directory, "tasks").exists():
            for score in read_result(directory, "tasks")["scores"]:
                key = (score["task"], score["num_fewshot"], score["metric"])
                found.setdefault(key, {})[seed] = score
    return {
        key: CellScores(
            values={seed: score["value"] for seed, score in by_seed.items()},
            item_keys=_one_set_of_items(cell, key, by_seed),
            outcomes={seed: score["outcomes"] for seed, score in by_seed.items()},
            higher_is_better=next(iter(by_seed.values()))["higher_is_better"],
        )
        for key, by_seed in found.items()
    }


def _one_set_of_items(cell: StudyCell, key: MeasureKey, by_seed: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    sets = {tuple(score["item_keys"]) for score in by_seed.values()}
    if len(sets) > 1:
        raise ResultError(f"the runs of {cell.arm} at R = {cell.rounds} {_DIFFERENT.format(key[0])}")
    return sets.pop()


_DIFFERENT = "were asked different items of {}, so their scores do not compare; delete results/tasks.json and go on"


def _require_same_items(scores: Mapping[Any, Mapping[MeasureKey, CellScores]]) -> None:
    seen: dict[MeasureKey, tuple[str, ...]] = {}
    for measures in scores.values():
        for key, found in measures.items():
            if seen.setdefault(key, found.item_keys) != found.item_keys:
                raise ResultError(f"two cells {_DIFFERENT.format(key[0])}")


def _measure(key: MeasureKey) -> dict[str, Any]:
    return {"task": key[0], "num_fewshot": key[1], "metric": key[2]}


def _summary(found: CellScores) -> dict[str, Any]:
    items = found.item_means(found.values)
    return {
        "mean": statistics.fmean(found.values.values()),
        # Over items, of the mean over these runs.
        "standard_error": statistics.stdev(items) / math.sqrt(len(items)) if len(items) > 1 else None,
        "num_items": len(items),
        "num_runs": len(found.values),
        "higher_is_better": found.higher_is_better,
    }


def _difference(a: CellScores, b: CellScores, confidence: float) -> dict[str, Any]:
    seeds = [seed for seed in a.values if seed in b.values]
    if not seeds:
        nothing = dict.fromkeys(("mean", "standard_error", "interval", "interval_seeds"))
        return {"seeds": [], **nothing, "verdict": "not_decided"}
    differences = [x - y for x, y in zip(a.item_means(seeds), b.item_means(seeds), strict=True)]
    over_items = paired_interval(differences, confidence)
    over_seeds = paired_interval([a.values[seed] - b.values[seed] for seed in seeds], confidence)
    return {
        "seeds": seeds,
        "mean": statistics.fmean(differences),
        "standard_error": statistics.stdev(differences) / math.sqrt(len(differences)) if over_items else None,
        "interval": dataclasses.asdict(over_items) if over_items else None,
        "interval_seeds": dataclasses.asdict(over_seeds) if over_seeds else None,
        "verdict": _verdict(over_items, over_seeds),
    }


def _verdict(over_items: PairedInterval | None, over_seeds: PairedInterval | None) -> TaskVerdict:
    for interval in (over_items, over_seeds):
        if interval is None or interval.num_pairs < MIN_PAIRS_FOR_VERDICT or not interval.excludes(0.0):
            return "not_decided"
    # Both leave out 0; over the same runs and items they share their mean, hence the side.
    return "a_higher" if over_items is not None and over_items.mean > 0 else "b_higher"

"""Downstream scores of a study: one mean per cell and task, and differences paired over the items.

Every run of a study answers the same items, so the noise of which items are asked falls out of a difference. An
interval over items says how sure a difference between *these* runs is; one over seeds, how sure it is between the arms.
A direction is stated only where both leave out 0 on the same side.

A group's score is the unweighted mean of its tasks, whose items are different ones: its difference is the mean of
theirs, with standard error sqrt(sum se^2) / number of tasks. A metric that is no mean over items, such as a
perplexity, has scores but no differences.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scipy import stats

from depthscale.errors import ResultError
from depthscale.runs.results import read_result, result_path
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT, PairedInterval, paired_interval
from depthscale.studies.study_runs import Study, StudyCell

TaskVerdict = Literal["a_higher", "b_higher", "not_decided"]
#: Task, number of shots, metric.
MeasureKey = tuple[str, int, str]
#: An aggregate this near to the mean of the items' numbers is that mean.
_SAME_MEAN = 1e-9


@dataclass(frozen=True)
class CellScores:
    """One measure of one cell.

    Attributes:
        values: score by seed.
        item_keys: names of the items; empty where the score is no mean over items.
        outcomes: by seed, the metric of every item in that order; empty likewise.
        errors: standard error by seed as the harness gave it; None where it gave none.
        members: tasks of a group, whose unweighted mean the score is; else empty.
        higher_is_better: direction of the metric.
    """

    values: Mapping[int, float]
    item_keys: tuple[str, ...]
    outcomes: Mapping[int, Sequence[float]]
    errors: Mapping[int, float | None]
    members: tuple[str, ...]
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
    confidence = study.file.study.confidence
    return {
        "cells": [
            {**cell.names, **_measure(key), **_summary(key, scores[cell.key])}
            for cell in study.cells
            for key in scores[cell.key]
        ],
        "pairs": [
            {
                "question": question,
                "a": a.names,
                "b": b.names,
                **_measure(key),
                "higher_is_better": found.higher_is_better,
                **difference,
            }
            for question, a, b in questions
            for key, found in scores[a.key].items()
            if (difference := _difference(key, scores[a.key], scores[b.key], confidence)) is not None
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
    return {key: _scores(cell, key, by_seed) for key, by_seed in found.items()}


def _scores(cell: StudyCell, key: MeasureKey, by_seed: Mapping[int, Mapping[str, Any]]) -> CellScores:
    items = _one_set_of_items(cell, key, by_seed)
    by_item = all(_is_mean(score["outcomes"], score["value"]) for score in by_seed.values())
    first = next(iter(by_seed.values()))
    return CellScores(
        values={seed: score["value"] for seed, score in by_seed.items()},
        item_keys=items if by_item else (),
        outcomes={seed: score["outcomes"] if by_item else [] for seed, score in by_seed.items()},
        errors={seed: score["standard_error"] for seed, score in by_seed.items()},
        members=tuple(first.get("members", ())),
        higher_is_better=first["higher_is_better"],
    )


def _is_mean(outcomes: Sequence[float], value: float | None) -> bool:
    return bool(outcomes) and value is not None and abs(statistics.fmean(outcomes) - value) < _SAME_MEAN


def _one_set_of_items(cell: StudyCell, key: MeasureKey, by_seed: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    sets = {tuple(score["item_keys"]) for score in by_seed.values()}
    if len(sets) > 1:
        raise ResultError(f"the runs of {cell.label} {_DIFFERENT.format(key[0])}")
    return sets.pop()


_DIFFERENT = "were asked different items of {}, so their scores do not compare; delete results/tasks.json and go on"


def _require_same_items(scores: Mapping[Any, Mapping[MeasureKey, CellScores]]) -> None:
    seen: dict[MeasureKey, tuple[str, ...]] = {}
    for measures in scores.values():
        for key, found in measures.items():
            if found.item_keys and seen.setdefault(key, found.item_keys) != found.item_keys:
                raise ResultError(f"two cells {_DIFFERENT.format(key[0])}")


def _measure(key: MeasureKey) -> dict[str, Any]:
    return {"task": key[0], "num_fewshot": key[1], "metric": key[2]}


def _summary(key: MeasureKey, scores: Mapping[MeasureKey, CellScores]) -> dict[str, Any]:
    found = scores[key]
    return {
        "mean": statistics.fmean(found.values.values()),
        "standard_error": _cell_error(key, scores),
        "num_items": _num_items(key, scores),
        "num_runs": len(found.values),
        "higher_is_better": found.higher_is_better,
    }


def _cell_error(key: MeasureKey, scores: Mapping[MeasureKey, CellScores]) -> float | None:
    """Standard error, over items, of the mean over the cell's runs."""
    found = scores[key]
    if found.item_keys:
        items = found.item_means(found.values)
        return statistics.stdev(items) / math.sqrt(len(items)) if len(items) > 1 else None
    if members := _members(key, scores):
        errors = [_cell_error(member, scores) for member in members]
        return _error_of_mean(errors)
    # The runs share their items, so their mean is at most as uncertain as they are on average.
    errors = list(found.errors.values())
    return None if None in errors else statistics.fmean(error for error in errors if error is not None)


def _num_items(key: MeasureKey, scores: Mapping[MeasureKey, CellScores]) -> int:
    members = _members(key, scores)
    return sum(_num_items(member, scores) for member in members) if members else len(scores[key].item_keys)


def _members(key: MeasureKey, scores: Mapping[MeasureKey, CellScores]) -> list[MeasureKey]:
    """The group's tasks under the same shots and metric; none unless its score is their unweighted mean in each run."""
    found = scores[key]
    members = [(task, key[1], key[2]) for task in found.members]
    if not members or not all(
        member in scores and found.values.keys() <= scores[member].values.keys() for member in members
    ):
        return []
    whole = all(
        _is_mean([scores[member].values[seed] for member in members], value) for seed, value in found.values.items()
    )
    return members if whole else []


def _error_of_mean(errors: Sequence[float | None]) -> float | None:
    """Of the unweighted mean of independent numbers: sqrt(sum se^2) / n."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) / len(known) if known and len(known) == len(errors) else None


def _difference(
    key: MeasureKey, a: Mapping[MeasureKey, CellScores], b: Mapping[MeasureKey, CellScores], confidence: float
) -> dict[str, Any] | None:
    """The difference of two cells, or None where the measure is not both cells' or has no items to pair."""
    if key not in b:
        return None
    seeds = [seed for seed in a[key].values if seed in b[key].values]
    members = [key] if a[key].item_keys else _members(key, a)
    if not members or not all(a[member].item_keys and member in b and b[member].item_keys for member in members):
        return None
    shared = [seed for seed in seeds if all(seed in cell[each].outcomes for cell in (a, b) for each in members)]
    if not shared:
        nothing = dict.fromkeys(("mean", "standard_error", "interval", "interval_seeds"))
        return {"seeds": [], **nothing, "verdict": "not_decided"}
    over_items = _over_items([_item_differences(a[m], b[m], shared) for m in members], confidence)
    over_seeds = paired_interval([a[key].values[seed] - b[key].values[seed] for seed in shared], confidence)
    return {
        "seeds": shared,
        "mean": over_items.mean,
        "standard_error": over_items.standard_error,
        "interval": dataclasses.asdict(over_items.interval) if over_items.interval else None,
        "interval_seeds": dataclasses.asdict(over_seeds) if over_seeds else None,
        "verdict": _verdict(over_items.interval, over_seeds),
    }


@dataclass(frozen=True)
class _OverItems:
    mean: float
    standard_error: float | None
    interval: PairedInterval | None


def _item_differences(a: CellScores, b: CellScores, seeds: Sequence[int]) -> list[float]:
    return [x - y for x, y in zip(a.item_means(seeds), b.item_means(seeds), strict=True)]


def _over_items(tasks: Sequence[Sequence[float]], confidence: float) -> _OverItems:
    """Mean of the tasks' mean differences; of one task, the paired t interval, of several, the normal one."""
    mean = statistics.fmean(statistics.fmean(differences) for differences in tasks)
    errors = [statistics.stdev(task) / math.sqrt(len(task)) if len(task) > 1 else None for task in tasks]
    error = _error_of_mean(errors)
    if len(tasks) == 1:
        return _OverItems(mean, error, paired_interval(tasks[0], confidence))
    if error is None:
        return _OverItems(mean, None, None)
    half_width = float(stats.norm.ppf((1 + confidence) / 2)) * error
    num_items = sum(len(task) for task in tasks)
    return _OverItems(mean, error, PairedInterval(mean, mean - half_width, mean + half_width, confidence, num_items))


def _verdict(over_items: PairedInterval | None, over_seeds: PairedInterval | None) -> TaskVerdict:
    for interval in (over_items, over_seeds):
        if interval is None or interval.num_pairs < MIN_PAIRS_FOR_VERDICT or not interval.excludes(0.0):
            return "not_decided"
    if over_items is None or over_seeds is None or (over_items.mean > 0) != (over_seeds.mean > 0):
        return "not_decided"
    return "a_higher" if over_items.mean > 0 else "b_higher"

"""The comparison of a study: what looping gives and which rule serves best, as paired differences.

Two questions are asked of the same runs. ``looping``: each arm at every R > 1 against itself at R = 1, on equal
tokens and therefore *not* at equal FLOPs, whose ratio is always said. ``rule``: each other arm against the
baseline at the same R. The control asks whether the arms start out equal before anything loops: an equivalence test
at R = 1 with the study's margin. (They need not: an arm may change the norm's place as well as the scales.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from depthscale.runs.results import write_result
from depthscale.studies import words
from depthscale.studies.again import again_tests, again_warnings, found_in_nothing
from depthscale.studies.cell_summary import cell_summary, data_regime
from depthscale.studies.comparison_warnings import comparison_warnings
from depthscale.studies.differences import equivalence, paired_difference
from depthscale.studies.named_comparisons import named_comparisons
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT
from depthscale.studies.study_runs import REPORT_SPLIT, Study, StudyCell, read_study
from depthscale.studies.task_comparison import compare_tasks


def write_comparison(study_directory: Path) -> dict[str, Any]:
    """:func:`compare_runs`, written to ``results/comparison.json`` of the study as well."""
    comparison = compare_runs(study_directory)
    write_result(study_directory, "comparison", comparison)
    return comparison


def compare_runs(study_directory: Path) -> dict[str, Any]:
    """Read ``study.json`` and every run that has a result, and compare them pair by pair.

    Runs that are planned but have no result are counted as missing. Stuck and diverged runs count in every
    difference; a diverged run counts at the larger of its last finite loss and ln V.

    Returns:
        Plain data: ``cells``, ``pairs``, ``controls``, ``tasks`` (None without any), ``verdict`` (sentences),
        ``warnings`` (sentences). Losses and differences in nats per token of the report split; a difference is a - b,
        negative where a is better.

    Raises:
        ResultError: no run has a result, a file is damaged, or the runs read different text or tokenizers.
    """
    study = read_study(study_directory)
    options = study.file.study
    questions = list(_questions(study))
    again = again_tests(study)
    pairs = [_pair(study, again, *question) for question in questions]
    controls = [
        _control(study, again, cell, baseline)
        for cell in study.cells
        if cell.rounds == 1 and cell.arm != options.baseline and _is_plain(study, cell)
        if (baseline := study.cell(options.baseline, 1, cell.budget)) is not None
    ]
    named = named_comparisons(study, again)
    return {
        "name": study.document["name"],
        "baseline": options.baseline,
        "confidence": options.confidence,
        "equivalence_margin": options.equivalence_margin,
        "split": REPORT_SPLIT,
        "num_seeds": len(options.seeds),
        "cells": [cell_summary(study, cell) for cell in study.cells],
        "pairs": pairs,
        "controls": controls,
        "named": named,
        "again": again,
        "regime": data_regime(study),
        "later_additions": study.additions,
        "tasks": compare_tasks(study, questions),
        "verdict": _verdict(study, pairs, controls, named, again),
        "warnings": [*again_warnings(again), *comparison_warnings(study, pairs, named, again)],
    }


def _questions(study: Study) -> Iterable[tuple[str, StudyCell, StudyCell]]:
    for cell in study.cells:
        unlooped = study.cell(cell.arm, 1, cell.budget)
        if cell.rounds > 1 and unlooped is not None:
            yield "looping", cell, unlooped
    for cell in sorted(study.cells, key=lambda cell: cell.rounds):
        baseline = study.cell(study.file.study.baseline, cell.rounds, cell.budget)
        if cell.arm != study.file.study.baseline and baseline is not None and _is_plain(study, cell):
            yield "rule", cell, baseline


def _is_plain(study: Study, cell: StudyCell) -> bool:
    """Whether the cell is asked what its rule does, beside the baseline at the same R.

    An A/A arm is tested by itself, and a rival of another plan or length, whose rule is not what it is for, answers
    the comparisons that name it.
    """
    arm, base = study.file.study.arm(cell.arm), study.file.study.arm(study.file.study.baseline)
    rival = arm.match is not None or arm.plan != base.plan or arm.train.get("steps") != base.train.get("steps")
    sides = [name for comparison in study.file.study.comparisons for name in (*comparison.a, *comparison.b)]
    return not arm.weight_seed_shift and not (rival and any(name.arm == cell.arm for name in sides))


# -- differences ---------------------------------------------------------------------------------------


def _pair(study: Study, again: Sequence[dict[str, Any]], question: str, a: StudyCell, b: StudyCell) -> dict[str, Any]:
    at = words.at_budget(a.budget)
    if question == "looping":
        subject = f"{a.arm} at R = {a.rounds} against R = {b.rounds}{at}"
    else:
        subject = f"{a.arm} against {b.arm} at R = {a.rounds}{at}"
    return paired_difference(study, question, subject, a, b, beyond=found_in_nothing(again, [a, b]))


def _control(study: Study, again: Sequence[dict[str, Any]], cell: StudyCell, baseline: StudyCell) -> dict[str, Any]:
    subject = f"{cell.arm} against {baseline.arm} at R = 1{words.at_budget(cell.budget)}"
    return equivalence(study, subject, cell, baseline, found_in_nothing(again, [cell, baseline]))


# -- verdict -------------------------------------------------------------------------------------------


def _verdict(
    study: Study,
    pairs: Sequence[dict[str, Any]],
    controls: Sequence[dict[str, Any]],
    named: Sequence[dict[str, Any]],
    again: Sequence[dict[str, Any]],
) -> list[str]:
    sentences = [entry["words"] for entry in named]
    for budget in study.budgets:
        at = f", budget {budget:,} steps" if budget else ""
        for question in ("looping", "rule"):
            here = [p for p in pairs if p["question"] == question and p["a"].get("budget") == budget]
            for rounds in sorted({pair["a"]["rounds"] for pair in here}):
                asked = [pair for pair in here if pair["a"]["rounds"] == rounds]
                lead = (
                    f"Looping, R = {rounds} against R = 1{at}"
                    if question == "looping"
                    else f"Rule at R = {rounds}{at}, against {study.file.study.baseline}"
                )
                said = [{**pair, "verdict": "within_again"} if pair["within_again"] else pair for pair in asked]
                labels = _labels(said, study.file.study.equivalence_margin)
                sentences.append(words.summary(f"{lead} ({_common_terms(asked)})", said, labels))
    sentences += [f"A/A, {entry['equivalence']['words']}" for entry in again]
    if controls:
        margin = words.margin_text(study.file.study.equivalence_margin)
        labels = {
            "equivalent": f"equivalent within {margin} nats:",
            "different_beyond_margin": f"different by more than {margin.removeprefix('±')} nats:",
            "not_decided": _not_decided(controls, f"not decided at a margin of {margin} nats"),
        }
        lead = f"Control at R = 1, against {study.file.study.baseline}"
        sentences.append(words.summary(lead, controls, labels))
    return sentences


def _labels(pairs: Sequence[dict[str, Any]], margin: float) -> dict[str, str]:
    return {
        "a_better": "lower loss with",
        "b_better": "higher loss with",
        "equivalent": f"equivalent within {words.margin_text(margin)} nats:",
        "not_decided": _not_decided(pairs, "not decided"),
        "within_again": "not beyond what the same arm differs from itself by:",
    }


def _not_decided(items: Sequence[dict[str, Any]], label: str) -> str:
    counts = [item["interval"]["num_pairs"] if item["interval"] else 0 for item in items]
    if max(counts) < MIN_PAIRS_FOR_VERDICT:
        return f"{label}, as a verdict needs {MIN_PAIRS_FOR_VERDICT} pairs:"
    return f"{label}:"


def _common_terms(pairs: Sequence[dict[str, Any]]) -> str:
    return "; ".join(dict.fromkeys(pair["basis"] for pair in pairs))

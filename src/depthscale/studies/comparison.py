"""The comparison of a study: what looping gives and which rule serves best, as paired differences.

Two questions are asked of the same runs. ``looping``: each arm at every R > 1 against itself at R = 1, on equal
tokens and therefore *not* at equal FLOPs, whose ratio is always said. ``rule``: each other arm against the
baseline at the same R. The control asks whether the arms start out equal before anything loops: an equivalence test
at R = 1 with the study's margin. (They need not: an arm may change the norm's place as well as the scales.)
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from depthscale.runs.results import write_result
from depthscale.studies import words
from depthscale.studies.cell_summary import cell_summary, flops_ratio, outcomes, planned_tokens
from depthscale.studies.comparison_warnings import comparison_warnings
from depthscale.studies.paired import (
    MIN_PAIRS_FOR_VERDICT,
    direction_verdict,
    equivalence_test,
    paired_interval,
    smallest_detectable_difference,
)
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
    pairs = [_pair(study, *question) for question in questions]
    controls = [
        _control(study, cell, baseline)
        for cell in study.cells
        if cell.rounds == 1 and cell.arm != options.baseline
        if (baseline := study.cell(options.baseline, 1)) is not None
    ]
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
        "tasks": compare_tasks(study, questions),
        "verdict": _verdict(study, pairs, controls),
        "warnings": comparison_warnings(study, pairs),
    }


def _questions(study: Study) -> Iterable[tuple[str, StudyCell, StudyCell]]:
    for cell in study.cells:
        unlooped = study.cell(cell.arm, 1)
        if cell.rounds > 1 and unlooped is not None:
            yield "looping", cell, unlooped
    for cell in sorted(study.cells, key=lambda cell: cell.rounds):
        baseline = study.cell(study.file.study.baseline, cell.rounds)
        if cell.arm != study.file.study.baseline and baseline is not None:
            yield "rule", cell, baseline


# -- differences ---------------------------------------------------------------------------------------


def _differences(a: StudyCell, b: StudyCell, trained_only: bool = False) -> dict[int, float]:
    """a - b in nats by seed, over the seeds that both have."""
    return {
        seed: a.runs[seed].loss_nats - b.runs[seed].loss_nats
        for seed in a.runs
        if seed in b.runs
        if not trained_only or a.runs[seed].outcome == b.runs[seed].outcome == "finished"
    }


def _pair(study: Study, question: str, a: StudyCell, b: StudyCell) -> dict[str, Any]:
    options = study.file.study
    by_seed = _differences(a, b)
    differences = list(by_seed.values())
    interval = paired_interval(differences, options.confidence)
    detectable = (
        smallest_detectable_difference(statistics.stdev(differences), len(differences), options.confidence)
        if interval
        else None
    )
    reason = None if interval else words.no_interval_reason(len(differences))
    verdict = direction_verdict(interval)
    if question == "looping":
        subject = f"{a.arm} at R = {a.rounds} against R = {b.rounds}"
    else:
        subject = f"{a.arm} against {b.arm} at R = {a.rounds}"
    basis = _basis(a, b)
    trained = paired_interval(list(_differences(a, b, trained_only=True).values()), options.confidence)
    return {
        "question": question,
        "a": {"arm": a.arm, "rounds": a.rounds},
        "b": {"arm": b.arm, "rounds": b.rounds},
        "differences": differences,
        "seeds": list(by_seed),
        "interval": dataclasses.asdict(interval) if interval else None,
        "interval_trained": dataclasses.asdict(trained) if trained else None,
        "reason": reason,
        "smallest_detectable": detectable,
        "verdict": verdict,
        "basis": basis,
        "untrained": words.untrained_count(outcomes(study, [a, b])),
        "words": words.pair_words(
            subject, basis, verdict, interval, detectable, reason, words.untrained_words(outcomes(study, [a, b]))
        ),
    }


def _basis(a: StudyCell, b: StudyCell) -> str:
    """On what terms two cells are compared: the tokens, and the FLOPs wherever they differ."""
    tokens_a, tokens_b = planned_tokens(a), planned_tokens(b)
    equal = tokens_a == tokens_b
    tokens = "equal tokens" if equal else f"{tokens_a or 0:,} against {tokens_b or 0:,} tokens"
    ratio = flops_ratio(a, b)
    if ratio is None:
        return tokens
    if abs(ratio - 1) < 0.005:
        return "equal tokens and FLOPs" if equal else f"{tokens}, equal FLOPs"
    return f"{tokens}, {ratio:.2f} times the training FLOPs"


def _control(study: Study, cell: StudyCell, baseline: StudyCell) -> dict[str, Any]:
    options = study.file.study
    differences = list(_differences(cell, baseline).values())
    test = equivalence_test(differences, options.equivalence_margin, options.confidence)
    subject = f"{cell.arm} against {baseline.arm} at R = 1"
    return {
        "a": {"arm": cell.arm, "rounds": 1},
        "b": {"arm": baseline.arm, "rounds": 1},
        "margin": test.margin,
        "interval": dataclasses.asdict(test.interval) if test.interval else None,
        "p_value": test.p_value,
        "verdict": test.verdict,
        "untrained": words.untrained_count(outcomes(study, [cell, baseline])),
        "words": words.control_words(subject, test, len(differences)),
    }


# -- verdict -------------------------------------------------------------------------------------------


def _verdict(study: Study, pairs: Sequence[dict[str, Any]], controls: Sequence[dict[str, Any]]) -> list[str]:
    sentences = []
    for rounds in sorted({pair["a"]["rounds"] for pair in pairs if pair["question"] == "looping"}):
        asked = [p for p in pairs if p["question"] == "looping" and p["a"]["rounds"] == rounds]
        terms = _common_terms(asked)
        sentences.append(words.summary(f"Looping, R = {rounds} against R = 1 ({terms})", asked, _labels(asked)))
    for rounds in sorted({pair["a"]["rounds"] for pair in pairs if pair["question"] == "rule"}):
        asked = [p for p in pairs if p["question"] == "rule" and p["a"]["rounds"] == rounds]
        lead = f"Rule at R = {rounds}, against {study.file.study.baseline} ({_common_terms(asked)})"
        sentences.append(words.summary(lead, asked, _labels(asked)))
    if controls:
        margin = words.nats(study.file.study.equivalence_margin)
        labels = {
            "equivalent": f"equivalent within ±{margin} nats:",
            "different_beyond_margin": f"different by more than {margin} nats:",
            "not_decided": _not_decided(controls, f"not decided at a margin of ±{margin} nats"),
        }
        lead = f"Control at R = 1, against {study.file.study.baseline}"
        sentences.append(words.summary(lead, controls, labels))
    return sentences


def _labels(pairs: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {
        "a_better": "lower loss with",
        "b_better": "higher loss with",
        "not_decided": _not_decided(pairs, "not decided"),
    }


def _not_decided(items: Sequence[dict[str, Any]], label: str) -> str:
    counts = [item["interval"]["num_pairs"] if item["interval"] else 0 for item in items]
    if max(counts) < MIN_PAIRS_FOR_VERDICT:
        return f"{label}, as a verdict needs {MIN_PAIRS_FOR_VERDICT} pairs:"
    return f"{label}:"


def _common_terms(pairs: Sequence[dict[str, Any]]) -> str:
    return "; ".join(dict.fromkeys(pair["basis"] for pair in pairs))

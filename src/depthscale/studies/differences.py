"""One paired difference between two cells: seed by seed, its interval, and on what terms it stands."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from depthscale.studies import words
from depthscale.studies.cell_summary import flops_ratio, outcomes, planned_tokens
from depthscale.studies.paired import (
    EquivalenceTest,
    PairVerdict,
    direction_verdict,
    equivalence_test,
    paired_interval,
    smallest_detectable_difference,
)
from depthscale.studies.study_runs import Study, StudyCell


def differences(a: StudyCell, b: StudyCell, trained_only: bool = False) -> dict[int, float]:
    """a - b in nats by seed, over the seeds that both have."""
    return {
        seed: a.runs[seed].loss_nats - b.runs[seed].loss_nats
        for seed in a.runs
        if seed in b.runs
        if not trained_only or a.runs[seed].outcome == b.runs[seed].outcome == "finished"
    }


def paired_difference(
    study: Study,
    question: str,
    subject: str,
    a: StudyCell,
    b: StudyCell,
    terms: str | None = None,
    beyond: float = 0.0,
) -> dict[str, Any]:
    """One entry of a comparison: differences, intervals over all runs and over those that trained, verdict, words.

    The verdict is a direction, else equality within the study's margin where :func:`equivalence` shows it, else "not
    decided".

    Args:
        question: what is asked.
        subject: what is compared, as in "deeploop against pre at R = 4".
        terms: on what terms; default what the cells themselves show.
        beyond: nats by which the same arm differs from itself; a direction needs an interval beyond that.
    """
    options = study.file.study
    by_seed = differences(a, b)
    found = list(by_seed.values())
    interval = paired_interval(found, options.confidence)
    detectable = (
        smallest_detectable_difference(statistics.stdev(found), len(found), options.confidence) if interval else None
    )
    reason = None if interval else words.no_interval_reason(len(found))
    direction = direction_verdict(interval, beyond)
    test, withheld = _tested(study, a, b, beyond)
    equal = test.verdict == "equivalent" and not withheld
    verdict: PairVerdict = "equivalent" if direction == "not_decided" and equal else direction
    basis = terms or terms_of(a, b)
    trained = paired_interval(list(differences(a, b, trained_only=True).values()), options.confidence)
    counts = outcomes(study, [a, b])
    if verdict == "equivalent":
        said = words.equal_words(f"{subject} ({basis})", test)
    else:
        said = words.pair_words(f"{subject} ({basis})", verdict, interval, detectable, reason, withheld, beyond)
    return {
        "question": question,
        "a": a.names,
        "b": b.names,
        "differences": found,
        "seeds": list(by_seed),
        "interval": dataclasses.asdict(interval) if interval else None,
        "interval_trained": dataclasses.asdict(trained) if trained else None,
        "reason": reason,
        "smallest_detectable": detectable,
        "verdict": verdict,
        "within_again": direction == "not_decided" != direction_verdict(interval),
        "equivalence": _described(study, subject, a, b, test, withheld),
        "basis": basis,
        "untrained": words.untrained_count(counts),
        "words": f"{said} {words.untrained_words(counts)}".rstrip(),
    }


def equivalence(study: Study, subject: str, a: StudyCell, b: StudyCell, beyond: float = 0.0) -> dict[str, Any]:
    """One equivalence test with the study's margin.

    Equality is withheld, and it is said why, where the runs are alike only in not having trained, and where the same
    arm differs from itself by the margin or more.

    Args:
        beyond: nats by which the same arm differs from itself.
    """
    return _described(study, subject, a, b, *_tested(study, a, b, beyond))


def _described(
    study: Study, subject: str, a: StudyCell, b: StudyCell, test: EquivalenceTest, withheld: str
) -> dict[str, Any]:
    return {
        "a": a.names,
        "b": b.names,
        "margin": test.margin,
        "interval": dataclasses.asdict(test.interval) if test.interval else None,
        "p_value": test.p_value,
        "verdict": "not_decided" if withheld else test.verdict,
        "untrained": words.untrained_count(outcomes(study, [a, b])),
        "words": words.control_words(subject, test, len(differences(a, b)), withheld),
    }


def _tested(study: Study, a: StudyCell, b: StudyCell, beyond: float) -> tuple[EquivalenceTest, str]:
    """The equivalence test over all runs, and why equality is not stated though it shows it; empty if it may be."""
    options = study.file.study
    test, trained = (
        equivalence_test(list(differences(a, b, only).values()), options.equivalence_margin, options.confidence)
        for only in (False, True)
    )
    if test.verdict != "equivalent":
        return test, ""
    if beyond >= test.margin:
        return test, f"the same arm differs from itself by {words.decimal(beyond)} nats"
    return test, "" if trained.verdict == "equivalent" else "the runs that trained do not show it"


def terms_of(a: StudyCell, b: StudyCell) -> str:
    """On what terms two cells are compared: the tokens, and the FLOPs wherever they differ."""
    tokens_a, tokens_b = planned_tokens(a), planned_tokens(b)
    if tokens_a is None or tokens_b is None:
        return "tokens of a side not known"
    equal = tokens_a == tokens_b
    tokens = "equal tokens" if equal else f"{tokens_a:,} against {tokens_b:,} tokens"
    ratio = flops_ratio(a, b)
    if ratio is None:
        return tokens
    if abs(ratio - 1) < 0.005:
        return "equal tokens and FLOPs" if equal else f"{tokens}, equal FLOPs"
    return f"{tokens}, {ratio:.2f} times the training FLOPs"

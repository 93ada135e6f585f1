"""Sentences of a comparison. They are made from the intervals alone and say no more than those do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.runs.comparison_config import CellKey
from depthscale.studies.paired import (
    MIN_PAIRS_FOR_VERDICT,
    EquivalenceTest,
    PairedInterval,
    PairVerdict,
)

MINUS = "\N{MINUS SIGN}"


def decimal(value: float, decimals: int = 3, signed: bool = False) -> str:
    """A number in print, with a true minus sign.

    Example:
        >>> decimal(-0.12345), decimal(0.5, signed=True)
        ('−0.123', '+0.500')
    """
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", MINUS)


def decimals_for(interval: PairedInterval) -> int:
    """Decimals that show two digits of the interval's half width, three to six."""
    half_width = (interval.high - interval.low) / 2
    if half_width <= 0:
        return 3
    return min(6, max(3, 1 - math.floor(math.log10(half_width))))


def interval_text(interval: PairedInterval) -> str:
    """Mean and interval, such as "−0.100 nats (95 % interval −0.120 to −0.080, 5 pairs)"."""
    decimals = decimals_for(interval)
    return (
        f"{decimal(interval.mean, decimals, signed=True)} nats"
        f" ({100 * interval.confidence:.4g} % interval {decimal(interval.low, decimals, signed=True)}"
        f" to {decimal(interval.high, decimals, signed=True)}, {count(interval.num_pairs, 'pair')})"
    )


def count(number: int, noun: str) -> str:
    """A number and its noun.

    Example:
        >>> count(1, "pair"), count(3, "pair")
        ('1 pair', '3 pairs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def at_budget(budget: int | None) -> str:
    """Which of several budgets a cell is at; empty in a study of one.

    Example:
        >>> at_budget(6800), at_budget(None)
        (', budget 6,800', '')
    """
    return f", budget {budget:,}" if budget else ""


def cell_label(cell: CellKey) -> str:
    """A cell in a sentence.

    Example:
        >>> cell_label(CellKey("deeploop", 4)), cell_label(CellKey("deeploop", 4, 6800))
        ('deeploop at R = 4', 'deeploop at R = 4, budget 6,800')
    """
    return f"{cell.arm} at R = {cell.rounds}{at_budget(cell.budget)}"


def addition_words(addition: Mapping[str, Any]) -> str:
    """What was added to a study: seeds, cells and comparisons.

    Example:
        >>> addition_words({"seeds": [6, 7], "cells": [["post", 4, 100], ["post", 4, 200]], "comparisons": [{}]})
        'seeds 6, 7; post at R = 4; 1 comparison'
    """
    # An arm that was added came at every budget.
    cells = dict.fromkeys(f"{arm} at R = {rounds}" for arm, rounds, *_ in addition.get("cells", []))
    seeds, comparisons = addition.get("seeds"), addition.get("comparisons")
    parts = [f"seeds {', '.join(map(str, seeds))}"] if seeds else []
    parts += [", ".join(cells)] if cells else []
    parts += [count(len(comparisons), "comparison")] if comparisons else []
    return "; ".join(parts)


def ratio_words(a: float, b: float, exact: bool = False) -> str:
    """How much one side spends beside the other; ``exact`` where a small difference is one.

    Example:
        >>> ratio_words(200, 200), ratio_words(300, 200), ratio_words(1001, 1000, exact=True)
        ('equal', '× 1.50', '× 1.001')
    """
    ratio = a / b
    if abs(ratio - 1) < 0.005:
        return f"× {ratio:.7g}" if exact else "equal"
    return f"× {ratio:.2f}" if 0.1 <= ratio < 10 else f"× {ratio:.3g}"


def no_interval_reason(num_pairs: int) -> str:
    """Why there is no interval."""
    if num_pairs == 0:
        return "no seed has a run on both sides, so there is no pair"
    return "one pair shows no spread, so there is no interval"


def pair_words(
    subject: str,
    verdict: PairVerdict,
    interval: PairedInterval | None,
    smallest_detectable: float | None,
    reason: str | None,
    withheld: str = "",
    beyond: float = 0.0,
) -> str:
    """One sentence for one paired difference that has a direction or none.

    Args:
        subject: what is compared and on what terms, as in "deeploop against pre at R = 4 (equal tokens)".
        reason: why there is no interval, where there is none.
        withheld: why equality is not stated, where a test shows it.
        beyond: nats by which the same arm differs from itself.
    """
    if interval is None:
        return f"{subject}: not decided, {reason}."
    if verdict != "not_decided":
        side = "lower" if verdict == "a_better" else "higher"
        return f"{subject}: {side} loss, difference {interval_text(interval)}."
    detectable = ""
    if interval.num_pairs < MIN_PAIRS_FOR_VERDICT:
        why = f"a verdict needs {MIN_PAIRS_FOR_VERDICT} pairs"
    elif interval.excludes(0.0):
        why = f"the same arm differs from itself by {decimal(beyond)} nats"
    elif withheld:
        why = f"equal within the margin, but {withheld}"
    else:
        why = "the interval includes 0"
        if smallest_detectable is not None:
            detectable = (
                f" {interval.num_pairs} pairs find a true difference of"
                f" {decimal(smallest_detectable, decimals_for(interval))} nats with 80 % power."
            )
    return f"{subject}: not decided, {why}; difference {interval_text(interval)}.{detectable}"


def equal_words(subject: str, test: EquivalenceTest) -> str:
    """One sentence for a difference that was shown to be none, with the interval that lies within the margin."""
    assert test.interval is not None, "nothing is equal without an interval"
    return f"{subject}: equivalent within {margin_text(test.margin)} nats, difference {interval_text(test.interval)}."


def margin_text(margin: float) -> str:
    """A margin in print, with three decimals or as many as it takes.

    Example:
        >>> margin_text(0.02), margin_text(0.0004)
        ('±0.020', '±0.0004')
    """
    return f"±{decimal(margin) if margin >= 0.001 else f'{margin:g}'}"


def untrained_count(outcomes: Mapping[str, int]) -> str:
    """How many of the runs behind a difference did not train, in few words; empty when all did.

    Example:
        >>> untrained_count({"finished": 7, "stuck": 2, "diverged": 1})
        '3 of 10 runs did not train'
    """
    untrained = outcomes.get("stuck", 0) + outcomes.get("diverged", 0)
    total = untrained + outcomes.get("finished", 0)
    return f"{untrained} of {count(total, 'run')} did not train" if untrained else ""


def untrained_words(outcomes: Mapping[str, int]) -> str:
    """Say which of the runs behind a difference did not train; empty when all did."""
    named = [f"{outcomes[name]} {name}" for name in ("stuck", "diverged") if outcomes.get(name)]
    if not named:
        return ""
    total = sum(outcomes.values()) - outcomes.get("missing", 0)
    return f"Runs that did not train count as well: {' and '.join(named)} of {total}."


def control_words(subject: str, test: EquivalenceTest, num_pairs: int, withheld: str = "") -> str:
    """One sentence for one equivalence test; ``withheld`` as for :func:`pair_words`."""
    margin = margin_text(test.margin)
    if test.interval is None:
        return f"{subject}: not decided, {no_interval_reason(num_pairs)}; margin {margin} nats."
    found = interval_text(test.interval)
    if withheld:
        return f"{subject}: not decided, equal within {margin} nats, but {withheld}; difference {found}."
    if test.verdict == "equivalent":
        return equal_words(subject, test)
    if test.verdict == "different_beyond_margin":
        return f"{subject}: different by more than {margin.removeprefix('±')} nats, difference {found}."
    if test.interval.num_pairs < MIN_PAIRS_FOR_VERDICT:
        return f"{subject}: not decided, a verdict needs {MIN_PAIRS_FOR_VERDICT} pairs; difference {found}."
    return f"{subject}: not decided, the interval crosses a margin of {margin} nats; difference {found}."


def summary(lead: str, items: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """One sentence over several differences: which arms got which verdict.

    Args:
        lead: what is asked, as in "Looping 4 rounds instead of 1".
        items: pairs or controls of a comparison.
        labels: words for each verdict, in the order in which they are said.
    """
    parts = []
    for verdict, label in labels.items():
        named = [_named(item) for item in items if item["verdict"] == verdict]
        if named:
            parts.append(f"{label} {', '.join(named)}")
    return f"{lead}: {'; '.join(parts)}."


def _named(item: Mapping[str, Any]) -> str:
    tested = item["verdict"] == "equivalent" and "equivalence" in item
    interval = item["equivalence"]["interval"] if tested else item["interval"]
    arm = item["a"]["arm"]
    if interval is None:
        return f"{arm} (no interval)"
    found = PairedInterval(**interval)
    decimals = decimals_for(found)
    ends = " to ".join(decimal(value, decimals, signed=True) for value in (found.low, found.high))
    untrained = f"; {item['untrained']}" if item["untrained"] else ""
    return f"{arm} ({decimal(found.mean, decimals, signed=True)} nats, {ends}{untrained})"

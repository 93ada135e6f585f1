"""Sentences of a comparison. They are made from the intervals alone and say no more than those do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def ratio_words(a: float, b: float) -> str:
    """How much one side spends beside the other.

    Example:
        >>> ratio_words(200, 200), ratio_words(300, 200)
        ('equal', '× 1.50')
    """
    ratio = a / b
    return "equal" if abs(ratio - 1) < 0.005 else f"× {ratio:.2f}" if 0.1 <= ratio < 10 else f"× {ratio:.3g}"


def no_interval_reason(num_pairs: int) -> str:
    """Why there is no interval."""
    if num_pairs == 0:
        return "no seed has a run on both sides, so there is no pair"
    return "one pair shows no spread, so there is no interval"


def pair_words(
    subject: str,
    basis: str,
    verdict: PairVerdict,
    interval: PairedInterval | None,
    margin: float,
    smallest_detectable: float | None,
    reason: str | None,
    outcomes: str,
    beyond: float = 0.0,
) -> str:
    """One sentence for one paired difference, with its outcomes where a run did not train.

    Args:
        subject: what is compared, as in "deeploop against pre at R = 4".
        basis: on what terms, as in "equal tokens, 3.1 times the training FLOPs".
        margin: nats within which two arms count as equal.
        outcomes: as :func:`untrained_words` gives it; may be empty.
        beyond: nats by which the same arm differs from itself.
    """
    if interval is None:
        words = f"{subject} ({basis}): not decided, {reason}."
    elif verdict == "not_decided":
        detectable = ""
        if interval.num_pairs < MIN_PAIRS_FOR_VERDICT:
            why = f"a verdict needs {MIN_PAIRS_FOR_VERDICT} pairs"
        elif interval.excludes(0.0):
            why = f"the same arm differs from itself by {decimal(beyond)} nats"
        else:
            why = "the interval includes 0"
            if smallest_detectable is not None:
                detectable = (
                    f" {interval.num_pairs} pairs find a true difference of"
                    f" {decimal(smallest_detectable, decimals_for(interval))} nats with 80 % power."
                )
        words = f"{subject} ({basis}): not decided, {why}; difference {interval_text(interval)}.{detectable}"
    elif verdict == "equivalent":
        words = f"{subject} ({basis}): equivalent within ±{decimal(margin)} nats, difference {interval_text(interval)}."
    else:
        side = "lower" if verdict == "a_better" else "higher"
        words = f"{subject} ({basis}): {side} loss, difference {interval_text(interval)}."
    return f"{words} {outcomes}".rstrip()


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


def control_words(subject: str, test: EquivalenceTest, num_pairs: int) -> str:
    """One sentence for one equivalence test."""
    margin = decimal(test.margin)
    if test.interval is None:
        return f"{subject}: not decided, {no_interval_reason(num_pairs)}; margin ±{margin} nats."
    found = interval_text(test.interval)
    if test.verdict == "equivalent":
        return f"{subject}: equivalent within ±{margin} nats, difference {found}."
    if test.verdict == "different_beyond_margin":
        return f"{subject}: different by more than {margin} nats, difference {found}."
    if test.interval.num_pairs < MIN_PAIRS_FOR_VERDICT:
        return f"{subject}: not decided, a verdict needs {MIN_PAIRS_FOR_VERDICT} pairs; difference {found}."
    return f"{subject}: not decided, the interval crosses a margin of ±{margin} nats; difference {found}."


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
    interval = item["interval"]
    arm = item["a"]["arm"]
    if interval is None:
        return f"{arm} (no interval)"
    found = PairedInterval(**interval)
    decimals = decimals_for(found)
    ends = " to ".join(decimal(value, decimals, signed=True) for value in (found.low, found.high))
    untrained = f"; {item['untrained']}" if item["untrained"] else ""
    return f"{arm} ({decimal(found.mean, decimals, signed=True)} nats, {ends}{untrained})"

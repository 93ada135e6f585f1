"""Whether a study can resolve the paper's differences: what its seeds allow, before any run is made."""

from __future__ import annotations

from collections.abc import Sequence

from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT, smallest_detectable_difference
from depthscale.studies.recipe_paper import PaperSize

#: Standard deviation in nats of the paired difference (deeploop - pre) over five seeds, by R.
#: Source: docs/results/demo/comparison.json (165 thousand parameters, 0.5 million tokens).
MEASURED_SPREAD = {1: 0.0123, 4: 0.0737}
MEASURED_SOURCE = "docs/results/demo (0.16 M parameters, 0.5 M tokens, 5 pairs)"


def resolution_sentences(size: PaperSize, num_seeds: int, confidence: float = 0.95, power: float = 0.8) -> list[str]:
    """What ``num_seeds`` pairs can say of the paper's gains, a sentence a line.

    A paired comparison of n seeds finds a true difference with probability ``power`` if the standard deviation of
    the paired differences is at most difference / smallest_detectable_difference(1, n).
    """
    gains = sorted(size.rule_gains().values())
    wanted = f"the paper's {gains[0]:.4f} to {gains[-1]:.4f} nats (pre-LN less DeepLoop, {size.name}, R > 1)"
    if num_seeds < 2:
        return [
            f"One seed a cell has no interval: this study cannot resolve {wanted}, as the paper's own single seed"
            " cannot.",
            *_unknown(),
            f"{MIN_PAIRS_FOR_VERDICT} seeds would resolve them if that spread is at most"
            f" {_largest_spread(gains[0], MIN_PAIRS_FOR_VERDICT, confidence, power):.4f} nats.",
        ]
    largest = _largest_spread(gains[0], num_seeds, confidence, power)
    sentences = [
        f"{num_seeds} seeds resolve {wanted} with {power:.0%} power if paired differences spread by at most"
        f" {largest:.4f} nats (standard deviation).",
        *_unknown(),
    ]
    if num_seeds < MIN_PAIRS_FOR_VERDICT:
        sentences.append(f"With fewer than {MIN_PAIRS_FOR_VERDICT} pairs no verdict is given, whatever the interval.")
    return sentences


def _largest_spread(difference: float, num_pairs: int, confidence: float, power: float) -> float:
    detectable = smallest_detectable_difference(1.0, num_pairs, confidence, power)
    assert detectable is not None, "at least two pairs"
    return difference / detectable


def _unknown() -> Sequence[str]:
    measured = ", ".join(f"{spread:.4f} at R = {rounds}" for rounds, spread in MEASURED_SPREAD.items())
    return [f"Measured here: {measured}, in {MEASURED_SOURCE}. Of a model of this size that spread is not known."]

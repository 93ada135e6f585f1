"""How a run ended: finished, diverged, or stuck. All three are results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Outcome = Literal["finished", "diverged", "stuck"]


def judge(divergence: str | None, tuning_losses: Sequence[float], unigram_floor: float) -> tuple[Outcome, str]:
    """Name a run's outcome and say why.

    Args:
        divergence: why training was stopped as diverged, or None.
        tuning_losses: every evaluated loss in nats, the last one last; at least one.
        unigram_floor: entropy of the evaluated tokens' own frequencies in nats. A model that uses no context cannot
            be below it, even one that knew those frequencies; a model that only learned the training split's stays a
            little above.

    Returns:
        ``diverged`` if training was stopped for it or the last loss is not finite; ``stuck`` if no evaluation ever
        fell below the unigram floor; else ``finished``.

    Example:
        >>> judge(None, [5.0, 3.1], unigram_floor=4.0)[0]
        'finished'
        >>> judge(None, [5.0, 4.2], unigram_floor=4.0)[0]
        'stuck'
    """
    if divergence is not None:
        return "diverged", divergence
    if not math.isfinite(tuning_losses[-1]):
        return "diverged", "the last evaluated loss is not finite"
    best = min(tuning_losses)
    if best >= unigram_floor:
        return "stuck", f"best loss {best:.3f} never fell below the unigram floor {unigram_floor:.3f}"
    return "finished", f"best loss {best:.3f} is below the unigram floor {unigram_floor:.3f}"


def divergence_reason(loss: float, first: float | None, factor: float) -> str | None:
    """Why a training loss means divergence, or None where it does not.

    Args:
        loss: in nats.
        first: the first finite training loss of the run in nats, None before there is one.
        factor: how often the first loss a later one may be.
    """
    if first is not None and loss > factor * first:
        return f"training loss {loss:.3g} exceeds {factor:g} times its start, {first:.3g}"
    return None

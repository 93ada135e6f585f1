"""How a run ended: finished, diverged, or stuck. All three are results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Outcome = Literal["finished", "diverged", "stuck"]


def judge(divergence: str | None, tuning_losses: Sequence[float], unigram_loss: float) -> tuple[Outcome, str]:
    """Name a run's outcome and say why.

    Args:
        divergence: why training was stopped as diverged, or None.
        tuning_losses: every evaluated loss in nats, the last one last; at least one.
        unigram_loss: loss of the corpus's token frequencies, the floor of a model that uses no context.

    Returns:
        ``diverged`` if training was stopped for it or the last loss is not finite; ``stuck`` if no evaluation ever
        fell below the unigram floor; else ``finished``.

    Example:
        >>> judge(None, [5.0, 3.1], unigram_loss=4.0)[0]
        'finished'
        >>> judge(None, [5.0, 4.2], unigram_loss=4.0)[0]
        'stuck'
    """
    if divergence is not None:
        return "diverged", divergence
    if not math.isfinite(tuning_losses[-1]):
        return "diverged", "the last evaluated loss is not finite"
    best = min(tuning_losses)
    if best >= unigram_loss:
        return "stuck", f"best loss {best:.3f} never fell below the unigram floor {unigram_loss:.3f}"
    return "finished", f"best loss {best:.3f} is below the unigram floor {unigram_loss:.3f}"

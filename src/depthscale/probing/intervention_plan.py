"""Which interventions a probe makes: every layer, spans, random drops of a group, loops of spans."""

from __future__ import annotations

import numpy as np

from depthscale.probing.depth_use import bulk_layers
from depthscale.probing.errors import ProbingError
from depthscale.probing.interventions import Intervention

SPAN_LENGTHS = (2, 4)
LOOP_LENGTH_SHARE = 0.25
LOOP_ROUNDS = (1, 2, 3, 4)
NUM_DRAWS = 4


def layer_interventions(num_visits: int) -> list[Intervention]:
    """Remove and repeat each visit, and swap each with the next."""
    alone = [Intervention(kind, (visit,)) for kind in ("remove", "repeat") for visit in range(num_visits)]
    return alone + [Intervention("swap", (visit, visit + 1)) for visit in range(num_visits - 1)]


def span_interventions(num_visits: int, lengths: tuple[int, ...] = SPAN_LENGTHS) -> list[Intervention]:
    """Remove, repeat, and swap with the next spans of bulk visits, side by side."""
    bulk = range(num_visits)[bulk_layers(num_visits)]
    swaps = [
        Intervention("swap", tuple(bulk[start : start + 2 * length]))
        for length in lengths
        for start in range(0, len(bulk) - 2 * length + 1, length)
    ]
    return swaps + [
        Intervention(kind, tuple(bulk[start : start + length]))
        for kind in ("remove", "repeat")
        for length in lengths
        for start in range(0, len(bulk) - length + 1, length)
        if length < len(bulk)
    ]


def drop_interventions(
    group: tuple[int, ...], num_draws: int = NUM_DRAWS, seed: int = 0, rescaled: bool = True
) -> list[Intervention]:
    """Drop random k visits of a group, k by doublings up to three quarters of it, as they are and with rescaling.

    Args:
        group: visits, at least 2.
        num_draws: choices for each k; with k = 1 at most every visit once.
        seed: of the choices.
        rescaled: also with the kept visits rescaled by n / (n - k); the same choices.

    Raises:
        ProbingError: fewer than 2 visits.
    """
    if len(group) < 2:
        raise ProbingError(f"a group of {len(group)} came to drop layers of; expected at least 2")
    generator = np.random.default_rng(seed)
    found = []
    for count in drop_counts(len(group)):
        choices: set[tuple[int, ...]] = set()
        for draw in range(num_draws):
            dropped = tuple(sorted(generator.choice(group, size=count, replace=False).tolist()))
            if dropped in choices:
                continue
            choices.add(dropped)
            found.append(Intervention("drop", dropped, group, draw=draw))
            if rescaled:
                found.append(Intervention("drop_rescaled", dropped, group, draw=draw))
    return found


def drop_counts(size: int) -> list[int]:
    """k = 1, 2, 4, ... up to three quarters of the group, and that itself.

    Example:
        >>> drop_counts(28), drop_counts(2)
        ([1, 2, 4, 8, 16, 21], [1])
    """
    most = max(1, 3 * size // 4)
    doublings = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return sorted({*doublings, most})


def loop_interventions(num_visits: int, rounds: tuple[int, ...] = LOOP_ROUNDS) -> list[Intervention]:
    """Loop an early, a middle and a late quarter of the bulk, with updates as they are and divided by R.

    R = 1 is the model as it is: it must give no excess, and is measured to show it.
    """
    bulk = range(num_visits)[bulk_layers(num_visits)]
    length = max(1, round(LOOP_LENGTH_SHARE * len(bulk)))
    starts = sorted({0, (len(bulk) - length) // 2, len(bulk) - length})
    return [
        Intervention("loop", tuple(bulk[start : start + length]), rounds=count, branch_scale=scale)
        for start in starts
        for count in rounds
        for scale in ([1.0] if count == 1 else [1.0, 1.0 / count])
    ]

"""Where along the depth a token does its turning, from its vector of layer angles.

    stop depth of a token = the share of layers after which 90 % of its angles' sum lies behind it

0.9 for a token that turns evenly, near 0 for one that turns in the first layers and then stops. Between layers the sum
counts as growing evenly. The first and the last layer, whose angles are near pi/2 in any language model, are left out:
they would say nothing about the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Share of the turning after which a token counts as stopped.
STOPPED = 0.9


def bulk_layers(num_layers: int) -> slice:
    """All layers but the first and the last; all of them where fewer than 4 are.

    Example:
        >>> bulk_layers(6), bulk_layers(3)
        (slice(1, 5, None), slice(0, 3, None))
    """
    return slice(1, num_layers - 1) if num_layers >= 4 else slice(0, num_layers)


def stop_depths(angles: Array) -> Array:
    """Stop depth of each token over the bulk layers.

    Args:
        angles: [tokens, layers], not negative, radians.

    Returns:
        [tokens], within 0 to 1; NaN for a token that does not turn at all.

    Example:
        >>> stop_depths(np.array([[9.0, 1, 1, 1, 1, 9], [9.0, 1, 0, 0, 0, 9]])).round(3).tolist()
        [0.9, 0.225]
    """
    bulk = angles[:, bulk_layers(angles.shape[1])]
    total = bulk.sum(axis=1)
    behind = np.cumsum(bulk, axis=1)
    aim = STOPPED * total
    layer = (behind < aim[:, None]).sum(axis=1).clip(max=bulk.shape[1] - 1)
    rows = np.arange(len(bulk))
    own = bulk[rows, layer]
    before = behind[rows, layer] - own
    within = np.divide(aim - before, own, out=np.zeros_like(own), where=own > 0)
    result: Array = np.where(total > 0, (layer + within) / bulk.shape[1], np.nan)
    return result

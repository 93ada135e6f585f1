"""The number of rounds of each training step, drawn as a function of the seed and the step alone.

Every micro-batch and every process of a step therefore makes the same rounds, a resumed run draws what the unbroken
one would have, and arms of a comparison that share the seed are trained at the same depths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from depthscale.runs.train_config import RandomRounds

#: Keeps these draws apart from the other streams of one seed, such as the order of the rows.
_STREAM = 1
_QUADRATURE_NODES = 80


def draw_rounds(law: RandomRounds, seed: int, step: int) -> int:
    """Rounds of optimizer step ``step``, counted from 0.

    Quantiles of raw draws of PCG64(seed, step), which NumPy keeps the same in every version: R = 1 + Poisson(e^t),
    t normal, clipped to [minimum, maximum]; or uniform on minimum ... maximum.

    Source: Geiping et al., arXiv 2502.05171, section 3.3; there r = mean - 1, R is not clipped and drawn per step too.

    Example:
        >>> law = RandomRounds(mean=8, maximum=32)
        >>> [draw_rounds(law, seed=0, step=step) for step in range(3)] == [
        ...     draw_rounds(law, seed=0, step=step) for step in range(3)
        ... ]
        True
    """
    raw = np.random.PCG64(np.random.SeedSequence([seed, step, _STREAM])).random_raw(2)
    first, second = (float(draw >> 11) * 2.0**-53 for draw in raw.tolist())
    if law.distribution == "uniform":
        return law.minimum + int(first * (law.resolved_maximum - law.minimum + 1))
    # The middle of its interval, so that the normal quantile is finite.
    rate = _rates(law, np.array([special.ndtri(first + 2.0**-54)]))
    below = special.pdtr(np.arange(law.resolved_maximum), rate)
    return max(law.minimum, min(law.resolved_maximum, 1 + int(np.searchsorted(below, second))))


def rounds_probabilities(law: RandomRounds) -> NDArray[np.float64]:
    """Probability of each number of rounds; the normal variable is integrated by Gauss-Hermite quadrature.

    Returns:
        float64 ``[maximum + 1]``, indexed by R; sums to 1.

    Example:
        >>> rounds_probabilities(RandomRounds(distribution="uniform", minimum=2, maximum=3)).tolist()
        [0.0, 0.0, 0.5, 0.5]
    """
    probabilities = np.zeros(law.resolved_maximum + 1)
    if law.distribution == "uniform":
        probabilities[law.minimum :] = 1 / (law.resolved_maximum - law.minimum + 1)
        return probabilities
    nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
    at_most = special.pdtr(np.arange(law.resolved_maximum)[:, None], _rates(law, nodes)) @ (weights / weights.sum())
    # R <= r is 1 + Poisson <= r; everything below the minimum and above the maximum is moved onto them.
    at_most[: law.minimum - 1] = 0.0
    at_most[-1] = 1.0
    probabilities[1:] = np.diff(at_most, prepend=0.0)
    return probabilities


def _rates(law: RandomRounds, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Poisson rates of standard normal values; their mean is mean - 1."""
    assert law.mean is not None, "the config requires it"
    sigma = law.resolved_sigma
    return np.exp(np.log(law.mean - 1) - sigma**2 / 2 + sigma * normal)

"""What others, and a scratch version of this package, found: set beside the study's own figures, whatever those are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: kappa by R of a residual loop of two layers at width 128, weights tied; about 1 with weights of its own per visit.
#: Measured by others, after the paper, with each visit's own maxima.
RESIDUAL_LOOP_KAPPA: Mapping[int, float] = MappingProxyType({2: 1.36, 4: 1.89, 8: 2.44, 16: 2.55, 32: 2.31, 64: 1.51})

#: gamma of earlier measurements; scratch figures are of few seeds on tiny byte models: leads, not results.
EARLIER_GAMMAS: tuple[Mapping[str, Any], ...] = (
    {"source": "independent", "of": "small attention and MLP loop", "gamma": 0.50},
    {"source": "independent", "of": "before training", "gamma": 0.13},
    {"source": "independent", "of": "after training", "gamma": 0.31},
    {"source": "scratch", "of": "deeploop, post", "step": 0, "gamma": 1.00},
    {"source": "scratch", "of": "deeploop, post", "step": 200, "gamma": 0.77},
    {"source": "scratch", "of": "p = 1/4, post", "step": 0, "gamma": 0.96},
    {"source": "scratch", "of": "p = 1/4, post", "step": 200, "gamma": 0.56},
    {"source": "scratch", "of": "unscaled, post", "step": 0, "gamma": 0.03},
    {"source": "scratch", "of": "unscaled, pre", "step": 0, "gamma": -0.46},
    {"source": "scratch", "of": "unscaled, pre", "step": 200, "gamma": 0.20},
)


def earlier_figures() -> dict[str, Any]:
    """All of them as plain data."""
    return {
        "residual_loop_kappa": [{"rounds": r, "kappa": kappa} for r, kappa in RESIDUAL_LOOP_KAPPA.items()],
        "gammas": [dict(entry) for entry in EARLIER_GAMMAS],
    }

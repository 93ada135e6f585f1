"""depthscale: how deep, how often looped and how scaled.

Importing the package loads neither torch nor transformers; a public name loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthscale.alignment.gradients import per_visit_gradients
    from depthscale.alignment.measure import measure_alignment
    from depthscale.alignment.retrofit import ScaledResidual, apply_init_gain, forget_init_gain
    from depthscale.alignment.tracing import trace_visits
    from depthscale.budget import ModelShape, count_parameters, flops_per_token, kv_cache_bytes_per_token
    from depthscale.errors import DepthscaleError
    from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
    from depthscale.plan import DepthPlan, Segment, VisitCounts, VisitGroup
    from depthscale.residual import (
        RULES,
        GroupScales,
        ResidualScales,
        apply_rule,
        exponent_threshold,
        first_order_bound,
        require_placement,
    )
    from depthscale.studies.run_recorder import RunRecorder, unigram_entropy_nats
    from depthscale.training.sharding import shard_looped

__version__ = "0.1.0"

_HOMES = {
    "depthscale.errors": ("DepthscaleError",),
    "depthscale.plan": ("DepthPlan", "Segment", "VisitCounts", "VisitGroup"),
    "depthscale.residual": (
        "RULES",
        "GroupScales",
        "ResidualScales",
        "apply_rule",
        "exponent_threshold",
        "first_order_bound",
        "require_placement",
    ),
    "depthscale.budget": ("ModelShape", "count_parameters", "flops_per_token", "kv_cache_bytes_per_token"),
    "depthscale.nn": ("LoopedLMConfig", "LoopedLMForCausalLM"),
    "depthscale.alignment.tracing": ("trace_visits",),
    "depthscale.alignment.retrofit": ("ScaledResidual", "apply_init_gain", "forget_init_gain"),
    "depthscale.alignment.gradients": ("per_visit_gradients",),
    "depthscale.alignment.measure": ("measure_alignment",),
    "depthscale.training.sharding": ("shard_looped",),
    "depthscale.studies.run_recorder": ("RunRecorder", "unigram_entropy_nats"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - grouped by home, as the reference lists them
    "DepthscaleError",
    "DepthPlan",
    "Segment",
    "VisitCounts",
    "VisitGroup",
    "RULES",
    "GroupScales",
    "ResidualScales",
    "apply_rule",
    "exponent_threshold",
    "first_order_bound",
    "require_placement",
    "ModelShape",
    "count_parameters",
    "flops_per_token",
    "kv_cache_bytes_per_token",
    "LoopedLMConfig",
    "LoopedLMForCausalLM",
    "trace_visits",
    "ScaledResidual",
    "apply_init_gain",
    "forget_init_gain",
    "per_visit_gradients",
    "measure_alignment",
    "shard_looped",
    "RunRecorder",
    "unigram_entropy_nats",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'depthscale' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

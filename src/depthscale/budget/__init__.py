"""What a model costs before it is built: parameters, FLOPs, cache and memory, and widths that match a budget."""

from depthscale.budget.flops import FlopsPerToken, flops_per_token, kv_cache_bytes_per_token
from depthscale.budget.matching import Budget, BudgetMatch, match_width
from depthscale.budget.memory import (
    ActivationMemory,
    TrainingState,
    activation_memory,
    training_state_bytes,
)
from depthscale.budget.parameters import ModelShape, ParameterCount, count_parameters

__all__ = [
    "ActivationMemory",
    "Budget",
    "BudgetMatch",
    "FlopsPerToken",
    "ModelShape",
    "ParameterCount",
    "TrainingState",
    "activation_memory",
    "count_parameters",
    "flops_per_token",
    "kv_cache_bytes_per_token",
    "match_width",
    "training_state_bytes",
]

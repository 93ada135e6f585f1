"""How a ``training`` result describes what its configuration says, whichever loop trained the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.plan import DepthPlan
from depthscale.runs.config import RunConfig
from depthscale.runs.train_config import TrainConfig


def described_plan(plan: DepthPlan) -> dict[str, Any]:
    """The counts that readers of a result ask for, and the segments."""
    return {
        "num_blocks": plan.num_blocks,
        "num_rounds": plan.num_rounds,
        "unrolled_depth": plan.unrolled_depth,
        "num_sublayer_visits": plan.num_sublayer_visits,
        **plan.to_dict(),
    }


def described_model(
    config: RunConfig,
    rule: str,
    rule_arguments: Mapping[str, Any],
    scales: Sequence[Mapping[str, float]],
    vocab_size: int,
) -> dict[str, Any]:
    """Shape, placement and the residual scales that the model was built with.

    Args:
        config: of the run.
        rule, rule_arguments: where the scales come from.
        scales: skip, gain, branch and rate multiplier, one mapping per segment.
        vocab_size: rows of the embedding.
    """
    model = config.model
    return {
        "norm_placement": model.norm_placement,
        "rule": rule,
        "rule_arguments": dict(rule_arguments),
        "stated_rounds": config.stated_rounds,
        "scales": [dict(group) for group in scales],
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.resolved_intermediate_size,
        "mlp": model.mlp,
        "vocab_size": vocab_size,
    }


def described_optimization(train: TrainConfig) -> dict[str, Any]:
    """What the optimizer was told; what it did is the loop's to add."""
    return {
        "optimizer": train.optimizer,
        "lr": train.lr,
        "weight_decay": train.weight_decay,
        "base_width": train.base_width,
        "schedule": train.schedule,
        "warmup_steps": train.warmup_steps,
    }

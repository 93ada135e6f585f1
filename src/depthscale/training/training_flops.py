"""What a run's training cost in FLOPs: the sum over the rounds that its steps really made."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from depthscale.budget import FlopsPerToken, ModelShape, flops_per_token
from depthscale.runs.config import RunConfig
from depthscale.training.random_rounds import draw_rounds, rounds_probabilities


@dataclass(frozen=True)
class TrainingFlops:
    """FLOPs of the steps made so far.

    Attributes:
        of_plan: per token, at the plan's own rounds.
        tokens: trained on, all steps together.
        total: all steps together, each at its own rounds.
        random_rounds: None, or what was drawn beside what the law expects: ``mean`` and ``mean_expected`` rounds,
            ``smallest`` and ``largest`` drawn, ``flops_per_token_training`` and ``..._expected``.
    """

    of_plan: FlopsPerToken
    tokens: int
    total: int
    random_rounds: dict[str, Any] | None


def training_flops(config: RunConfig, shape: ModelShape, steps: int, tokens_per_step: int) -> TrainingFlops:
    """Count the training of ``steps`` optimizer steps; a step whose update was skipped is counted too."""

    def per_token(rounds: int | None) -> FlopsPerToken:
        plan = shape.plan if rounds is None else shape.plan.with_rounds(rounds)
        return flops_per_token(
            dataclasses.replace(shape, plan=plan),
            config.data.context_length,
            checkpoint_visits=config.train.checkpoint_visits,
        )

    of_plan, tokens, law = per_token(None), steps * tokens_per_step, config.train.rounds
    if law is None:
        return TrainingFlops(of_plan, tokens, of_plan.training * tokens, None)
    made = Counter(draw_rounds(law, config.train.data_seed, step) for step in range(steps))
    total = sum(count * per_token(rounds).training for rounds, count in made.items()) * tokens_per_step
    expected = {rounds: float(p) for rounds, p in enumerate(rounds_probabilities(law)) if p > 0}
    return TrainingFlops(
        of_plan,
        tokens,
        total,
        {
            "mean": sum(rounds * count for rounds, count in made.items()) / steps,
            "mean_expected": sum(rounds * p for rounds, p in expected.items()),
            "smallest": min(made),
            "largest": max(made),
            "flops_per_token_training": total / tokens,
            "flops_per_token_training_expected": sum(p * per_token(r).training for r, p in expected.items()),
        },
    )

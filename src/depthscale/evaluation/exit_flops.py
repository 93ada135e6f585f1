"""What early exit costs: FLOPs of a forward pass per token, with the predictions that a rule needs to decide."""

from __future__ import annotations

from typing import Literal, cast

from depthscale.budget.flops import flops_per_token
from depthscale.budget.parameters import ModelShape
from depthscale.evaluation.early_exit import loop_of
from depthscale.nn import LoopedLMConfig
from depthscale.plan import DepthPlan
from depthscale.residual import NormPlacement

#: Rules that look at a prediction, so that every round which is made ends in blocks after the loop, norm and head.
_PREDICTING_RULES = ("entropy", "kl")


def exit_flops_per_token(config: LoopedLMConfig, context_length: int, rule: str, mean_rounds: float) -> float:
    """Forward FLOPs of a token that leaves the loop after ``mean_rounds``.

    before * visit + rounds * blocks * visit + predictions * (after * visit + head), where ``entropy`` and ``kl`` make a
    prediction at the end of each round and ``state_change`` one in all. It is linear in the rounds, so their mean gives
    the mean. A visit and the head cost what :func:`depthscale.budget.flops.flops_per_token` says.

    Args:
        config: with exactly one segment that loops.
        context_length: T, tokens in a row.
        rule: one of ``EXIT_RULES``.
        mean_rounds: at least 1.

    Raises:
        PlanError: the plan has no single loop.

    Example:
        >>> config = LoopedLMConfig(plan=[{"blocks": 2, "rounds": 4}])
        >>> full = exit_flops_per_token(config, 64, "state_change", 4)
        >>> head = 2 * config.hidden_size * config.vocab_size
        >>> exit_flops_per_token(config, 64, "entropy", 4) - full == 3 * head
        True
    """
    before, blocks, _ = loop_of(config)
    flops = flops_per_token(_shape(config), context_length)
    visits = _plan(config).unrolled_depth
    visit = (flops.forward - flops.head) / visits
    loop = next(segment for segment in config.plan if not segment["fixed"])
    after = visits - before - blocks * loop["rounds"]
    predictions = mean_rounds if rule in _PREDICTING_RULES else 1.0
    return (before + mean_rounds * blocks) * visit + predictions * (after * visit + flops.head)


def _plan(config: LoopedLMConfig) -> DepthPlan:
    return DepthPlan.from_dict({"segments": config.plan})


def _shape(config: LoopedLMConfig) -> ModelShape:
    return ModelShape(
        plan=_plan(config),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        mlp=cast(Literal["swiglu", "gelu"], config.mlp),
        norm_placement=cast(NormPlacement, config.norm_placement),
        qk_norm=config.qk_norm,
        embedding_norm=config.embedding_norm,
        final_norm=config.final_norm,
        tie_word_embeddings=config.tie_word_embeddings,
    )

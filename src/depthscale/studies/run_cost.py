"""What one run spends, from its configuration alone: parameters, tokens, exact FLOPs. Nothing is built."""

from __future__ import annotations

from dataclasses import dataclass

from depthscale.budget import ModelShape, count_parameters, flops_per_token
from depthscale.runs.config import RunConfig

#: The final evaluations: one on the tuning split, one on the report split.
_FINAL_EVALUATIONS = 2


@dataclass(frozen=True)
class RunCost:
    """Of one whole run.

    Attributes:
        steps: optimizer steps.
        tokens: trained on.
        parameters: each once.
        flops_per_token: of a training step, attention at full T^2, the head counted.
        evaluation_flops: of all its evaluations together, forward passes only; 0 where ``eval_rows`` leaves their
            number to the corpus.
    """

    steps: int
    tokens: int
    parameters: int
    flops_per_token: int
    evaluation_flops: int

    @property
    def training_flops(self) -> int:
        """All steps together."""
        return self.flops_per_token * self.tokens

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.tokens // self.steps


def run_cost(config: RunConfig, vocab_size: int) -> RunCost:
    """Count a run. Under random rounds the plan's own stand for every step."""
    shape = run_shape(config, vocab_size)
    flops = flops_per_token(shape, config.data.context_length, checkpoint_visits=config.train.checkpoint_visits)
    train = config.train
    evaluations = _FINAL_EVALUATIONS + (0 if train.eval_every is None else (train.steps - 1) // train.eval_every)
    return RunCost(
        steps=train.steps,
        tokens=training_tokens(config),
        parameters=count_parameters(shape).total,
        flops_per_token=flops.training,
        evaluation_flops=evaluations * (train.eval_rows or 0) * config.data.context_length * flops.forward,
    )


def training_tokens(config: RunConfig) -> int:
    """Tokens that a whole run trains on."""
    return config.train.steps * config.train.rows_per_step(num_processes=1) * config.data.context_length


def run_shape(config: RunConfig, vocab_size: int) -> ModelShape:
    """The shape that the budgets read."""
    model = config.model
    return ModelShape(
        plan=config.plan.build(),
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.resolved_key_value_heads,
        head_dim=model.resolved_head_dim,
        intermediate_size=model.resolved_intermediate_size,
        mlp=model.mlp,
        norm_placement=model.norm_placement,
        qk_norm=model.qk_norm,
        embedding_norm=model.embedding_norm,
        final_norm=model.final_norm,
        tie_word_embeddings=model.tie_word_embeddings,
    )

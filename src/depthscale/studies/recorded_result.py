"""The ``training`` result of a run that another loop made: the same keys as for a run of our own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from depthscale.budget import count_parameters, flops_per_token
from depthscale.errors import ConfigError, unknown_name
from depthscale.runs.config import RunConfig
from depthscale.runs.described import described_model, described_optimization, described_plan
from depthscale.studies.run_cost import run_shape

#: What a caller may count in our stead, where the model is not of our shape.
COUNTS = (
    "parameters",
    "parameters_non_embedding",
    "flops_per_token_forward",
    "flops_per_token_training",
    "head_share",
)


@dataclass(frozen=True)
class Facts:
    """What a loop must say of its data, as no file of ours can know it.

    Attributes:
        corpus_sha256: identifies the text; losses on different texts are refused in one comparison or fit.
        tokenizer_sha256: identifies the tokenizer, likewise.
        vocab_size: rows of the embedding.
        unigram_loss_nats: entropy of the evaluated tokens' own frequencies; a run that never falls below is stuck.
        train_tokens: distinct tokens to train on, from which epochs follow; None if it is not known.
    """

    corpus_sha256: str
    tokenizer_sha256: str
    vocab_size: int
    unigram_loss_nats: float
    train_tokens: int | None = None


@dataclass(frozen=True)
class Course:
    """How the run went.

    Attributes:
        outcome, outcome_reason: as :func:`depthscale.runs.outcome.judge` says.
        step, tokens: at its end.
        seconds: of training.
        final: loss, bits per byte and number of tokens of both held-out splits.
        non_finite: logged steps without a finite loss.
        resumed: how often it was taken up again.
    """

    outcome: str
    outcome_reason: str
    step: int
    tokens: int
    seconds: float
    final: Mapping[str, Mapping[str, float | None]]
    non_finite: int
    resumed: int


def counted_budget(config: RunConfig, facts: Facts, counts: Mapping[str, float]) -> dict[str, float]:
    """Parameters and FLOPs per token of the configured shape, with what the caller counted in their place.

    Raises:
        ConfigError: an unknown count, or random rounds, whose FLOPs the caller must count.
    """
    for name in counts:
        if name not in COUNTS:
            raise ConfigError(unknown_name("count", name, COUNTS))
    if config.train.rounds is not None and "flops_per_token_training" not in counts:
        raise ConfigError(
            "the configuration draws its rounds at random, and only your loop knows which were drawn; pass"
            " budget={'flops_per_token_training': ...}, averaged over the steps"
        )
    shape = run_shape(config, facts.vocab_size)
    flops = flops_per_token(shape, config.data.context_length, checkpoint_visits=config.train.checkpoint_visits)
    parameters = count_parameters(shape)
    return {
        "parameters": parameters.total,
        "parameters_non_embedding": parameters.non_embedding,
        "flops_per_token_forward": flops.forward,
        "flops_per_token_forward_causal": flops.forward_causal,
        "flops_per_token_training": flops.training,
        "head_share": flops.head_share,
        **counts,
    }


def recorded_result(config: RunConfig, facts: Facts, course: Course, budget: Mapping[str, float]) -> dict[str, Any]:
    """All that is known of the run, as plain data; what only our own loop measures is None."""
    train = config.train
    scales = config.model.scales(config.stated_plan())
    return {
        "outcome": course.outcome,
        "outcome_reason": course.outcome_reason,
        "recorded": "by another loop, through depthscale.RunRecorder",
        "start": config.start.model_dump() if config.start else None,
        "branch": config.branch.model_dump() if config.branch else None,
        "seed": train.seed,
        "data_seed": train.data_seed,
        "step": course.step,
        "steps_planned": train.steps,
        "tokens": course.tokens,
        "final": {split: dict(loss) for split, loss in course.final.items()},
        "unigram_loss_nats": dict.fromkeys(course.final, facts.unigram_loss_nats),
        "uniform_loss_nats": math.log(facts.vocab_size),
        "plan": described_plan(config.plan.build()),
        "model": described_model(
            config, scales.rule, scales.arguments, [asdict(group) for group in scales.groups], facts.vocab_size
        ),
        "budget": {
            **budget,
            "training_flops": budget["flops_per_token_training"] * course.tokens,
            "random_rounds": None,
        },
        "data": {
            "corpus": config.data.corpus,
            "corpus_sha256": facts.corpus_sha256,
            "tokenizer": config.data.tokenizer,
            "tokenizer_sha256": facts.tokenizer_sha256,
            "vocab_size": facts.vocab_size,
            "epochs": course.tokens / facts.train_tokens if facts.train_tokens else None,
            "tokens_per_parameter": course.tokens / budget["parameters"],
            "tokens_per_parameter_non_embedding": course.tokens / budget["parameters_non_embedding"],
            "attend_across_documents": config.data.attend_across_documents,
            "context_length": config.data.context_length,
        },
        "optimization": {
            **described_optimization(train),
            "weight_decay_rule": None,
            "rows_per_step": None,
            "num_processes": None,
            "share_clipped": None,
            "steps_non_finite": course.non_finite,
        },
        "visits": None,
        "groups": None,
        "wall_seconds": course.seconds,
        "tokens_per_second": course.tokens / course.seconds if course.seconds else None,
        "peak_memory_bytes": None,
        "resumed": course.resumed,
        "precision": train.precision,
        "num_threads": None,
        "device": None,
    }

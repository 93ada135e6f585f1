"""What a run would be and cost, from its configuration alone: the model is built on the meta device, without memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from depthscale.budget import ModelShape, activation_memory, count_parameters, training_state_bytes
from depthscale.errors import DataError
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.training.model import model_config
from depthscale.training.parameter_groups import named_parameters_once, role
from depthscale.training.tokenizer import (
    bpe_entries,
    byte_tokenizer,
    is_trained_on_corpus,
    load_tokenizer,
    vocabulary_size,
)
from depthscale.training.training_flops import training_flops


@dataclass(frozen=True)
class DryRun:
    """A run before it is made.

    Attributes:
        parameters: of the model that was built, each once.
        parameters_non_embedding: without embedding and untied head.
        visits: N.
        flops_per_token: of training, attention at full T^2.
        training_flops: of all steps.
        tokens: of all steps.
        state_bytes: weights, gradients and the optimizer's moments, in float32.
        activation_bytes: at the peak of one forward and backward pass of ``batch_rows`` rows.
    """

    parameters: int
    parameters_non_embedding: int
    visits: int
    flops_per_token: int
    training_flops: int
    tokens: int
    state_bytes: int
    activation_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Of one process, without what the allocator, the compiler and communication add."""
        return self.state_bytes + self.activation_bytes


def dry_run(config: RunConfig, num_processes: int = 1) -> DryRun:
    """Build the model of ``config`` on the meta device and count.

    Args:
        config: the run.
        num_processes: processes that share ``train.global_batch_rows``; without it each adds rows of its own.

    Raises:
        ConfigError: the global batch cannot be shared by so many.
        DataError: the vocabulary is neither stated nor to be had from the tokenizer.
    """
    with torch.device("meta"):
        model = LoopedLMForCausalLM(model_config(config, byte_tokenizer(), stated_vocabulary(config)))
    shape = ModelShape.from_config(model.config.to_dict())
    counted = count_parameters(shape)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == counted.total, "the budget counts what the model has"
    state = training_state_bytes(shape)
    moments = state.moments
    if config.train.optimizer == "muon":
        # One momentum for a block's matrix, two moments for the rest.
        matrices = sum(
            parameter.numel()
            for name, parameter in named_parameters_once(model)
            if role(name) in ("query_key", "value_output", "mlp")
        )
        moments -= 4 * matrices
    activations = activation_memory(
        shape,
        config.data.context_length,
        config.train.batch_rows,
        bytes_per_element=2 if config.train.precision == "bfloat16" else 4,
        checkpoint_visits=config.train.checkpoint_visits,
        masked=not config.data.attend_across_documents,
    )
    tokens_per_step = config.train.rows_per_step(num_processes) * config.data.context_length
    flops = training_flops(config, shape, config.train.steps, tokens_per_step)
    return DryRun(
        parameters=parameters,
        parameters_non_embedding=counted.non_embedding,
        visits=shape.plan.unrolled_depth,
        flops_per_token=flops.total // flops.tokens,
        training_flops=flops.total,
        tokens=flops.tokens,
        state_bytes=state.weights + state.gradients + moments,
        activation_bytes=activations.peak,
    )


def stated_vocabulary(config: RunConfig) -> int:
    """Rows of the embedding: ``model.vocab_size``, else what the tokenizer has, or may have at most.

    Raises:
        DataError: the tokenizer is not at hand and its size is not stated.
    """
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    spec = config.data.tokenizer
    if is_trained_on_corpus(spec):
        return bpe_entries(spec)
    try:
        return vocabulary_size(load_tokenizer(spec))
    except DataError as error:
        raise DataError(f"{error}. To size a model without it, set model.vocab_size") from error

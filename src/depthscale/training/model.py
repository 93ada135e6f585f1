"""From a run's configuration to a freshly initialized model."""

from __future__ import annotations

import dataclasses

import torch
from transformers import PreTrainedTokenizerBase

from depthscale.errors import ConfigError
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.training.base_width import initializer_range, output_multiplier


def model_config(config: RunConfig, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> LoopedLMConfig:
    """The transformers configuration: the plan and the rule's finished numbers as plain data."""
    model, plan = config.model, config.plan.build()
    if model.vocab_size is not None and model.vocab_size < vocab_size:
        raise ConfigError(
            f"model.vocab_size came as {model.vocab_size}, but the tokenizer has {vocab_size} entries; expected at"
            " least so many"
        )
    scales = model.scales(config.stated_plan())
    return LoopedLMConfig(
        vocab_size=model.vocab_size or vocab_size,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.resolved_key_value_heads,
        head_dim=model.resolved_head_dim,
        intermediate_size=model.resolved_intermediate_size,
        mlp=model.mlp,
        norm_placement=model.norm_placement,
        plan=plan.to_dict()["segments"],
        residual_scales=[dataclasses.asdict(group) for group in scales.groups],
        residual_rule={"name": scales.rule, "arguments": dict(scales.arguments), **_drawn(config)},
        max_position_embeddings=config.data.context_length,
        rope_theta=model.rope_theta,
        rms_norm_eps=model.rms_norm_eps,
        qk_norm=model.qk_norm,
        embedding_norm=model.embedding_norm,
        final_norm=model.resolved_final_norm,
        tie_word_embeddings=model.tie_word_embeddings,
        initializer_range=initializer_range(config),
        embedding_initializer_range=model.embedding_initializer_range,
        output_multiplier=output_multiplier(config),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # Padding is masked wherever it stands, so the end-of-text token will do; generate() needs one to be named.
        pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )


def _drawn(config: RunConfig) -> dict[str, int | list[int]]:
    """The rounds that the rule was told of, and the range that training draws from, where they are not the plan's."""
    law = config.train.rounds
    drawn: dict[str, int | list[int]] = {}
    if config.stated_rounds is not None:
        drawn["stated_rounds"] = config.stated_rounds
    if law is not None:
        drawn["random_rounds"] = [law.minimum, law.resolved_maximum]
    return drawn


def build_model(config: RunConfig, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> LoopedLMForCausalLM:
    """A model with fresh weights: the same seed gives the same weights, whatever ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return LoopedLMForCausalLM(model_config(config, tokenizer, vocab_size))

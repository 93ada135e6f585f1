"""From a run's configuration to a freshly initialized model."""

from __future__ import annotations

import dataclasses

import torch
from transformers import PreTrainedTokenizerBase

from depthscale.budget import ModelShape
from depthscale.errors import ConfigError
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.runs.config import RunConfig


def model_shape(config: RunConfig, vocab_size: int) -> ModelShape:
    """The shape that ``budget`` counts."""
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
        final_norm=model.resolved_final_norm,
        tie_word_embeddings=model.tie_word_embeddings,
    )


def model_config(config: RunConfig, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> LoopedLMConfig:
    """The transformers configuration: the plan and the rule's finished numbers as plain data."""
    model, plan = config.model, config.plan.build()
    scales = model.scales(plan)
    return LoopedLMConfig(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.resolved_key_value_heads,
        head_dim=model.resolved_head_dim,
        intermediate_size=model.resolved_intermediate_size,
        mlp=model.mlp,
        norm_placement=model.norm_placement,
        plan=plan.to_dict()["segments"],
        residual_scales=[dataclasses.asdict(group) for group in scales.groups],
        residual_rule={"name": scales.rule, "arguments": dict(scales.arguments)},
        max_position_embeddings=config.data.context_length,
        rope_theta=model.rope_theta,
        rms_norm_eps=model.rms_norm_eps,
        qk_norm=model.qk_norm,
        embedding_norm=model.embedding_norm,
        final_norm=model.resolved_final_norm,
        tie_word_embeddings=model.tie_word_embeddings,
        initializer_range=model.initializer_range,
        embedding_initializer_range=model.embedding_initializer_range,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def build_model(config: RunConfig, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> LoopedLMForCausalLM:
    """A model with fresh weights: the same seed gives the same weights, whatever ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return LoopedLMForCausalLM(model_config(config, tokenizer, vocab_size))


def require_same_shape(model: LoopedLMForCausalLM, config: RunConfig, vocab_size: int) -> None:
    """Refuse to continue a checkpoint under a configuration that describes other weights.

    Raises:
        ConfigError: a shape, the number of blocks, or the vocabulary differs.
    """
    expected = {
        "vocab_size": vocab_size,
        "hidden_size": config.model.hidden_size,
        "num_attention_heads": config.model.num_attention_heads,
        "num_key_value_heads": config.model.resolved_key_value_heads,
        "head_dim": config.model.resolved_head_dim,
        "intermediate_size": config.model.resolved_intermediate_size,
        "mlp": config.model.mlp,
        "norm_placement": config.model.norm_placement,
        "number of blocks": config.plan.build().num_blocks,
    }
    found = {name: getattr(model.config, name, None) for name in expected}
    found["number of blocks"] = sum(segment["blocks"] for segment in model.config.plan)
    differing = [
        f"{name} {found[name]} (asked: {expected[name]})" for name in expected if found[name] != expected[name]
    ]
    if differing:
        raise ConfigError(f"the checkpoint has other weights: {', '.join(differing)}; match the configuration to it")

"""Tiny random models of every family, from config objects alone."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from depthscale.nn import LoopedLMConfig

# Room for the byte tokenizer.
VOCABULARY, WIDTH, LAYERS = 259, 24, 4

_ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    **_ENDS,
}
_LLAMA: dict[str, Any] = {**_SIZE, "intermediate_size": 40, "num_key_value_heads": 2}
_NEOX: dict[str, Any] = {**_SIZE, "intermediate_size": 48}
_OPT: dict[str, Any] = {**_SIZE, "ffn_dim": 48}
_LOOP: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_attention_heads": 4, **_ENDS}
_LOOP_PLAN = [{"blocks": 1}, {"blocks": 2, "rounds": 3}, {"blocks": 1}]


def family_configs() -> dict[str, Any]:
    """One config a family, and the odd members of OPT, NeoX and the looped model."""
    return {
        "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=256, **_ENDS),
        "pythia": GPTNeoXConfig(**_NEOX),
        "neox_sequential": GPTNeoXConfig(**_NEOX, use_parallel_residual=False),
        "opt": OPTConfig(**_OPT, word_embed_proj_dim=WIDTH),
        "opt_350m": OPTConfig(**_OPT, word_embed_proj_dim=12, do_layer_norm_before=False),
        "llama": LlamaConfig(**_LLAMA),
        "mistral": MistralConfig(**_LLAMA),
        "qwen2": Qwen2Config(**_LLAMA, tie_word_embeddings=True),
        "qwen3": Qwen3Config(**_LLAMA, head_dim=8),
        "gemma": GemmaConfig(**_LLAMA, head_dim=8),
        "gemma2": Gemma2Config(**_LLAMA, head_dim=8, sliding_window=8),
        "gemma3": Gemma3TextConfig(**_LLAMA, head_dim=8, sliding_window=8),
        "looped_pre": LoopedLMConfig(**_LOOP, plan=_LOOP_PLAN),
        "looped_post": LoopedLMConfig(**_LOOP, plan=_LOOP_PLAN, norm_placement="post"),
        "looped_sandwich": LoopedLMConfig(**_LOOP, plan=_LOOP_PLAN, norm_placement="sandwich"),
        "looped_injected": LoopedLMConfig(
            **_LOOP, plan=[{"blocks": 1}, {"blocks": 2, "rounds": 3, "inject": True}, {"blocks": 1}]
        ),
    }


FAMILY_NAMES = tuple(family_configs())


def make_model(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """A model in evaluation mode with every parameter moved off its initial value, biases and gains too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(family_configs()[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def random_ids(rows: int, tokens: int, seed: int = 0) -> torch.Tensor:
    """Token ids that are never special."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))

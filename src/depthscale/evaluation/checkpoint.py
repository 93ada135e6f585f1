"""Load a checkpoint folder whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from depthscale.errors import CheckpointError
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM


def default_device() -> torch.device:
    """Where a model runs unless told otherwise: the first CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model(
    path: Path,
    dtype: torch.dtype = torch.float32,
    config: LoopedLMConfig | None = None,
    device: torch.device | None = None,
) -> LoopedLMForCausalLM:
    """The looped language model in a checkpoint folder (``config.json`` and safetensors).

    Args:
        path: the folder.
        dtype: of the weights in memory.
        config: plan and scales to use instead of the checkpoint's own; its weights' shapes must be the same.
        device: where the weights lie; None is the CPU.

    Raises:
        CheckpointError: no such folder, damaged or truncated files, weights of another shape, or weights that are
            missing or left over.
    """
    require_looped_config(path)
    try:
        model = LoopedLMForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {reason}") from error
    return model if device is None else model.to(device)


def load_model_and_tokenizer(
    path: Path, device: torch.device | None = None
) -> tuple[LoopedLMForCausalLM, PreTrainedTokenizerBase]:
    """A model in evaluation mode and the tokenizer beside it, which fit each other.

    Args:
        path: the folder.
        device: where the weights lie; None is the CPU.

    Raises:
        CheckpointError: either cannot be loaded, or the tokenizer has tokens that the model has no row for.
    """
    model, tokenizer = load_model(path, device=device).eval(), load_tokenizer(path)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= model.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {path} has token id {largest}, but the model's vocabulary is"
            f" {model.config.vocab_size}; put the tokenizer it was trained with beside its weights"
        )
    return model, tokenizer


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved beside a checkpoint's weights.

    Raises:
        CheckpointError: the folder holds none.
    """
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} holds no tokenizer; expected tokenizer.json beside it") from error


def require_looped_config(path: Path) -> None:
    """Refuse a folder that holds no looped language model, before anything slow is done.

    Raises:
        CheckpointError: no ``config.json``, a damaged one, or one of another model.
    """
    config_path = path / "config.json"
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {path}; expected a folder with config.json and weights") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{config_path} is damaged ({error}); copy the checkpoint again") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "looped_lm":
        raise CheckpointError(f"{config_path} is of model type {kind!r}; expected 'looped_lm'")

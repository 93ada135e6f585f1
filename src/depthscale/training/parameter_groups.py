"""Parameters by role: which learning rate, which weight decay, and which line of the training report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from depthscale.nn import LoopedLMForCausalLM
from depthscale.training.base_width import width_ratio

#: Roles in the order reports list them. ``query_key`` never gets the init gain, ``value_output`` and ``mlp`` do.
ROLES = ("embedding", "query_key", "value_output", "mlp", "norm")

_ROLE_OF_MODULE = {
    "q_proj": "query_key",
    "k_proj": "query_key",
    "v_proj": "value_output",
    "o_proj": "value_output",
    "up_proj": "mlp",
    "gate_proj": "mlp",
    "down_proj": "mlp",
    "embed_tokens": "embedding",
    "lm_head": "embedding",
}


def role(name: str) -> str:
    """The role of a parameter by its dotted name.

    Example:
        >>> role("model.blocks.0.attention.q_proj.weight"), role("model.final_norm.weight")
        ('query_key', 'norm')
    """
    for part in reversed(name.split(".")):
        if part in _ROLE_OF_MODULE:
            return _ROLE_OF_MODULE[part]
    return "norm"


def named_parameters_once(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every physical parameter once, tied ones under their first name, without a compiler's name prefix."""
    for name, parameter in model.named_parameters():
        yield name.replace("_orig_mod.", ""), parameter


def optimizer_groups(
    model: LoopedLMForCausalLM, lr: float, weight_decay: float, base_width: int | None = None
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: matrices of each segment with its learning-rate multiplier, then the rest.

    Weight decay acts on matrices of blocks and on embeddings, not on norm gains. It acts once per optimizer step
    on a tied weight, however often the weight is visited.

    Args:
        model: whose weights.
        lr: rate of a weight whose multiplier is 1.
        weight_decay: decay of a weight per rate.
        base_width: see :mod:`depthscale.training.base_width`.

    Returns:
        Dicts with ``params``, ``lr``, ``weight_decay`` and ``is_block_matrix``, the last for whoever chooses an
        optimizer by it.
    """
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    multipliers = _multiplier_of_block(model)
    ratio = width_ratio(model.config.hidden_size, base_width)
    for name, parameter in named_parameters_once(model):
        kind = role(name)
        decay = 0.0 if kind == "norm" else weight_decay
        is_block_matrix = kind in ("query_key", "value_output", "mlp")
        multiplier = 1.0
        if is_block_matrix:
            multiplier = multipliers[_block_index(name)] / ratio
            decay *= ratio
        groups.setdefault((is_block_matrix, multiplier, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": lr * multiplier, "weight_decay": decay, "is_block_matrix": is_block_matrix}
        for (is_block_matrix, multiplier, decay), parameters in groups.items()
    ]


def _multiplier_of_block(model: LoopedLMForCausalLM) -> list[float]:
    return [
        float(scales["lr_multiplier"])
        for segment, scales in zip(model.config.plan, model.config.residual_scales, strict=True)
        for _ in range(segment["blocks"])
    ]


def _block_index(name: str) -> int:
    return next(int(part) for part in name.split(".") if part.isdigit())

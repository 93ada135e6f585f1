"""Where the parts of known architectures are: one literal row a family, nothing guessed.

Paths are dotted attribute names. Those of a :class:`Family` start at the causal language model, those of its
sublayers at a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: What a block does with the stream x. ``pre``: x + f(Norm x). ``parallel``: attention and MLP both read x.
#: ``sandwich``: x + Norm f(Norm x). ``post``: Norm(x + f(x)). ``unknown``: named by paths.
ResidualKind = Literal["pre", "parallel", "sandwich", "post", "unknown"]


@dataclass(frozen=True)
class SublayerPaths:
    """How the updates of attention and MLP are read off a block.

    Attributes:
        attention: module whose output is attention's part of the block.
        mlp: module whose output is the MLP's update; None takes the rest of the block's update.
        attention_gives_stream: attention's module gives the stream after attention, not the update alone.
    """

    attention: str
    mlp: str | None
    attention_gives_stream: bool = False


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        name: how reports name it.
        base: the part that runs every block, without the head.
        blocks: the ModuleList of blocks.
        final_norm: the norm before the head; the attribute is None in models that have none.
        output_projection: between final norm and head, where a model has one.
        residual: of its blocks.
        sublayers: how attention and MLP are told apart.
    """

    name: str
    base: str
    blocks: str
    final_norm: str
    residual: ResidualKind
    sublayers: SublayerPaths
    output_projection: str | None = None


_PRE = SublayerPaths("self_attn", "mlp")
_SANDWICH = SublayerPaths("post_attention_layernorm", "post_feedforward_layernorm")


def _llama_like(name: str, residual: ResidualKind = "pre", sublayers: SublayerPaths = _PRE) -> Family:
    return Family(name, "model", "model.layers", "model.norm", residual, sublayers)


#: By ``config.model_type``.
FAMILIES: dict[str, Family] = {
    "gpt2": Family("gpt2", "transformer", "transformer.h", "transformer.ln_f", "pre", SublayerPaths("attn", "mlp")),
    "gpt_neox": Family(
        "gpt_neox",
        "gpt_neox",
        "gpt_neox.layers",
        "gpt_neox.final_layer_norm",
        "parallel",
        SublayerPaths("attention", "mlp"),
    ),
    "opt": Family(
        "opt",
        "model.decoder",
        "model.decoder.layers",
        "model.decoder.final_layer_norm",
        "pre",
        SublayerPaths("self_attn", "fc2"),
        "model.decoder.project_out",
    ),
    "llama": _llama_like("llama"),
    "mistral": _llama_like("mistral"),
    "qwen2": _llama_like("qwen2"),
    "qwen3": _llama_like("qwen3"),
    "gemma": _llama_like("gemma"),
    "gemma2": _llama_like("gemma2", "sandwich", _SANDWICH),
    "gemma3_text": _llama_like("gemma3", "sandwich", _SANDWICH),
    "gemma3": Family(
        "gemma3",
        "model.language_model",
        "model.language_model.layers",
        "model.language_model.norm",
        "sandwich",
        _SANDWICH,
    ),
    "looped_lm": Family(
        "looped_lm",
        "model",
        "model.blocks",
        "model.final_norm",
        "pre",
        SublayerPaths("attention_residual", None, attention_gives_stream=True),
    ),
}


def residual_of(family: Family, config: Any) -> tuple[ResidualKind, SublayerPaths]:
    """The residual and sublayers of this very model: some families hold models of several kinds."""
    if family.name == "opt" and not config.do_layer_norm_before:
        return "post", SublayerPaths("self_attn_layer_norm", None, attention_gives_stream=True)
    if family.name == "gpt_neox" and not config.use_parallel_residual:
        return "pre", family.sublayers
    if family.name == "looped_lm":
        placement: ResidualKind = config.norm_placement
        # "sandwich" of that config normalizes the sum, as "post" does; the stream is never a plain sum of updates.
        return ("pre" if placement == "pre" else "post"), family.sublayers
    return family.residual, family.sublayers

"""A causal language model with its blocks, final norm and head found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscale.errors import unknown_name
from depthscale.probing.errors import ProbingError
from depthscale.probing.families import FAMILIES, ResidualKind, SublayerPaths, residual_of

#: What ``--norm-path`` says of a model without a final norm.
NO_NORM = "none"


@dataclass(frozen=True)
class LocatedModel:
    """Where the depth of a model is.

    Attributes:
        model: the whole causal language model, token ids to logits.
        base: the part of it that runs every block and stops before the head; the model itself where it is not known.
        blocks: distinct blocks in physical order. One forward pass may visit a block several times.
        block_names: their dotted names in ``model``.
        final_norm: before the head; None for a model that has none.
        output_projection: between final norm and head (OPT-350m); None for most.
        head: hidden state to logits.
        embedding: token ids to vectors.
        family: name of the architecture, ``custom`` where paths were given.
        residual: what a block does with the stream.
        sublayers: how attention and MLP are told apart; None where that is not known.
        softcap: c where logits become c tanh(logits / c); None for most.
        copy_states: keep copies of states, since the model writes into them afterwards.
        num_visits: N, where a pass was looked at.
    """

    model: nn.Module
    base: nn.Module
    blocks: tuple[nn.Module, ...]
    block_names: tuple[str, ...]
    final_norm: nn.Module | None
    output_projection: nn.Module | None
    head: nn.Module
    embedding: nn.Module
    family: str
    residual: ResidualKind
    sublayers: SublayerPaths | None
    softcap: float | None = None
    copy_states: bool = False
    num_visits: int | None = None

    @property
    def num_blocks(self) -> int:
        """K: distinct blocks."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """Size of a state, by the config; by the embedding where that names none."""
        config = getattr(self.model, "config", None)
        size = None if config is None else getattr(config.get_text_config(), "hidden_size", None)
        if size is not None:
            return int(size)
        return int(next(self.embedding.parameters()).shape[1])

    @property
    def num_embeddings(self) -> int:
        """Token ids that have a vector."""
        return int(next(self.embedding.parameters()).shape[0])

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return next(self.embedding.parameters()).device

    def head_input(self, state: Tensor) -> Tensor:
        """A raw state through the final norm and the output projection: what the head reads."""
        if self.final_norm is not None:
            state = self.final_norm(state)
        return state if self.output_projection is None else self.output_projection(state)

    def logits(self, state: Tensor) -> Tensor:
        """A raw state, ``[..., width]``, to logits ``[..., vocabulary]``. Whole logits: chunk the tokens before."""
        logits: Tensor = self.head(self.head_input(state))
        return self.capped(logits)

    def capped(self, logits: Tensor) -> Tensor:
        """What the model does to logits after its head; it acts on each entry alone."""
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def locate(
    model: nn.Module,
    blocks_path: str | None = None,
    norm_path: str | None = None,
    head_path: str | None = None,
) -> LocatedModel:
    """Find the parts by the table of families, or by the paths given.

    Args:
        model: a causal language model.
        blocks_path: dotted name of the ModuleList of blocks; several, or single blocks, parted by commas and in
            physical order. Given, it overrides the table.
        norm_path: dotted name of the final norm, or ``none``; needed with ``blocks_path``.
        head_path: dotted name of the head; by default the model's own output embedding.

    Raises:
        ProbingError: an unknown architecture without paths, an encoder, or a path that leads nowhere. A final norm
            that was not found is never taken to be the identity.
    """
    config = getattr(model, "config", None)
    _refuse_encoders(config)
    if blocks_path is None:
        model_type = getattr(config, "model_type", type(model).__name__)
        if norm_path is not None or head_path is not None:
            raise ProbingError("--norm-path and --head-path go with --blocks-path; name the blocks too")
        if model_type not in FAMILIES:
            raise ProbingError(
                f"{unknown_name('architecture', model_type, FAMILIES)}. Name its parts with --blocks-path, --norm-path"
                f" ('{NO_NORM}' where it has none) and --head-path, such as --blocks-path model.layers --norm-path"
                " model.norm --head-path lm_head"
            )
        return _by_family(model, config, model_type)
    if norm_path is None:
        raise ProbingError(
            f"--blocks-path came without --norm-path; name the norm before the head, or '{NO_NORM}' for a model"
            " that has none"
        )
    return _by_paths(model, config, blocks_path, norm_path, head_path)


def _by_family(model: nn.Module, config: Any, model_type: str) -> LocatedModel:
    family = FAMILIES[model_type]
    base = part(model, family.base)
    blocks = part(model, family.blocks)
    residual, sublayers = residual_of(family, config)
    text_config = config.get_text_config()
    return LocatedModel(
        model=model,
        base=base,
        blocks=tuple(blocks.children()),
        block_names=tuple(f"{family.blocks}.{name}" for name, _ in blocks.named_children()),
        final_norm=_declared_part(model, family.final_norm),
        output_projection=None if family.output_projection is None else _declared_part(model, family.output_projection),
        head=output_embedding(model),
        embedding=model.get_input_embeddings(),  # type: ignore[operator]
        family=family.name,
        residual=residual,
        sublayers=sublayers,
        softcap=getattr(text_config, "final_logit_softcapping", None),
    )


def _by_paths(model: nn.Module, config: Any, blocks_path: str, norm_path: str, head_path: str | None) -> LocatedModel:
    names: list[str] = []
    for path in (piece.strip() for piece in blocks_path.split(",")):
        found = part(model, path, "--blocks-path")
        if isinstance(found, nn.ModuleList | nn.Sequential):
            names += [f"{path}.{name}" for name, _ in found.named_children()]
        else:
            names.append(path)
    if not names:
        raise ProbingError(f"--blocks-path {blocks_path} holds no block; expected a ModuleList with at least one")
    head = output_embedding(model) if head_path is None else part(model, head_path, "--head-path")
    text_config = None if config is None else config.get_text_config()
    return LocatedModel(
        model=model,
        base=_base_of(model),
        blocks=tuple(part(model, name) for name in names),
        block_names=tuple(names),
        final_norm=None if norm_path == NO_NORM else part(model, norm_path, "--norm-path"),
        output_projection=None,
        head=head,
        embedding=input_embedding(model),
        family="custom",
        residual="unknown",
        sublayers=None,
        softcap=getattr(text_config, "final_logit_softcapping", None),
    )


def _declared_part(model: nn.Module, path: str) -> nn.Module | None:
    """The submodule at a path that the architecture has; None where its attribute is None.

    Raises:
        ProbingError: the attribute itself is missing, so that the table does not fit this model.
    """
    parent, _, name = path.rpartition(".")
    holder = part(model, parent)
    if not hasattr(holder, name):
        raise ProbingError(
            f"{type(model).__name__} has no '{path}' in this version of transformers; name its parts with"
            " --blocks-path and --norm-path"
        )
    return optional_part(model, path)


def part(model: nn.Module, path: str, option: str | None = None) -> nn.Module:
    """The submodule at a dotted path.

    Raises:
        ProbingError: there is none; names the option that gave the path.
    """
    found = optional_part(model, path)
    if found is None:
        source = f"{option} {path}" if option else f"part '{path}'"
        names = ", ".join(name for name, _ in model.named_children())
        raise ProbingError(f"{source} leads to no module of {type(model).__name__}; its parts begin with: {names}")
    return found


def optional_part(model: nn.Module, path: str) -> nn.Module | None:
    """The submodule at a dotted path, or None where an attribute on the way is missing or None."""
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            return None
    return found if isinstance(found, nn.Module) else None


def output_embedding(model: nn.Module) -> nn.Module:
    """The head by the model's own word.

    Raises:
        ProbingError: it names none.
    """
    found = _ask(model, "get_output_embeddings")
    if found is None:
        raise ProbingError(f"{type(model).__name__} names no head of its own; name it with --head-path")
    return found


def input_embedding(model: nn.Module) -> nn.Module:
    """The token embedding by the model's own word, else its first ``nn.Embedding``.

    Raises:
        ProbingError: there is none.
    """
    found = _ask(model, "get_input_embeddings")
    if found is None:
        found = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    if found is None:
        raise ProbingError(f"{type(model).__name__} has no token embedding; expected a language model over token ids")
    return found


def _ask(model: nn.Module, method: str) -> nn.Module | None:
    ask: Callable[[], Any] | None = getattr(model, method, None)
    try:
        found = None if ask is None else ask()
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Module) else None


def _base_of(model: nn.Module) -> nn.Module:
    prefix = getattr(model, "base_model_prefix", "")
    found = getattr(model, prefix, None) if prefix else None
    return found if isinstance(found, nn.Module) else model


def _refuse_encoders(config: Any) -> None:
    model_type = getattr(config, "model_type", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ProbingError(
            f"'{model_type}' is an encoder with a decoder; expected a decoder-only causal language model"
        )
    if model_type is None or model_type in FAMILIES:
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise ProbingError(
            f"'{model_type}' is an encoder, whose tokens see those after them; expected a causal language model"
        )

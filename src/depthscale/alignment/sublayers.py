"""Which parameters form one physical sublayer, and which calls count as its visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from depthscale.alignment.errors import AlignmentError
from depthscale.nn import LoopedLMForCausalLM

SublayerKind = Literal["attention", "mlp", "norm", "other"]


@dataclass(frozen=True)
class Sublayer:
    """Parameters that are treated as one vector.

    Attributes:
        name: how reports name it.
        kind: ``norm`` holds gains, which are reported apart and enter no maximum over sublayers.
        members: names of parameters; one tuple for a shared sublayer, whose calls are its visits. Several tuples of
            parameters of the same shapes for an untied one, where each is a visit (or as many as it has calls).
        relative_branch: beta * epsilon / alpha, the unit of the maxima; None where no rule was applied.
    """

    name: str
    kind: SublayerKind
    members: tuple[tuple[str, ...], ...]
    relative_branch: float | None = None

    def __post_init__(self) -> None:
        if not self.members or not all(self.members) or len({len(member) for member in self.members}) != 1:
            raise AlignmentError(
                f"sublayer '{self.name}' came with members {self.members!r}; expected one or more lists of parameters,"
                " equally many in each"
            )

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters."""
        return tuple(name for member in self.members for name in member)


def looped_sublayers(model: LoopedLMForCausalLM, num_blocks: int | None = None) -> tuple[Sublayer, ...]:
    """Attention (q, k, v, o), MLP and norm gains of every block, in the order of the blocks.

    Args:
        model: any looped or stacked model of this package.
        num_blocks: K of the looped model that a stacked one is compared with: blocks whose index is the same modulo
            K become one sublayer, so that the untied control is measured as if it were tied. None keeps each block.

    Raises:
        AlignmentError: ``num_blocks`` does not divide the model's blocks.
    """
    blocks = list(model.model.blocks)
    period = len(blocks) if num_blocks is None else num_blocks
    if period < 1 or len(blocks) % period:
        raise AlignmentError(f"num_blocks came as {num_blocks} for {len(blocks)} blocks; expected a divisor")
    scales = [model.config.residual_scales[segment] for segment in model.config.block_segments]
    sublayers = []
    for first in range(period):
        indices = range(first, len(blocks), period)
        unit = scales[first]["gain"] * scales[first]["branch"] / scales[first]["skip"]
        parts = [_parts(blocks[index], f"model.blocks.{index}") for index in indices]
        for kind in parts[0]:
            sublayers.append(Sublayer(f"block{first}.{kind}", kind, tuple(part[kind] for part in parts), unit))
    return tuple(sublayers)


def block_names(model: LoopedLMForCausalLM) -> tuple[str, ...]:
    """Names of the blocks: each is called as a whole, so that recording it takes one hook a visit, not one a matrix."""
    return tuple(f"model.blocks.{index}" for index in range(len(model.model.blocks)))


def module_sublayers(module: nn.Module, names: Sequence[str], kind: SublayerKind = "other") -> tuple[Sublayer, ...]:
    """One sublayer for each named part of a foreign module: its weights of two or more dimensions.

    Raises:
        AlignmentError: a part does not exist or owns no such weight.
    """
    sublayers = []
    for name in names:
        found = tuple(key for key, p in module.named_parameters() if key.startswith(f"{name}.") and p.ndim >= 2)
        if not found:
            raise AlignmentError(f"module has no matrices under '{name}'; expected the name of one of its parts")
        sublayers.append(Sublayer(name, kind, (found,)))
    return tuple(sublayers)


def _parts(block: nn.Module, prefix: str) -> dict[SublayerKind, tuple[str, ...]]:
    parts: dict[SublayerKind, list[str]] = {"attention": [], "mlp": [], "norm": []}
    for name, part in block.named_modules():
        owned = [f"{prefix}.{name}.{key}" for key, _ in part.named_parameters(recurse=False)]
        if isinstance(part, nn.RMSNorm):
            parts["norm"] += owned
        elif name.startswith("attention"):
            parts["attention"] += owned
        else:
            parts["mlp"] += owned
    return {kind: tuple(names) for kind, names in parts.items()}

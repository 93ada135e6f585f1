"""The DeepLoop paper's loss table, and the settings of its runs that a recipe can be held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SOURCE = "DeepLoop, arXiv 2607.13491, final validation loss; one seed"


@dataclass(frozen=True)
class PaperSize:
    """One size of the paper's models.

    Attributes:
        name: the paper's word.
        num_blocks, hidden_size: K and width.
        nominal_parameters: what models of GPT-2's small and medium shape are said to have.
        losses: nats per token by (arm, R).
    """

    name: str
    num_blocks: int
    hidden_size: int
    nominal_parameters: float
    losses: Mapping[tuple[str, int], float]

    @property
    def rounds(self) -> list[int]:
        """Every R of the table."""
        return sorted({rounds for _, rounds in self.losses})

    def rule_gains(self) -> dict[int, float]:
        """Loss of ``pre`` less that of ``deeploop`` at each R above 1: what a study has to resolve."""
        return {r: self.losses["pre", r] - self.losses["deeploop", r] for r in self.rounds if r > 1}


#: Arms of the table: placement and rule as a run's result says them.
ARMS: Mapping[str, tuple[str, str]] = MappingProxyType({"pre": ("pre", "unscaled"), "deeploop": ("post", "deeploop")})


SIZES: tuple[PaperSize, ...] = (
    PaperSize(
        "small",
        12,
        768,
        124e6,
        {
            ("pre", 1): 2.8627, ("pre", 3): 2.8077, ("pre", 5): 2.7910, ("pre", 7): 2.7700,
            ("deeploop", 1): 2.8631, ("deeploop", 3): 2.7917, ("deeploop", 5): 2.7679, ("deeploop", 7): 2.7514,
        },
    ),
    PaperSize(
        "medium",
        24,
        1024,
        350e6,
        {
            ("pre", 1): 2.6253, ("pre", 3): 2.5779, ("pre", 5): 2.5640, ("pre", 7): 2.5558,
            ("deeploop", 1): 2.6264, ("deeploop", 3): 2.5627, ("deeploop", 5): 2.5444, ("deeploop", 7): 2.5280,
        },
    ),
)  # fmt: skip


def paper_size(num_blocks: int, hidden_size: int) -> PaperSize | None:
    """The size with so many blocks of that width, or None where the paper has none.

    Example:
        >>> paper_size(12, 768).name, paper_size(2, 64)
        ('small', None)
    """
    return next((size for size in SIZES if (size.num_blocks, size.hidden_size) == (num_blocks, hidden_size)), None)


def paper_arm(model: Mapping[str, Any]) -> str | None:
    """The table's arm that a ``model`` (its ``norm_placement`` and ``rule``) is, or None."""
    found = (model.get("norm_placement", "pre"), model.get("rule", "unscaled"))
    return next((arm for arm, what in ARMS.items() if what == found), None)

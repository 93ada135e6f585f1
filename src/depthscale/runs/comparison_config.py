"""The comparisons that a study names before it runs: which cells, on what terms."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from pydantic import Field, PositiveInt, model_validator

from depthscale.runs.config_part import ConfigPart

Terms = Literal["same_parameters", "equal_tokens", "equal_flops", "equal_time"]


class CellKey(NamedTuple):
    """One cell of a study: an arm at a number of rounds, and which budget where the study has several."""

    arm: str
    rounds: int
    budget: int | None = None


class CellName(ConfigPart):
    """A cell as a study file names it, at whatever budget."""

    arm: str
    rounds: PositiveInt


class MatchConfig(ConfigPart):
    """An arm spends what a cell of another arm spends: its steps follow from that.

    Attributes:
        spend: ``flops``, training FLOPs counted exactly from both shapes; or ``time``, seconds of training from a
            probe of both on this machine, made before the study is written.
        arm, rounds: the cell whose spending is matched.
    """

    spend: Literal["flops", "time"]
    arm: str
    rounds: PositiveInt


class ComparisonConfig(ConfigPart):
    """``[[study.comparisons]]``: side ``a`` against side ``b`` on stated terms.

    Where a side lists several cells, they are shapes of which the best stands for the side: the one of the smallest
    mean loss on the tuning split, which the report split has no part in.

    Attributes:
        terms: ``same_parameters``: the same parameters and training FLOPs, so that the side of fewer FLOPs per token
            trains longer. ``equal_tokens``: the same tokens, whatever the FLOPs. ``equal_flops``: the same training
            FLOPs, each side at its best shape. ``equal_time``: the same measured seconds of training.
        a, b: cells of each side.
    """

    terms: Terms
    a: tuple[CellName, ...] = Field(min_length=1)
    b: tuple[CellName, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sides_differ(self) -> Self:
        shared = [f"{cell.arm} at R = {cell.rounds}" for cell in self.a if cell in self.b]
        if shared:
            raise ValueError(f"{', '.join(shared)} stands on both sides of a comparison; name it on one")
        return self

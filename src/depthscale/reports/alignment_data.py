"""An alignment study's result as its report reads it: which arms are drawn together, and one curve of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscale.runs.results import read_result

KIND = "alignment_study"

#: Fewer rounds than this make no curve.
_MIN_ROUNDS = 3

#: What an arm shares with the base arm to be drawn beside it.
_SHARED = ("num_blocks", "hidden_size", "num_attention_heads", "mlp", "optimizer", "tokens", "lr")


@dataclass(frozen=True)
class AlignmentData:
    """The result and how its arms belong together."""

    result: Mapping[str, Any]

    @property
    def arms(self) -> list[Mapping[str, Any]]:
        """All arms, in the study's order."""
        return list(self.result["arms"])

    @property
    def rules(self) -> list[Mapping[str, Any]]:
        """Looped arms that differ from the base by rule and placement alone, without the grid of exponents."""
        return [arm for arm in self._curves("looped") if arm["rule"] != "power"]

    @property
    def exponents(self) -> list[Mapping[str, Any]]:
        """Looped arms of the grid of exponents that no named rule stands for."""
        return [arm for arm in self._curves("looped") if arm["rule"] == "power"]

    def untied(self, arm: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The control with blocks of its own for every visit, under the same rule and placement."""
        keys = ("rule", "rule_arguments", "norm_placement")
        return next((a for a in self._curves("stacked") if all(a[key] == arm[key] for key in keys)), None)

    @property
    def batch_rows(self) -> int:
        """The smallest batch, on which everything was measured."""
        return min(condition["batch_rows"] for condition in self.result["conditions"])

    def steps(self, arm: str) -> list[int]:
        """Steps at which an arm was measured."""
        return sorted({c["step"] for c in self.result["conditions"] if c["arm"] == arm})

    @property
    def stages(self) -> list[int]:
        """The first step and the last that all rules share; a single one where nothing was trained."""
        shared = set.intersection(*(set(self.steps(arm["name"])) for arm in self.rules)) if self.rules else {0}
        return list(dict.fromkeys([min(shared), max(shared)])) if shared else []

    def condition(
        self, arm: str, step: int, batch_rows: int | None = None, gradient_of: str = "loss"
    ) -> Mapping[str, Any] | None:
        """What was measured of an arm at a step, on the smallest batch unless another is given."""
        wanted = (arm, step, batch_rows or self.batch_rows, gradient_of)
        return next(
            (
                c
                for c in self.result["conditions"]
                if (c["arm"], c["step"], c["batch_rows"], c["gradient_of"]) == wanted
            ),
            None,
        )

    def of_loss(self) -> list[Mapping[str, Any]]:
        """Conditions with G of the loss, arm by arm."""
        return [c for c in self.result["conditions"] if c["gradient_of"] == "loss"]

    def by_arm(self, conditions: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Conditions grouped by arm, in their order."""
        return [(arm, list(found)) for arm, found in itertools.groupby(conditions, key=lambda c: str(c["arm"]))]

    def _curves(self, plan_kind: str) -> list[Mapping[str, Any]]:
        base = next((arm for arm in self.arms if arm["name"] == self.result["base"]), self.arms[0])
        return [
            arm
            for arm in self.arms
            if arm["plan_kind"] == plan_kind
            and len(arm["rounds"]) >= _MIN_ROUNDS
            and all(arm[key] == base[key] for key in _SHARED)
        ]


def read_alignment_data(directory: Path) -> AlignmentData:
    """The result of a study directory.

    Raises:
        ResultError: it is missing or damaged.
    """
    return AlignmentData(read_result(directory, KIND))

"""What a student looks like: K blocks visited R times, of first or second order, under a residual rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from depthscale.plan import DepthPlan
from depthscale.residual import GroupScales, apply_rule, require_placement


@dataclass(frozen=True)
class StudentShape:
    """K blocks times R rounds.

        order 1   x <- x + epsilon f(x)
        order 2   x <- x + epsilon f_2(x + epsilon f_1(x) / 2)      the midpoint rule, two MLPs a block

    Attributes:
        blocks: K, distinct blocks.
        rounds: R; 1 for a plain student.
        order: 1 or 2.
        rule: residual rule by name; the toy's blocks are pre-norm, so only rules of the branch fit.
        rule_arguments: the rule's own.

    Raises:
        PlanError: no such rule, or one that a pre-norm block would ignore.

    Example:
        >>> StudentShape(blocks=2, rounds=3).depth, StudentShape(blocks=3, order=2).num_mlps
        (6, 6)
    """

    blocks: int
    rounds: int = 1
    order: int = 1
    rule: str = "unscaled"
    rule_arguments: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_placement(apply_rule(self.rule, self._plan.counts(), self.rule_arguments), "pre")

    @property
    def depth(self) -> int:
        """N = K R, blocks visited; a second-order block counts once."""
        return self.blocks * self.rounds

    @property
    def num_mlps(self) -> int:
        """Distinct MLPs."""
        return self.blocks * self.order

    @property
    def schedule(self) -> tuple[int, ...]:
        """The block of each visit."""
        return tuple(self._plan.schedule)

    @cached_property
    def scales(self) -> GroupScales:
        """What the rule answers."""
        return apply_rule(self.rule, self._plan.counts(), self.rule_arguments).groups[0]

    @property
    def _plan(self) -> DepthPlan:
        return DepthPlan.looped(self.blocks, self.rounds)

    def num_parameters(self, width: int, hidden: int) -> int:
        """Weights of the blocks, without a head.

        Example:
            >>> StudentShape(blocks=2).num_parameters(width=32, hidden=128)
            16640
        """
        return self.num_mlps * (2 * width * hidden + hidden)

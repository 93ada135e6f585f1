"""Depth as visits: which block is called when, and which calls carry gradient.

A forward pass visits physical blocks in some order. Parameters are paid once per block; compute, cache
and depth are paid once per visit; a block's gradient is the sum over its visits.

    K  ``num_blocks``             distinct blocks
    R  ``num_rounds``             rounds of the looped part
    N  ``unrolled_depth``         block visits in one forward pass (N = K * R when every block loops)
    M  ``num_sublayer_visits``    residual-sublayer visits, 2 * N (attention and MLP)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthscale.errors import PlanError, unknown_name

SUBLAYERS_PER_BLOCK = 2


@dataclass(frozen=True)
class Segment:
    """Consecutive blocks that are visited in order, the whole run of them ``rounds`` times.

    Attributes:
        blocks: number of distinct blocks, at least 1.
        rounds: number of times the run of blocks is visited, at least 1.
        inject: add the segment's input to the stream again before every round after the first.
        grad_rounds: only the last ``grad_rounds`` rounds carry gradient (truncated backpropagation);
            None means all of them.
        fixed: the segment keeps its rounds under :meth:`DepthPlan.with_rounds` (a prelude or a coda).
    """

    blocks: int
    rounds: int = 1
    inject: bool = False
    grad_rounds: int | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        _require_count("blocks", self.blocks)
        _require_count("rounds", self.rounds)
        if self.grad_rounds is not None:
            _require_count("grad_rounds", self.grad_rounds)
        for name in ("inject", "fixed"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"{name} came as {getattr(self, name)!r}; expected true or false")

    @property
    def num_gradient_rounds(self) -> int:
        """Rounds whose visits carry gradient, at most ``rounds``."""
        return self.rounds if self.grad_rounds is None else min(self.grad_rounds, self.rounds)


@dataclass(frozen=True)
class Visit:
    """One call of one block: its index, the round within its segment (from 0), and whether it carries gradient."""

    block: int
    round: int
    carries_gradient: bool


@dataclass(frozen=True)
class VisitGroup:
    """Blocks that are visited equally often.

    Attributes:
        name: how reports name the group.
        num_blocks: distinct blocks in the group.
        num_visits: forward visits of *each* block.
        num_gradient_visits: those of them that carry gradient, 0 to ``num_visits``.
    """

    name: str
    num_blocks: int
    num_visits: int
    num_gradient_visits: int

    def __post_init__(self) -> None:
        _require_count("num_blocks", self.num_blocks)
        _require_count("num_visits", self.num_visits)
        if not 0 <= self.num_gradient_visits <= self.num_visits:
            raise PlanError(
                f"group '{self.name}' has {self.num_gradient_visits} gradient visits;"
                f" expected 0 to its {self.num_visits} visits"
            )


@dataclass(frozen=True)
class VisitCounts:
    """All that a residual rule needs to know of a model: its groups and how often each is visited.

    A plan gives it by :meth:`DepthPlan.counts`; a model that is no plan (a hierarchical reasoner, a foreign
    module) gives it by hand or by tracing.

    Example:
        >>> counts = VisitCounts((VisitGroup("slow", 4, 1, 1), VisitGroup("fast", 4, 3, 3)))
        >>> counts.unrolled_depth, counts.gradient_depth, counts.num_blocks
        (16, 16, 8)
    """

    groups: tuple[VisitGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise PlanError("VisitCounts came without groups; expected at least one VisitGroup")
        if self.gradient_depth == 0:
            raise PlanError("no visit carries gradient; expected at least one group with gradient visits")

    @property
    def num_blocks(self) -> int:
        """K: distinct blocks over all groups."""
        return sum(group.num_blocks for group in self.groups)

    @property
    def unrolled_depth(self) -> int:
        """N: block visits in one forward pass."""
        return sum(group.num_blocks * group.num_visits for group in self.groups)

    @property
    def gradient_depth(self) -> int:
        """Block visits that carry gradient; equals N unless backpropagation is truncated."""
        return sum(group.num_blocks * group.num_gradient_visits for group in self.groups)

    @property
    def num_gradient_sublayer_visits(self) -> int:
        """M_g: residual-sublayer visits that carry gradient, 2 per block visit."""
        return SUBLAYERS_PER_BLOCK * self.gradient_depth


@dataclass(frozen=True)
class DepthPlan:
    """A model's depth: a tuple of segments, run one after the other.

    Blocks are numbered 0 … K-1 in the order of the segments; no block belongs to two segments.

    Example:
        >>> plan = DepthPlan.looped(blocks=2, rounds=3)
        >>> plan.schedule
        (0, 1, 0, 1, 0, 1)
        >>> plan.num_blocks, plan.num_rounds, plan.unrolled_depth, plan.num_sublayer_visits
        (2, 3, 6, 12)
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments:
            raise PlanError("a plan came without segments; expected at least one Segment")

    # -- the usual shapes ---------------------------------------------------------------------------

    @classmethod
    def stacked(cls, blocks: int) -> DepthPlan:
        """An ordinary transformer: every block once."""
        return cls((Segment(blocks),))

    @classmethod
    def looped(
        cls,
        blocks: int,
        rounds: int,
        *,
        prelude: int = 0,
        coda: int = 0,
        inject: bool = False,
        grad_rounds: int | None = None,
    ) -> DepthPlan:
        """``blocks`` visited ``rounds`` times as a whole, between ``prelude`` and ``coda`` blocks visited once.

        Source: DeepLoop, arXiv 2607.13491 (the whole stack loops, prelude = coda = 0).
        """
        middle = Segment(blocks, rounds, inject=inject, grad_rounds=grad_rounds)
        before = (Segment(prelude, fixed=True),) if prelude else ()
        after = (Segment(coda, fixed=True),) if coda else ()
        return cls((*before, middle, *after))

    @classmethod
    def middle_loop(cls, layers: int, rounds: int = 2) -> DepthPlan:
        """The middle half of ``layers`` blocks looped as one span.

        The span holds m = layers // 2 blocks, after (layers - m) // 2 blocks visited once; 1-based spans are
        3-7, 4-9, 6-15 and 8-22 for 10, 12, 20 and 30 layers.

        Source: SMELT, arXiv 2609.01343.

        Example:
            >>> [segment.blocks for segment in DepthPlan.middle_loop(12).segments]
            [3, 6, 3]
        """
        _require_count("layers", layers)
        if layers < 3:
            raise PlanError(f"middle_loop came with {layers} layers; expected at least 3 (one before, one after)")
        span = layers // 2
        prelude = (layers - span) // 2
        return cls.looped(span, rounds, prelude=prelude, coda=layers - span - prelude)

    @classmethod
    def each_repeated(cls, blocks: int, rounds: int) -> DepthPlan:
        """Every block ``rounds`` times in place (0 0 1 1 …), the other way to spend K * R visits."""
        _require_count("blocks", blocks)
        return cls(tuple(Segment(1, rounds) for _ in range(blocks)))

    # -- what follows from the segments -------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """K: distinct blocks."""
        return sum(segment.blocks for segment in self.segments)

    @property
    def num_rounds(self) -> int:
        """R: the most rounds any segment makes."""
        return max(segment.rounds for segment in self.segments)

    @property
    def unrolled_depth(self) -> int:
        """N: block visits in one forward pass."""
        return sum(segment.blocks * segment.rounds for segment in self.segments)

    @property
    def num_sublayer_visits(self) -> int:
        """M: residual-sublayer visits, 2 * N."""
        return SUBLAYERS_PER_BLOCK * self.unrolled_depth

    @property
    def visits(self) -> tuple[Visit, ...]:
        """Every block call in order."""
        visits: list[Visit] = []
        first_block = 0
        for index, segment in enumerate(self.segments):
            reached = self._gradient_reaches(index)
            first_gradient_round = segment.rounds - segment.num_gradient_rounds
            visits += [
                Visit(first_block + offset, round_, reached and round_ >= first_gradient_round)
                for round_ in range(segment.rounds)
                for offset in range(segment.blocks)
            ]
            first_block += segment.blocks
        return tuple(visits)

    @property
    def schedule(self) -> tuple[int, ...]:
        """The block of each visit."""
        return tuple(visit.block for visit in self.visits)

    def counts(self) -> VisitCounts:
        """Visits per segment, the input of every residual rule."""
        return VisitCounts(
            tuple(
                VisitGroup(
                    name=f"segment{index}",
                    num_blocks=segment.blocks,
                    num_visits=segment.rounds,
                    num_gradient_visits=segment.num_gradient_rounds if self._gradient_reaches(index) else 0,
                )
                for index, segment in enumerate(self.segments)
            )
        )

    def with_rounds(self, rounds: int) -> DepthPlan:
        """The same blocks with every segment that is not ``fixed`` visited ``rounds`` times."""
        _require_count("rounds", rounds)
        if all(segment.fixed for segment in self.segments):
            raise PlanError("every segment of this plan is fixed; expected one whose rounds may change")
        return DepthPlan(tuple(s if s.fixed else dataclasses.replace(s, rounds=rounds) for s in self.segments))

    def _gradient_reaches(self, index: int) -> bool:
        """Whether gradient comes back past the segments after ``index``.

        A later segment that truncates backpropagation detaches its stream; gradient then reaches the blocks
        before it only if the segment adds its input again in a round that carries gradient.
        """
        return all(later.num_gradient_rounds == later.rounds or later.inject for later in self.segments[index + 1 :])

    # -- plain data ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that :meth:`from_dict` reads back."""
        return {"segments": [dataclasses.asdict(segment) for segment in self.segments]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DepthPlan:
        """Read what :meth:`to_dict` wrote.

        Raises:
            PlanError: a key is unknown or missing, or a value is out of range.
        """
        for key in data:
            if key != "segments":
                raise PlanError(unknown_name("plan key", key, ["segments"]))
        segments = data.get("segments")
        if not isinstance(segments, Sequence) or isinstance(segments, str):
            raise PlanError(f"plan came with segments = {segments!r}; expected a list of segments")
        known = [field.name for field in dataclasses.fields(Segment)]
        for segment in segments:
            if not isinstance(segment, Mapping):
                raise PlanError(f"plan segment came as {segment!r}; expected a table with blocks and rounds")
            for key in segment:
                if key not in known:
                    raise PlanError(unknown_name("segment key", str(key), known))
            if "blocks" not in segment:
                raise PlanError(f"plan segment {dict(segment)!r} has no 'blocks'; expected their number")
        return cls(tuple(Segment(**segment) for segment in segments))

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> DepthPlan:
        """Read what :meth:`to_json` wrote."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"plan is not JSON ({error}); expected what DepthPlan.to_json writes") from error
        if not isinstance(data, Mapping):
            raise PlanError(f"plan JSON holds {data!r}; expected an object with 'segments'")
        return cls.from_dict(data)


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} came as {value!r}; expected a whole number of at least 1")

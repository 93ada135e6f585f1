"""Interventions as replacements of visits: remove, repeat, swap, drop with rescaling, loop.

    remove      h -> h                                    for each visit of a span
    repeat      h -> B_b(... B_a(B_b(... B_a(h))))        the span a ... b once more, right after itself
    swap        visit a applies the block of b, visit b that of a; two spans of one length likewise, in order
    drop        h -> h for the dropped; h + n / (n - k) * (B(h) - h) for the kept of the n in a group
    loop        the span a ... b in R rounds, every update in it times a branch scale

An intervention is plain data, so that a result file can hold it; :func:`replacements` makes it act.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from depthscale.probing.errors import ProbingError
from depthscale.probing.replacing import Call, Replacement

Kind = Literal["remove", "repeat", "swap", "drop", "drop_rescaled", "loop"]


@dataclass(frozen=True)
class Intervention:
    """What is done.

    Attributes:
        kind: see the module.
        visits: a span in order; the two that are swapped, or two spans one after the other; the dropped ones.
        group: all visits that the dropped were drawn from, for rescaling.
        rounds: R of a loop, 1 for the span as it is.
        branch_scale: of every update in a loop.
        draw: number of a random choice.
    """

    kind: Kind
    visits: tuple[int, ...]
    group: tuple[int, ...] = ()
    rounds: int = 1
    branch_scale: float = 1.0
    draw: int = 0

    @property
    def key(self) -> str:
        """A name that no other intervention has.

        Example:
            >>> Intervention("loop", (3, 4), rounds=2, branch_scale=0.5).key
            'loop/3-4/2/0.5/0'
        """
        named = "-".join(map(str, self.visits))
        if self.group:
            named += f"/of-{self.group[0]}-{self.group[-1]}-{len(self.group)}"
        return f"{self.kind}/{named}/{self.rounds}/{self.branch_scale:g}/{self.draw}"

    @property
    def is_single(self) -> bool:
        """One visit, or one swapped with one other."""
        return len(self.visits) == (2 if self.kind == "swap" else 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def replacements(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    """What :func:`depthscale.probing.replacing.replaced` needs.

    Args:
        intervention: what is done.
        calls: the visits of an unchanged pass over the same text.

    Raises:
        ProbingError: it names a visit that does not exist, or drops a whole group with rescaling.
    """
    known = range(len(calls))
    for visit in (*intervention.visits, *intervention.group):
        if visit not in known:
            raise ProbingError(f"visit {visit} came for an intervention; expected 0 to {len(calls) - 1}")
    if not intervention.visits:
        return {}
    return _BUILDERS[intervention.kind](intervention, calls)


def _remove(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    return dict.fromkeys(intervention.visits, _stay)


def _repeat(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    span = [calls[visit] for visit in intervention.visits]

    def again(entered: Tensor, left: Tensor) -> Tensor:
        for call in span:
            left = call.apply(left)
        return left

    return {intervention.visits[-1]: again}


def _swap(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    half, odd = divmod(len(intervention.visits), 2)
    if odd:
        raise ProbingError(f"{len(intervention.visits)} visits came to be swapped; expected two spans of one length")

    def applying(call: Call) -> Replacement:
        return lambda entered, left: call.apply(entered)

    first, second = intervention.visits[:half], intervention.visits[half:]
    return {visit: applying(calls[other]) for visit, other in zip((*first, *second), (*second, *first), strict=True)}


def _drop(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    return dict.fromkeys(intervention.visits, _stay)


def _drop_rescaled(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    kept = [visit for visit in intervention.group if visit not in intervention.visits]
    if not kept:
        raise ProbingError("every visit of a group was to be dropped; expected one at least to be kept and rescaled")
    scale = len(intervention.group) / len(kept)
    scaled: dict[int, Replacement] = {visit: _scaled(scale) for visit in kept}
    return {**scaled, **_drop(intervention, calls)}


def _loop(intervention: Intervention, calls: Sequence[Call]) -> dict[int, Replacement]:
    span = [calls[visit] for visit in intervention.visits]
    scale = intervention.branch_scale
    found: dict[int, Replacement] = {visit: _scaled(scale) for visit in intervention.visits[:-1]}

    def finish(entered: Tensor, left: Tensor) -> Tensor:
        state = _scaled(scale)(entered, left)
        for _ in range(intervention.rounds - 1):
            for call in span:
                # A copy, since some blocks write into the state that they are given.
                state = _scaled(scale)(state, call.apply(state.clone()))
        return state

    return {**found, intervention.visits[-1]: finish}


def _stay(entered: Tensor, left: Tensor) -> Tensor:
    return entered


def _scaled(scale: float) -> Replacement:
    def replacement(entered: Tensor, left: Tensor) -> Tensor:
        # 1 must leave the very numbers as they were.
        return left if scale == 1.0 else entered + scale * (left - entered)

    return replacement


_BUILDERS = {
    "remove": _remove,
    "repeat": _repeat,
    "swap": _swap,
    "drop": _drop,
    "drop_rescaled": _drop_rescaled,
    "loop": _loop,
}

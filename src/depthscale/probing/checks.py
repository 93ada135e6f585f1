"""What is found out about a model before it is measured: one tiny pass that every assumption is held against."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from depthscale.probing.errors import ProbingError
from depthscale.probing.local_quantities import norm
from depthscale.probing.located import LocatedModel
from depthscale.probing.quantities import require_finite
from depthscale.probing.states import TokenBatch, Visit, VisitStates, base_inputs, run_base, watch_visits

_NUM_TOKENS = 8
#: Rounding of a forward pass, in units of the largest value, for dtypes of so many mantissa bits or fewer.
_TOLERANCES = ((8, 0.1), (11, 0.02), (24, 1e-3), (53, 1e-9))


@dataclass(frozen=True)
class Preflight:
    """What the pass showed.

    Attributes:
        located: the model, with ``copy_states`` and ``num_visits`` filled in and sublayers left out where their parts
            do not add up to the block.
        blocks: block of each visit, N entries.
        injects: visits whose input is not the output of the visit before.
        largest_logit_error: between the model's own logits and those of the last raw state through norm and head.
    """

    located: LocatedModel
    blocks: tuple[int, ...]
    injects: tuple[int, ...]
    largest_logit_error: float


def preflight(located: LocatedModel) -> Preflight:
    """Hold the located parts against the model's own forward pass.

    Raises:
        ProbingError: no block is visited; a state is not finite; tokens see those after them; or the last raw state
            through norm and head does not give the model's own logits, so that norm, head or order of blocks are not
            those of the model.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, located.num_embeddings, (1, _NUM_TOKENS), generator=generator)
    batch = TokenBatch(ids)
    seen = _Versions()
    with watch_visits(located, seen, sublayers=True):
        logits = _own_logits(located, batch)
    if seen.kept.states:
        # In half precision the norm of a finite state may lie beyond the largest number.
        norms = [norm(state.to(torch.promote_types(state.dtype, torch.float32))) for state in seen.kept.states]
        require_finite(torch.stack([size.flatten().cpu() for size in norms]), located)
    if not seen.kept.blocks:
        raise ProbingError("no block was visited in a forward pass; name the modules that run with --blocks-path")
    located = replace(located, copy_states=seen.written(), num_visits=seen.kept.num_visits)
    if located.copy_states:
        seen = _Versions()
        with watch_visits(located, seen, sublayers=True):
            logits = _own_logits(located, batch)
    if not seen.parts_add_up():
        located = replace(located, sublayers=None)
    _require_causal(located, batch, seen.kept)
    error = _logit_error(located, seen.kept.states[-1], logits)
    return Preflight(located, tuple(seen.kept.blocks), tuple(seen.injects), error)


def _own_logits(located: LocatedModel, batch: TokenBatch) -> Tensor:
    inputs = base_inputs(located, batch)
    inputs.pop("use_cache", None)
    with torch.no_grad():
        output = located.model(**inputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise ProbingError(f"{type(located.model).__name__} returned no logits; expected a causal language model")
    return logits


class _Versions:
    """Keeps a pass, and notes whether the model writes into states after it made them."""

    def __init__(self) -> None:
        self.kept = VisitStates()
        self.injects: list[int] = []
        self._versions: list[int] = []
        self._largest_gap = 0.0

    def begin(self, embedding_output: Tensor) -> None:
        self.kept.begin(embedding_output)
        self.injects, self._versions, self._largest_gap = [], [embedding_output._version], 0.0

    def visit(self, visit: Visit) -> None:
        if visit.index and not torch.equal(visit.input, self.kept.states[-1].to(visit.input.device)):
            self.injects.append(visit.index)
        self.kept.visit(visit)
        self._versions.append(visit.output._version)
        if visit.attention is not None and visit.mlp is not None:
            update = visit.output - visit.input
            gap = (visit.attention + visit.mlp - update).abs().max() / visit.output.abs().max().clamp(min=1e-30)
            self._largest_gap = max(self._largest_gap, float(gap))

    def written(self) -> bool:
        states = self.kept.states
        return any(state._version != version for state, version in zip(states, self._versions, strict=True))

    def parts_add_up(self) -> bool:
        return self._largest_gap <= _tolerance(self.kept.states[-1].dtype)


def _require_causal(located: LocatedModel, batch: TokenBatch, kept: VisitStates) -> None:
    """Another last token changes no state before it."""
    ids = batch.input_ids.clone()
    ids[0, -1] = (ids[0, -1] + 1) % located.num_embeddings
    other = VisitStates()
    with watch_visits(located, other):
        run_base(located, TokenBatch(ids))
    before, after = kept.states[-1][:, :-1], other.states[-1][:, :-1]
    # Token by token: beside one state of huge entries, what another sees of the future would pass for rounding.
    moved = (before - after).abs().amax(dim=-1)
    if bool((moved > _tolerance(before.dtype) * before.abs().amax(dim=-1)).any()):
        raise ProbingError(
            f"tokens of {type(located.model).__name__} see those after them (an encoder); expected a causal language"
            " model"
        )


def _logit_error(located: LocatedModel, last_state: Tensor, logits: Tensor) -> float:
    error = float("inf")
    # Parts that do not fit each other do not run either, and each fails in its own way.
    with torch.no_grad(), contextlib.suppress(Exception):
        found = located.logits(last_state).to(logits.device)
        error = float((found - logits).abs().max())
    if not error <= _tolerance(logits.dtype) * max(float(logits.abs().max()), 1e-6):
        raise ProbingError(
            f"the last raw state of {type(located.model).__name__} through norm and head differs from its own logits by"
            f" {error:.3g}; name the right parts with --blocks-path, --norm-path and --head-path"
        )
    return error


def _tolerance(dtype: torch.dtype) -> float:
    mantissa_bits = round(-torch.log2(torch.tensor(torch.finfo(dtype).eps)).item()) + 1
    return next(tolerance for bits, tolerance in _TOLERANCES if mantissa_bits <= bits)

"""What is measured of every token: one pass, all quantities that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscale.errors import unknown_name
from depthscale.probing.catalog import QUANTITIES, names_of
from depthscale.probing.end_quantities import end_quantities
from depthscale.probing.errors import ProbingError
from depthscale.probing.lenses import BlockCall, block_call, last_block_lens_losses, logit_lens_losses
from depthscale.probing.local_quantities import LocalQuantities
from depthscale.probing.located import LocatedModel
from depthscale.probing.states import TokenBatch, Visit, VisitStates, run_base, watch_visits

#: Bytes of states that one micro-batch may keep, unless told otherwise.
STATE_BYTES = 1 << 26


@dataclass(frozen=True)
class TokenQuantities:
    """Values of the tokens of some rows that count, on the CPU.

    Attributes:
        values: name -> ``[layers, tokens]`` in float32 or better. NaN where a zero vector has no angle.
        rows: int64 ``[tokens]``, row of each token in the batch that was given.
        positions: int64 ``[tokens]``, real tokens before it in its row.
        token_ids: int64 ``[tokens]``.
    """

    values: Mapping[str, Tensor]
    rows: Tensor
    positions: Tensor
    token_ids: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens that count."""
        return self.rows.numel()


def measure_tokens(
    located: LocatedModel,
    batch: TokenBatch,
    names: Collection[str],
    state_bytes: int = STATE_BYTES,
) -> Iterator[TokenQuantities]:
    """Run the model over a batch and reduce every state, a micro-batch of rows at a time.

    Local and sublayer quantities are reduced while the model runs and cut nothing; the others keep the states of a
    micro-batch, as many rows as fit into ``state_bytes``, and at least one.

    Args:
        located: the model in evaluation mode.
        batch: rows of tokens.
        names: of :data:`~depthscale.probing.catalog.QUANTITIES`.
        state_bytes: see above.

    Yields:
        The quantities of each micro-batch. Sublayer quantities are left out where they are not known, and
        ``last_block_lens_loss`` where the last block reads something else than the state before it.

    Raises:
        ProbingError: an unknown name, or a state that is not finite.
    """
    for name in names:
        if name not in QUANTITIES:
            raise ProbingError(unknown_name("quantity", name, QUANTITIES))
    keeps_states = any(QUANTITIES[name].group in ("end", "exit") for name in names)
    rows = _rows_per_pass(located, batch, state_bytes) if keeps_states else batch.input_ids.shape[0]
    for start in range(0, batch.input_ids.shape[0], rows):
        part = batch.rows(start, start + rows)
        if bool(part.counted.any()):
            yield _measure(located, part, frozenset(names), keeps_states, start)


def _measure(
    located: LocatedModel, batch: TokenBatch, names: frozenset[str], keeps_states: bool, first_row: int
) -> TokenQuantities:
    recorder = _Recorder(sublayers=bool(names & set(names_of("sublayer"))), keeps_states=keeps_states)
    with watch_visits(located, recorder, recorder.sublayers, recorder.called):
        run_base(located, batch)
    recorder.local.release()
    counted = batch.counted
    flat = counted.flatten().nonzero()[:, 0]
    values: dict[str, Tensor] = {
        name: _select(layers, flat) for name, layers in recorder.local.values.items() if name in names
    }
    norms = values.get("hidden_state_norm", _select(recorder.local.values["hidden_state_norm"], flat))
    require_finite(norms, located)
    if names & set(names_of("end")):
        found = end_quantities(located, recorder.kept.states)
        values |= {name: _select(layers, flat) for name, layers in found.items() if name in names}
    values |= _exit_values(located, batch, recorder, names)
    places = counted.nonzero()
    return TokenQuantities(
        values={name: values[name] for name in QUANTITIES if name in values},
        rows=places[:, 0] + first_row,
        positions=batch.positions[counted],
        token_ids=batch.input_ids[counted],
    )


def _exit_values(
    located: LocatedModel, batch: TokenBatch, recorder: _Recorder, names: frozenset[str]
) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    targets = torch.roll(batch.input_ids, -1, dims=1)
    states = recorder.kept.states
    if "logit_lens_loss" in names:
        losses = logit_lens_losses(located, states, targets, batch.counted)
        values["logit_lens_loss"] = torch.stack([loss.cpu() for loss in losses])
    if "last_block_lens_loss" in names and recorder.last_block_reads_last_state():
        assert recorder.last_call is not None, "a pass visits at least one block"
        losses = last_block_lens_losses(located, states, targets, batch.counted, recorder.last_call)
        values["last_block_lens_loss"] = torch.stack([loss.cpu() for loss in losses])
    return values


class _Recorder:
    """Passes every visit on to what reduces it and, where needed, to what keeps it."""

    def __init__(self, sublayers: bool, keeps_states: bool) -> None:
        self.sublayers = sublayers
        self.keeps_states = keeps_states
        self.local = LocalQuantities(sublayers)
        self.kept = VisitStates()
        self.last_call: BlockCall | None = None

    def called(self, block: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.last_call = block_call(block, args, kwargs) if self.keeps_states else None

    def begin(self, embedding_output: Tensor) -> None:
        self.local.begin(embedding_output)
        if self.keeps_states:
            self.kept.begin(embedding_output)

    def visit(self, visit: Visit) -> None:
        self.local.visit(visit)
        if self.keeps_states:
            # The updates of attention and MLP are reduced already.
            self.kept.visit(Visit(visit.index, visit.block, visit.input, visit.output))

    def last_block_reads_last_state(self) -> bool:
        """Whether h_{N-1} is what the last visit read; a model that injects something before it reads another."""
        entered, before = self.kept.last_input, self.kept.states[-2]
        return entered is not None and torch.equal(entered, before.to(entered.device))


def _select(layers: list[Tensor], flat: Tensor) -> Tensor:
    # One copy to the CPU for each device a layer may lie on.
    return torch.stack([layer[flat.to(layer.device)].cpu() for layer in layers])


def _rows_per_pass(located: LocatedModel, batch: TokenBatch, state_bytes: int) -> int:
    element_size = next(located.blocks[0].parameters()).element_size()
    num_states = 1 + (located.num_visits or located.num_blocks)
    return max(1, state_bytes // (num_states * batch.input_ids.shape[1] * located.width * element_size))


def require_finite(norms: Tensor, located: LocatedModel) -> None:
    """Refuse norms ``[N + 1, tokens]`` of states that are not finite.

    Raises:
        ProbingError: names the first visit and the dtype.
    """
    bad = ~norms.isfinite()
    if bool(bad.any()):
        layer = int(bad.any(dim=1).nonzero()[0, 0])
        place = "the embedding output" if layer == 0 else f"the output of visit {layer}"
        dtype = next(located.blocks[0].parameters()).dtype
        raise ProbingError(
            f"{place} is not finite at {int(bad[layer].sum())} of {bad.shape[1]} tokens in {str(dtype).split('.')[-1]};"
            " use --dtype float32, and check the weights if that does not help"
        )

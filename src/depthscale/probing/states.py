"""Raw states: what enters the first block and what every visit leaves, caught by forward hooks.

    h_0  the input of the first visit: the embedding output, positions and embedding norm included
    h_l  the raw output of visit l, l = 1 ... N, never after the final norm

A block that is visited again is the same module; its hook fires once per visit, so that looped models of any make give
N = number of visits states in the order of their visits.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from depthscale.probing.errors import ProbingError
from depthscale.probing.located import LocatedModel, optional_part


@dataclass(frozen=True)
class TokenBatch:
    """Rows of token ids, padded on either side.

    Attributes:
        input_ids: int64 ``[rows, tokens]``.
        attention_mask: int64 or bool of the same shape, 1 for real tokens; None where none is padding.
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """bool ``[rows, tokens]``: no padding."""
        if self.attention_mask is None:
            return torch.ones_like(self.input_ids, dtype=torch.bool)
        return self.attention_mask.bool()

    @property
    def counted(self) -> Tensor:
        """bool ``[rows, tokens]``: position t counts when t and t + 1 are real tokens."""
        real = self.real
        counted = torch.zeros_like(real)
        counted[:, :-1] = real[:, :-1] & real[:, 1:]
        return counted

    @property
    def positions(self) -> Tensor:
        """int64 ``[rows, tokens]``: real tokens before this one in its row; 0 at padding on the left."""
        return (self.real.long().cumsum(dim=1) - 1).clamp(min=0)

    def rows(self, start: int, stop: int) -> TokenBatch:
        """Some of the rows."""
        mask = None if self.attention_mask is None else self.attention_mask[start:stop]
        return TokenBatch(self.input_ids[start:stop], mask)

    def to(self, device: torch.device) -> TokenBatch:
        """The batch on a device."""
        mask = None if self.attention_mask is None else self.attention_mask.to(device)
        return TokenBatch(self.input_ids.to(device), mask)


@dataclass(frozen=True)
class Visit:
    """One call of one block, without an autograd graph.

    Attributes:
        index: l - 1, from 0.
        block: index of the block in ``LocatedModel.blocks``.
        input: the state that entered, ``[rows, tokens, width]``. The output of the visit before, except where a
            model does something in between (injection of an embedding, say).
        output: the raw state that it left, h_l.
        attention, mlp: their parts of ``output - input``; None where sublayers are unknown or not asked for.
    """

    index: int
    block: int
    input: Tensor
    output: Tensor
    attention: Tensor | None = None
    mlp: Tensor | None = None


class VisitObserver(Protocol):
    """What is told of a forward pass while it runs, so that no state has to be kept."""

    def begin(self, embedding_output: Tensor) -> None:
        """A forward pass reached its first visit with this state, h_0."""

    def visit(self, visit: Visit) -> None:
        """A visit ended."""


@dataclass
class VisitStates:
    """All raw states of one forward pass.

    Attributes:
        states: h_0 ... h_N, each ``[rows, tokens, width]`` in the model's dtype.
        blocks: block of each visit, N entries.
        attention, mlp: parts of each visit's update, N entries; empty where not asked for or not known.
        last_input: the state that entered the last visit.
    """

    states: list[Tensor] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    last_input: Tensor | None = None

    @property
    def num_visits(self) -> int:
        """N."""
        return len(self.blocks)

    def begin(self, embedding_output: Tensor) -> None:
        """A new pass forgets the one before."""
        self.states, self.blocks, self.attention, self.mlp = [embedding_output], [], [], []
        self.last_input = None

    def visit(self, visit: Visit) -> None:
        """Keep what the visit left."""
        self.states.append(visit.output)
        self.blocks.append(visit.block)
        self.last_input = visit.input
        if visit.attention is not None and visit.mlp is not None:
            self.attention.append(visit.attention)
            self.mlp.append(visit.mlp)


def collect_states(located: LocatedModel, batch: TokenBatch, sublayers: bool = False) -> VisitStates:
    """Run the model once, without its head, and keep every raw state.

    Args:
        located: the model; put into evaluation mode by the caller.
        batch: moved to the model's device.
        sublayers: also keep the updates of attention and MLP.

    Raises:
        ProbingError: as :func:`watch_visits`.
    """
    kept = VisitStates()
    with watch_visits(located, kept, sublayers):
        run_base(located, batch)
    return kept


def run_base(located: LocatedModel, batch: TokenBatch) -> Any:
    """One forward pass of the part below the head, without gradient or cache; what it returned.

    Padding gets explicit position ids, which count the real tokens of each row.
    """
    with torch.no_grad():
        return located.base(**base_inputs(located, batch))


def base_inputs(located: LocatedModel, batch: TokenBatch) -> dict[str, Tensor | bool]:
    """Keyword arguments of the base model for a batch; mask and positions only where there is padding."""
    batch = batch.to(located.device)
    known = inspect.signature(located.base.forward).parameters
    inputs: dict[str, Tensor | bool] = {"input_ids": batch.input_ids}
    if "input_ids" not in known and "kwargs" not in known:
        raise ProbingError(f"{type(located.base).__name__} takes no input_ids; expected a causal language model")
    if batch.attention_mask is not None and not bool(batch.real.all()):
        if "attention_mask" not in known:
            raise ProbingError(f"{type(located.base).__name__} takes no attention_mask; probe rows without padding")
        inputs["attention_mask"] = batch.real.long()
        if "position_ids" in known:
            inputs["position_ids"] = batch.positions
    if "use_cache" in known:
        inputs["use_cache"] = False
    return inputs


@contextlib.contextmanager
def watch_visits(
    located: LocatedModel,
    observer: VisitObserver,
    sublayers: bool = False,
    on_call: Callable[[int, tuple[Any, ...], Mapping[str, Any]], None] | None = None,
) -> Iterator[None]:
    """Context in which ``observer`` is told of every visit; the hooks are gone afterwards, also after an exception.

    Args:
        located: the model.
        observer: told in the order of the visits. Every forward pass of the base begins anew.
        sublayers: also read off the updates of attention and MLP, where the family is known.
        on_call: told block, positional and keyword arguments of every call of a block, before it runs.

    Raises:
        ProbingError: a block was called without, or returned, no state of three dimensions, or lies inside another.
    """
    watcher = _Watcher(located, observer, located.sublayers is not None and sublayers, on_call)
    handles: list[RemovableHandle] = []
    try:
        handles.append(located.base.register_forward_pre_hook(lambda module, args: watcher.restart()))
        for index, block in enumerate(located.blocks):
            handles.append(block.register_forward_pre_hook(watcher.before(index), with_kwargs=True))
            handles.append(block.register_forward_hook(watcher.after(index), with_kwargs=True))
            if watcher.sublayers:
                handles += watcher.watch_sublayers(block)
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Watcher:
    """The hooks and what they remember between one and the next."""

    def __init__(
        self,
        located: LocatedModel,
        observer: VisitObserver,
        sublayers: bool,
        on_call: Callable[[int, tuple[Any, ...], Mapping[str, Any]], None] | None,
    ) -> None:
        self.located = located
        self.observer = observer
        self.sublayers = sublayers
        self.on_call = on_call
        self.restart()

    def restart(self) -> None:
        self.num_visits = 0
        self.input: Tensor | None = None
        self.parts: dict[str, Tensor] = {}

    def before(self, index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = self._kept(entering_state(module, args, kwargs))
            self.input, self.parts = state, {}
            if self.on_call is not None:
                self.on_call(index, args, kwargs)
            if self.num_visits == 0:
                self.observer.begin(state)

        return hook

    def after(self, index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if self.input is None:
                raise ProbingError(
                    f"block {type(module).__name__} is named twice or lies inside another block; name each block once"
                    " with --blocks-path"
                )
            state = self._kept(leaving_state(module, output))
            attention, mlp = self._updates(self.input, state)
            visit = Visit(self.num_visits, index, self.input, state, attention, mlp)
            self.num_visits += 1
            self.input, self.parts = None, {}
            self.observer.visit(visit)

        return hook

    def watch_sublayers(self, block: nn.Module) -> list[RemovableHandle]:
        paths = self.located.sublayers
        assert paths is not None, "asked for only where they are known"
        handles = []
        for name, path in (("attention", paths.attention), ("mlp", paths.mlp)):
            if path is not None:
                module = optional_part(block, path)
                if module is None:
                    raise ProbingError(f"block {type(block).__name__} has no part '{path}'; expected its {name}")
                handles.append(module.register_forward_hook(self._keep_part(name)))
        return handles

    def _keep_part(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.parts[name] = self._kept(output[0] if isinstance(output, tuple | list) else output)

        return hook

    def _updates(self, entered: Tensor, left: Tensor) -> tuple[Tensor | None, Tensor | None]:
        paths = self.located.sublayers
        if not self.sublayers or paths is None or "attention" not in self.parts:
            return None, None
        # Some blocks flatten rows and tokens for their MLP.
        attention = self.parts["attention"].reshape(entered.shape)
        if paths.attention_gives_stream:
            attention = attention - entered
        if paths.mlp is None:
            return attention, left - entered - attention
        return attention, self.parts["mlp"].reshape(entered.shape)

    def _kept(self, state: Tensor) -> Tensor:
        state = state.detach()
        return state.clone() if self.located.copy_states else state


def entering_state(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The hidden state among a block's arguments: the first one, or ``hidden_states`` by name.

    Raises:
        ProbingError: there is none.
    """
    candidates = [args[0]] if args else [kwargs.get(name) for name in ("hidden_states", "hidden_state", "x")]
    for candidate in candidates:
        if isinstance(candidate, Tensor) and candidate.ndim == 3:
            return candidate
    raise ProbingError(
        f"block {type(module).__name__} was called without a state [rows, tokens, width] as its first argument;"
        " name its blocks with --blocks-path"
    )


def leaving_state(module: nn.Module, output: Any) -> Tensor:
    """The hidden state that a block returned: the tensor, or the first of a tuple or list (it differs by version).

    Raises:
        ProbingError: it returned none.
    """
    state = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(state, Tensor) or state.ndim != 3:
        raise ProbingError(
            f"block {type(module).__name__} returned {type(state).__name__}; expected a state [rows, tokens, width] or"
            " a tuple that begins with one. Name its blocks with --blocks-path"
        )
    return state


def with_leaving_state(output: Any, state: Tensor) -> Any:
    """What a block returned with its state replaced, for hooks that intervene."""
    if isinstance(output, tuple):
        return (state, *output[1:])
    return [state, *output[1:]] if isinstance(output, list) else state

"""Visits replaced by functions of the state, for the length of one context, in a model that stays as it was.

Nothing of the model is changed: forward hooks hand another state on, and are gone when the context ends, also after an
exception. What lies between visits (injection of an embedding, say) stays in place. The block of any visit can be
applied to any state with the other arguments (rotary tables, masks, cache slot) that the model gave it on this batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from depthscale.probing.errors import ProbingError
from depthscale.probing.states import entering_state, leaving_state, with_leaving_state

#: The state that entered a visit and the one that its block left -> the state that is handed on.
Replacement = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Call:
    """One visit with what its block was given beside the state.

    Attributes:
        index: of the visit, from 0.
        block: the module.
        rest: positional arguments after the state, or all of them where the state came by name.
        named: keyword arguments without the state.
        state_name: name under which the state came, None where it came first.
    """

    index: int
    block: nn.Module
    rest: tuple[Any, ...]
    named: Mapping[str, Any]
    state_name: str | None

    def apply(self, state: Tensor) -> Tensor:
        """The block's output for another state ``[rows, tokens, width]``, past all hooks."""
        if self.state_name is None:
            output = self.block.forward(state, *self.rest, **self.named)
        else:
            output = self.block.forward(*self.rest, **{**self.named, self.state_name: state})
        return leaving_state(self.block, output)


@dataclass(frozen=True)
class CleanPass:
    """An unchanged forward pass.

    Attributes:
        calls: its visits, N.
        states: h_0 ... h_N, raw.
        inputs: the state that entered each visit; the one left before it, unless the model does something between.
    """

    calls: tuple[Call, ...]
    states: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]

    @property
    def num_visits(self) -> int:
        """N."""
        return len(self.calls)

    def update(self, visit: int) -> Tensor:
        """What a visit added to the state that entered it."""
        return self.states[visit + 1] - self.inputs[visit]


def record_clean_pass(blocks: Sequence[nn.Module], run: Callable[[], object]) -> CleanPass:
    """Run the model once and keep every state and call.

    Args:
        blocks: distinct blocks.
        run: one forward pass.

    Raises:
        ProbingError: no block was visited, or one was called without a state.
    """
    calls: list[Call] = []
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    left: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = entering_state(module, args, kwargs)
        name = None if args else next(key for key, value in kwargs.items() if value is state)
        named = {key: value for key, value in kwargs.items() if key != name}
        calls.append(Call(len(calls), module, args[1:], named, name))
        # Mostly it is the state that the visit before left, which is kept already.
        inputs.append(outputs[-1] if left and state is left[-1] else state.detach().clone())

    def after(module: nn.Module, args: Any, output: Any) -> None:
        left[:] = [leaving_state(module, output)]
        outputs.append(left[0].detach().clone())

    with contextlib.ExitStack() as stack, torch.no_grad():
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        run()
    if not calls:
        raise ProbingError("the forward pass visited no block; name the blocks with --blocks-path")
    return CleanPass(tuple(calls), (inputs[0], *outputs), tuple(inputs))


@contextlib.contextmanager
def replaced(blocks: Sequence[nn.Module], replacements: Mapping[int, Replacement]) -> Iterator[list[Tensor]]:
    """Context in which visits hand on other states, for ONE forward pass.

    Args:
        blocks: distinct blocks.
        replacements: by visit, from 0; visits without one are as ever.

    Yields:
        A list that fills with what each visit handed on.

    Raises:
        ProbingError: at the end, where a visit to be replaced did not take place.
    """
    handed_on: list[Tensor] = []
    entered: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Some blocks write into the state that they are given.
        state = entering_state(module, args, kwargs)
        entered.append(state.clone() if len(handed_on) in replacements else state)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        replacement = replacements.get(len(handed_on))
        state = leaving_state(module, output)
        if replacement is not None:
            state = replacement(entered[-1], state)
            output = with_leaving_state(output, state)
        entered.clear()
        # A copy, since the next block may write into it.
        handed_on.append(state.detach().clone())
        return output

    handles: list[RemovableHandle] = []
    try:
        for block in blocks:
            handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(block.register_forward_hook(after))
        yield handed_on
    finally:
        for handle in handles:
            handle.remove()
    missing = [visit for visit in replacements if visit >= len(handed_on)]
    if missing:
        raise ProbingError(f"visit {missing[0]} was to be replaced, but the pass made {len(handed_on)} visits")

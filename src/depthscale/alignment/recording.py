"""One forward pass, any number of backward passes, and the gradient of every visit kept apart.

While a module runs, each of its parameters is replaced by a fresh leaf on the same storage. Autograd then adds up a
gradient of its own for each call instead of one for all calls; nothing is computed twice and no weight is copied.

    with VisitRecorder(module) as recorder:
        loss = forward()
        recorder.backward(loss, receive)      # receive(parameter name, visit, gradient), once per visit
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from depthscale.alignment.errors import AlignmentError
from depthscale.errors import unknown_name


class VisitKey(NamedTuple):
    """One call of one module: its dotted name and which of its calls in the forward pass, from 0."""

    module: str
    call: int


Receiver = Callable[[str, VisitKey, Tensor], None]
Stand = Callable[[str, VisitKey, Tensor], Tensor]


class _Slot:
    """Where a module keeps one parameter, and what it holds there at the moment."""

    def __init__(self, owner: nn.Module, attribute: str, name: str) -> None:
        self.owner, self.attribute, self.name = owner, attribute, name
        parameter = owner._parameters[attribute]
        assert parameter is not None
        self.parameter: Tensor = parameter
        self.current: Tensor = parameter

    def put(self, tensor: Tensor) -> None:
        self.owner._parameters[self.attribute] = tensor  # type: ignore[assignment]
        self.current = tensor

    def require_untouched(self) -> None:
        if self.owner._parameters.get(self.attribute) is not self.current:
            raise AlignmentError(
                f"parameter '{self.name}' was replaced by another tensor during the forward pass; modules that swap"
                " their parameters themselves (functional_call, some sharding) cannot be recorded: call the module"
                " with its own parameters"
            )


class _Scope:
    """A module at whose call the parameters in its slots get a leaf of their own."""

    def __init__(self, name: str, module: nn.Module, slots: list[_Slot]) -> None:
        self.name, self.module, self.slots = name, module, slots
        self.running: list[_Frame | None] = []


class _Frame:
    """One running call: the leaves that stand for its parameters."""

    def __init__(self, stands: Sequence[tuple[_Slot, Tensor]]) -> None:
        self.stands = stands
        self.covered: list[Tensor] = []

    def enter(self) -> None:
        self.covered = [slot.current for slot, _ in self.stands]
        for slot, tensor in self.stands:
            slot.put(tensor)

    def leave(self) -> None:
        for (slot, _), tensor in zip(self.stands, self.covered, strict=True):
            slot.put(tensor)


class VisitRecorder:
    """Context in which each call of each parameter-owning module is a visit with gradients of its own.

    A visit is a call through ``module(...)``: gradient that reaches a parameter without a call of its owner (through
    ``module.forward`` or a matrix used directly) is returned apart by :meth:`backward`. Checkpointed calls, reentrant
    or not, are mapped to the visit that they recompute. Compiled modules run eagerly inside the context. On the way
    out, also after an exception, parameters, buffers, their ``grad`` and all hooks are as they were.

    Args:
        module: what is run inside the context.
        whole: names of modules that count as one visit with everything in them, instead of each parameter's own
            module: blocks, or modules that use the parameters of their parts without calling them, which is known
            of ``nn.MultiheadAttention``.
        only: names of parameters to keep apart; None is all.
        stand: what stands for a parameter at a visit; None is the leaf that gradients are collected with.

    Raises:
        AlignmentError: unknown name, half-precision parameters, or a scripted module.

    Example:
        >>> layer = nn.Linear(2, 2, bias=False)
        >>> found = {}
        >>> with VisitRecorder(layer) as recorder:
        ...     output = layer(layer(torch.ones(1, 2))).sum()
        ...     _ = recorder.backward(output, lambda name, visit, gradient: found.update({visit.call: name}))
        >>> sorted(found)
        [0, 1]
    """

    def __init__(
        self,
        module: nn.Module,
        whole: Collection[str] = (),
        only: Collection[str] | None = None,
        stand: Stand | None = None,
    ) -> None:
        self.module = module
        self.parameters = dict(module.named_parameters())
        for name in only or ():
            if name not in self.parameters:
                raise AlignmentError(unknown_name("parameter", name, self.parameters))
        self._scopes = _scopes(module, whole, self.parameters, only)
        self._stand = stand
        self._counts = {scope.name: 0 for scope in self._scopes}
        self._order: list[VisitKey] = []
        self._active: list[_Frame] = []
        self._replayed: dict[str, int] | None = None
        self._in_backward = False
        self._receive: Receiver | None = None
        self._stack = contextlib.ExitStack()

    # -- what was visited ---------------------------------------------------------------------------

    @property
    def visits(self) -> tuple[VisitKey, ...]:
        """All visits so far, in the order of the calls."""
        return tuple(self._order)

    def visits_of(self, parameter: str) -> tuple[VisitKey, ...]:
        """Visits that a parameter was available to, in the order of the calls."""
        modules = {scope.name for scope in self._scopes if any(slot.name == parameter for slot in scope.slots)}
        return tuple(visit for visit in self._order if visit.module in modules)

    def backward(
        self, output: Tensor, receive: Receiver, cotangent: Tensor | None = None, retain_graph: bool = False
    ) -> dict[str, Tensor]:
        """Send gradient back from ``output`` and hand over what arrives at each visit.

        Args:
            output: what the forward pass gave; a scalar unless ``cotangent`` came.
            receive: called once per parameter and visit that gradient reaches; the gradient is the receiver's to
                keep or change.
            cotangent: of the shape of ``output``.
            retain_graph: True when another backward pass follows.

        Returns:
            Gradient that reached parameters outside every visit, by name.

        Raises:
            AlignmentError: nothing that requires gradient led to ``output``.
        """
        if not output.requires_grad:
            raise AlignmentError(
                "the output carries no gradient; run the forward pass inside the recorder, without no_grad, and with"
                " parameters that require gradient"
            )
        held = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        self._receive, self._in_backward = receive, True
        try:
            torch.autograd.backward(output, cotangent, retain_graph=retain_graph)
            return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        finally:
            self._receive, self._in_backward = None, False
            for name, parameter in self.parameters.items():
                parameter.grad = held[name]

    # -- the context --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        # Where the compiler was never loaded nothing is compiled, and loading it takes seconds.
        if "torch._dynamo" in sys.modules:
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._stack.enter_context(_restored_buffers(self.module))
        self._stack.enter_context(self._replaying_reentrant_checkpoints())
        self._stack.callback(self._restore)
        for scope in self._scopes:
            enter = scope.module.register_forward_pre_hook(self._before(scope), prepend=True)
            leave = scope.module.register_forward_hook(self._after(scope), always_call=True)
            self._stack.callback(enter.remove)
            self._stack.callback(leave.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _restore(self) -> None:
        for scope in self._scopes:
            scope.running.clear()
            for slot in scope.slots:
                slot.put(slot.parameter)
        self._active.clear()

    # -- calls --------------------------------------------------------------------------------------

    def _before(self, scope: _Scope) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, inputs: Any) -> None:
            if self._in_backward and self._replayed is None:
                # A checkpoint that is not reentrant recomputes values only; its gradient goes to the visit's leaves.
                scope.running.append(None)
                return
            for slot in scope.slots:
                slot.require_untouched()
            counts = self._counts if self._replayed is None else self._replayed
            visit = VisitKey(scope.name, counts[scope.name])
            counts[scope.name] += 1
            if self._replayed is None:
                self._order.append(visit)
            make = self._leaf if self._stand is None else self._stand
            leaves: dict[str, Tensor] = {}
            for slot in scope.slots:
                if slot.name not in leaves:
                    leaves[slot.name] = make(slot.name, visit, slot.parameter)
            frame = _Frame([(slot, leaves[slot.name]) for slot in scope.slots])
            frame.enter()
            scope.running.append(frame)
            self._active.append(frame)

        return enter

    def _after(self, scope: _Scope) -> Callable[[nn.Module, Any, Any], None]:
        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            frame = scope.running.pop() if scope.running else None
            if frame is not None:
                frame.leave()
                self._active.remove(frame)

        return leave

    def _leaf(self, name: str, visit: VisitKey, parameter: Tensor) -> Tensor:
        leaf = parameter.detach()
        if parameter.requires_grad:
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(lambda reached: self._arrived(name, visit, reached))
        return leaf

    def _arrived(self, name: str, visit: VisitKey, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        if self._receive is None:
            raise AlignmentError("backward was called on an output of a recorded pass; call the recorder's backward")
        if gradient is not None:
            self._receive(name, visit, gradient)

    # -- reentrant checkpoints ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _replaying_reentrant_checkpoints(self) -> Iterator[None]:
        """Reentrant checkpoints build their graph only in backward; there, calls are counted from where they began."""
        forward = CheckpointFunction.forward

        def remember(ctx: Any, run_function: Callable[..., Any], *arguments: Any) -> Any:
            counts = dict(self._counts if self._replayed is None else self._replayed)
            frames = list(self._active)

            def replay(*inputs: Any) -> Any:
                if not self._in_backward:
                    return run_function(*inputs)
                before, self._replayed = self._replayed, dict(counts)
                for frame in frames:
                    frame.enter()
                try:
                    return run_function(*inputs)
                finally:
                    for frame in reversed(frames):
                        frame.leave()
                    self._replayed = before

            outputs = forward(ctx, run_function, *arguments)
            # Only the recomputation is replayed, not what a checkpoint around this one recomputes to get its inputs.
            ctx.run_function = replay
            return outputs

        # Set as on any object: to a type checker they are methods.
        setattr(CheckpointFunction, "forward", staticmethod(remember))  # noqa: B010
        try:
            yield
        finally:
            setattr(CheckpointFunction, "forward", staticmethod(forward))  # noqa: B010


def _scopes(
    module: nn.Module, whole: Collection[str], parameters: dict[str, nn.Parameter], only: Collection[str] | None
) -> list[_Scope]:
    modules = dict(module.named_modules())
    for name in whole:
        if name not in modules:
            raise AlignmentError(unknown_name("module", name, modules))
    names = {id(parameter): name for name, parameter in parameters.items()}
    heads = {*whole, *(name for name, part in modules.items() if isinstance(part, nn.MultiheadAttention))}
    slots: dict[str, list[_Slot]] = {}
    for owner_name, owner in modules.items():
        if isinstance(owner, torch.jit.ScriptModule):
            raise AlignmentError(f"module '{owner_name}' is scripted, which hides its calls; use the original module")
        for attribute, parameter in owner._parameters.items():
            if parameter is None or (only is not None and names[id(parameter)] not in only):
                continue
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise AlignmentError(
                    f"parameter '{names[id(parameter)]}' is {str(parameter.dtype).removeprefix('torch.')}; sums over"
                    " visits need float32 or float64: load the model with dtype=torch.float32"
                )
            scope = _innermost(owner_name, heads)
            slots.setdefault(owner_name if scope is None else scope, []).append(
                _Slot(owner, attribute, names[id(parameter)])
            )
    return [_Scope(name, modules[name], found) for name, found in slots.items()]


def _innermost(name: str, heads: Collection[str]) -> str | None:
    """The longest of ``heads`` that is ``name`` or holds it."""
    holding = [head for head in heads if head in ("", name) or name.startswith(f"{head}.")]
    return max(holding, key=len, default=None)


@contextlib.contextmanager
def _restored_buffers(module: nn.Module) -> Iterator[None]:
    """Running statistics and counters are as they were, whatever the forward pass made of them."""
    held = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in held:
                buffer.copy_(value)

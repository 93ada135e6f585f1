"""Predicted activation memory against the measured peak of a real training step.

``LiveBytes`` sees every operation of forward and backward and follows each new storage until it is freed. Weights
and inputs exist before the step and are not counted; gradients of weights are told by their shapes, which no
activation here has, and are left out too, since ``training_state_bytes`` counts them. That it misses nothing is
checked against torch's profiler, which hears of every allocation from the allocator itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from depthscale.budget import ModelShape, activation_memory, count_parameters, training_state_bytes
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan

Case = tuple[ModelShape, int, int]  # shape, context length, batch rows

CASES: dict[str, Case] = {
    "post, looped": (ModelShape(DepthPlan.looped(2, 4), 256, 64, 4, 4, 16, 170), 72, 16),
    "pre, stacked": (ModelShape(DepthPlan.stacked(4), 256, 128, 4, 4, 32, 341, norm_placement="pre"), 136, 4),
    "grouped queries, large vocabulary": (ModelShape(DepthPlan.looped(2, 3), 4000, 96, 6, 2, 16, 256), 104, 4),
    "sandwich, gelu, qk norm, prelude and coda": (
        ModelShape(DepthPlan.looped(2, 3, prelude=1, coda=1), 97, 64, 4, 4, 16, 256, "gelu", "sandwich", qk_norm=True),
        136,
        4,
    ),
    "pre, gelu, untied, middle loop": (
        ModelShape(DepthPlan.middle_loop(4), 300, 80, 4, 4, 20, 320, "gelu", "pre", tie_word_embeddings=False),
        136,
        3,
    ),
    "truncated, injected": (
        ModelShape(DepthPlan.looped(2, 6, prelude=1, coda=1, inject=True, grad_rounds=2), 97, 64, 4, 4, 16, 172),
        136,
        4,
    ),
    "truncated": (
        ModelShape(DepthPlan.looped(2, 6, grad_rounds=2), 97, 64, 4, 4, 16, 172, norm_placement="sandwich"),
        136,
        4,
    ),
    "one row, wide heads": (ModelShape(DepthPlan.looped(1, 3), 97, 32, 2, 2, 32, 85), 520, 1),
}


class LiveBytes(TorchDispatchMode):
    """Follows the storages made while it is active; ``peak`` leaves gradients of weights out, ``peak_all`` not."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.peak = self.peak_all = 0
        self._activations = self._gradients = 0
        self._in_backward = False
        weights = list(model.parameters())
        self._weight_shapes = {shape for w in weights for shape in (tuple(w.shape), tuple(w.shape[::-1]))}
        self._known = {w.untyped_storage()._cdata for w in weights}

    def start_backward(self) -> None:
        self._in_backward = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor)
        self.peak = max(self.peak, self._activations)
        self.peak_all = max(self.peak_all, self._activations + self._gradients)
        return results

    def _follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        is_gradient = self._in_backward and tuple(tensor.shape) in self._weight_shapes
        self._known.add(key)
        weakref.finalize(storage, self._forget, key, storage.nbytes(), is_gradient)
        self._count(storage.nbytes(), is_gradient)

    def _forget(self, key: int, num_bytes: int, is_gradient: bool) -> None:
        self._known.discard(key)
        self._count(-num_bytes, is_gradient)

    def _count(self, num_bytes: int, is_gradient: bool) -> None:
        if is_gradient:
            self._gradients += num_bytes
        else:
            self._activations += num_bytes


def prepare(
    case: Case, checkpoint_visits: bool, autocast: bool = False, documents: int = 1
) -> tuple[LoopedLMForCausalLM, Callable[[], torch.Tensor]]:
    """A model, and the forward pass of a step on it; one step has been made, so that lazy set-up is behind."""
    shape, context, rows = case
    torch.manual_seed(0)
    torch.set_num_threads(1)
    values = {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
    values["plan"] = shape.plan.to_dict()["segments"]
    model = LoopedLMForCausalLM(LoopedLMConfig(**values)).train()
    if checkpoint_visits:
        model.gradient_checkpointing_enable()
    ids = torch.randint(0, shape.vocab_size, (rows, context))
    document_ids = (torch.arange(context) * documents // context).expand(rows, context).contiguous()

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            return model(ids, labels=ids, document_ids=document_ids).loss

    forward().backward()
    model.zero_grad(set_to_none=True)
    gc.collect()
    return model, forward


def measure(case: Case, checkpoint_visits: bool, autocast: bool = False, documents: int = 1) -> LiveBytes:
    model, forward = prepare(case, checkpoint_visits, autocast, documents)
    with LiveBytes(model) as live:
        loss = forward()
        live.start_backward()
        loss.backward()
    return live


@pytest.mark.parametrize("checkpoint_visits", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_peak_is_predicted(name: str, checkpoint_visits: bool) -> None:
    shape, context, rows = CASES[name]
    predicted = activation_memory(shape, context, rows, checkpoint_visits=checkpoint_visits).peak
    # 20 % is promised; the largest error seen is 9 % (truncated, checkpointed) and 4 % otherwise.
    assert predicted == pytest.approx(measure(CASES[name], checkpoint_visits).peak, rel=0.12)


@pytest.mark.parametrize("checkpoint_visits", [False, True])
@pytest.mark.parametrize("name", list(CASES)[:3])
def test_peak_is_predicted_under_autocast_and_masks(name: str, checkpoint_visits: bool) -> None:
    shape, context, rows = CASES[name]
    predicted = activation_memory(
        shape, context, rows, bytes_per_element=2, checkpoint_visits=checkpoint_visits, masked=True
    ).peak
    measured = measure(CASES[name], checkpoint_visits, autocast=True, documents=3).peak
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("checkpoint_visits", [False, True])
@pytest.mark.parametrize("name", list(CASES)[:1])
def test_measurement_agrees_with_the_allocator(name: str, checkpoint_visits: bool) -> None:
    model, forward = prepare(CASES[name], checkpoint_visits)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        forward().backward()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    # Within 1 %: the allocator also sees scratch space inside operations.
    assert measure(CASES[name], checkpoint_visits).peak_all == pytest.approx(peak, rel=0.01)
    # What is left at the end are the gradients of the weights, and the loss.
    gradients = training_state_bytes(CASES[name][0]).gradients
    assert gradients == 4 * sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
    assert allocated == pytest.approx(gradients, abs=4096)


def test_visits_share_parameters_but_not_activations() -> None:
    shape, context, rows = CASES["post, looped"]
    unshared = dataclasses.replace(shape, plan=DepthPlan.stacked(shape.plan.unrolled_depth))
    assert activation_memory(unshared, context, rows) == activation_memory(shape, context, rows)
    looped, stacked = measure((shape, context, rows), False), measure((unshared, context, rows), False)
    assert looped.peak == pytest.approx(stacked.peak, rel=0.001)
    assert count_parameters(unshared).non_embedding > 3 * count_parameters(shape).non_embedding

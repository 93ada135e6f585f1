"""Measure kappa of a module: one forward pass, one backward pass for G and one per random probe for U."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from depthscale.alignment.directions import operator_norm
from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import require_scalar
from depthscale.alignment.kappa import Alignment, align
from depthscale.alignment.recording import VisitRecorder
from depthscale.alignment.sublayers import Sublayer, block_names, looped_sublayers
from depthscale.alignment.sums import VisitSums, VisitSumsReceiver
from depthscale.nn import LoopedLMForCausalLM
from depthscale.nn.loss import next_token_loss


class ForwardPass(NamedTuple):
    """Final hidden states of the tokens that count, any shape, and the loss that follows from them."""

    final_states: Tensor
    loss: Tensor


def measure_alignment(
    module: nn.Module,
    forward: Callable[[], ForwardPass],
    sublayers: Sequence[Sublayer],
    *,
    num_probes: int = 2,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    whole: Collection[str] = (),
) -> Alignment:
    """kappa of every sublayer on one batch.

    ||U||_F^2 is the mean over random cotangents w (entries +1 or -1) of ||U^T w||^2, which is unbiased; all visits
    see the same w, so that sums over visits are sums of maps.

    Weights, ``grad``, buffers and the global random state are left as they were.

    Args:
        module: that ``forward`` runs.
        forward: runs the module once on the batch.
        sublayers: what to measure.
        num_probes: random cotangents; 2 or more give a standard error.
        seed: of the cotangents.
        optimizer: with Adam's state, G of a visit is the visit's loss gradient divided by the shared
            sqrt(v / (1 - beta2^t)) + eps: its part of the effective update, without the momentum, which mixes earlier
            steps. None takes the loss gradient itself.
        whole: see :class:`VisitRecorder`.

    Raises:
        AlignmentError: a sublayer cannot be measured; the message names it.
    """
    if num_probes < 1:
        raise AlignmentError(f"num_probes came as {num_probes}; expected at least 1")
    maps, gradients = _stream(module, forward, sublayers, num_probes, seed, optimizer, whole)
    return align(sublayers, maps, gradients, gradient_of="loss" if optimizer is None else "adam")


def measure_operator_alignment(
    module: nn.Module,
    forward: Callable[[], ForwardPass],
    sublayers: Sequence[Sublayer],
    *,
    num_iterations: int = 20,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    whole: Collection[str] = (),
) -> Alignment:
    """As :func:`measure_alignment` with operator norms of U, by power iteration on the sum and on every visit.

    Costs up to ``num_iterations`` forward-mode and backward passes for each sublayer and visit: for small models.

    Args:
        module: that ``forward`` runs, without checkpointing.
        forward: runs the module once on the batch.
        sublayers: shared ones.
        num_iterations: see :func:`operator_norm`.
        seed: of the first vectors.
        optimizer: see :func:`measure_alignment`.
        whole: see :class:`VisitRecorder`.
    """
    _, gradients = _stream(module, forward, sublayers, 0, seed, optimizer, whole)

    def norm(sublayer: Sublayer, visit: int | None) -> float:
        return operator_norm(
            module,
            lambda: forward().final_states,
            sublayer,
            visit=visit,
            num_iterations=num_iterations,
            seed=seed,
            whole=whole,
        ).value

    maps = [
        VisitSums(
            sublayer.name,
            tuple(norm(sublayer, visit) for visit in range(len(gradient.visit_norms))),
            norm(sublayer, None),
        )
        for sublayer, gradient in zip(sublayers, gradients, strict=True)
    ]
    gradient_of = "loss" if optimizer is None else "adam"
    return align(sublayers, [maps], gradients, gradient_of=gradient_of, map_norm="operator")


def measure_looped_model(
    model: LoopedLMForCausalLM,
    batch: Mapping[str, Tensor],
    *,
    rounds: int | None = None,
    num_blocks: int | None = None,
    num_probes: int = 2,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
) -> Alignment:
    """:func:`measure_alignment` of a looped language model.

    Args:
        model: looped or stacked.
        batch: ``input_ids``, ``labels``, and ``document_ids`` or ``attention_mask``.
        rounds: R; None is the plan's own.
        num_blocks: see :func:`looped_sublayers`.
        num_probes: see :func:`measure_alignment`.
        seed: of the probes.
        optimizer: see :func:`measure_alignment`.
    """
    return measure_alignment(
        model,
        lambda: looped_forward(model, batch, rounds),
        looped_sublayers(model, num_blocks),
        num_probes=num_probes,
        seed=seed,
        optimizer=optimizer,
        whole=block_names(model),
    )


def looped_forward(model: LoopedLMForCausalLM, batch: Mapping[str, Tensor], rounds: int | None = None) -> ForwardPass:
    """Loss of a batch, and the final states that the head reads (after the final norm, where there is one).

    Padded positions are no part of the states.
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    states = model.model(**inputs, rounds=rounds).last_hidden_state
    loss = next_token_loss(model.lm_head(states), batch["labels"])
    mask = batch.get("attention_mask")
    return ForwardPass(states if mask is None else states[mask != 0], loss)


def _stream(
    module: nn.Module,
    forward: Callable[[], ForwardPass],
    sublayers: Sequence[Sublayer],
    num_probes: int,
    seed: int,
    optimizer: torch.optim.Optimizer | None,
    whole: Collection[str],
) -> tuple[list[list[VisitSums]], list[VisitSums]]:
    """Norms of U per probe, and of G, from one forward pass."""
    names = [name for sublayer in sublayers for name in sublayer.parameters]
    scale = None if optimizer is None else adam_scale(module, optimizer, names)
    generator = torch.Generator().manual_seed(seed)
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), VisitRecorder(module, whole, names) as recorder:
        states, loss = forward()
        require_scalar(loss)
        maps: list[list[VisitSums]] = []
        for _ in range(num_probes):
            receiver = VisitSumsReceiver(recorder, sublayers)
            cotangent = _signs(states, generator)
            maps.append(receiver.finish(recorder.backward(states, receiver, cotangent, retain_graph=True)))
        receiver = VisitSumsReceiver(recorder, sublayers, scale)
        gradients = receiver.finish(recorder.backward(loss, receiver))
    return maps, gradients


def adam_scale(module: nn.Module, optimizer: torch.optim.Optimizer, names: Collection[str]) -> dict[str, Tensor]:
    """1 / (sqrt(v / (1 - beta2^t)) + eps) of every named parameter, from the optimizer's state.

    Raises:
        AlignmentError: the optimizer is none of Adam's kind, or has no state for a parameter yet.
    """
    parameters = dict(module.named_parameters())
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    scale = {}
    for name in names:
        parameter = parameters.get(name)
        group = groups.get(id(parameter))
        state = optimizer.state.get(parameter, {}) if parameter is not None else {}
        if group is None or "exp_avg_sq" not in state or "betas" not in group:
            raise AlignmentError(
                f"the optimizer ({type(optimizer).__name__}) holds no second moment of '{name}'; expected Adam or"
                " AdamW over this module's parameters, after at least one step"
            )
        correction = 1 - group["betas"][1] ** float(state["step"])
        scale[name] = 1 / ((state["exp_avg_sq"] / correction).sqrt() + group["eps"])
    return scale


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Entries +1 or -1, drawn on the CPU so that every device gets the same."""
    bits = torch.randint(2, like.shape, generator=generator, dtype=torch.int8)
    return (2 * bits - 1).to(device=like.device, dtype=like.dtype)

"""What is measured of a model while it trains: the stream visit by visit, and the weights role by role."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from depthscale.nn import LoopedLMForCausalLM
from depthscale.statistics.angles import cosine
from depthscale.statistics.norms import root_mean_square
from depthscale.training.parameter_groups import ROLES, named_parameters_once, role


@torch.inference_mode()
def measure_visits(model: LoopedLMForCausalLM, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Size and direction of the stream at every visit, averaged over the real tokens of ``batch``.

    Returns:
        ``state_rms`` (1 + N): root mean square of the embedding output and of each visit's raw output;
        ``relative_update`` (N): RMS of each visit's update over the RMS of its input;
        ``update_cosine`` (N - 1): cosine between consecutive updates, tokens without an update left out.
    """
    was_training = model.training
    model.eval()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    states = model(**inputs, output_hidden_states=True, logits_to_keep=1).hidden_states
    model.train(was_training)
    mask = batch.get("attention_mask")
    real = torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
    tokens = [state[real] for state in states]
    updates = [after - before for before, after in itertools.pairwise(tokens)]
    sizes = [root_mean_square(state) for state in tokens]
    return {
        "state_rms": [size.mean().item() for size in sizes],
        "relative_update": [
            (root_mean_square(update) / size).mean().item() for update, size in zip(updates, sizes[:-1], strict=True)
        ],
        "update_cosine": [cosine(first, second).nanmean().item() for first, second in itertools.pairwise(updates)],
    }


class WeightMovement:
    """Follows each role's weights from where training began.

    Keeps one copy of the initial weights. β acts on initial weights only, so how far they have moved says how much
    of it is left.
    """

    def __init__(self, model: nn.Module) -> None:
        self._initial = {name: p.detach().clone() for name, p in named_parameters_once(model)}
        self._before_step: dict[str, Tensor] | None = None
        self.grad_norms: dict[str, float] = {}
        self._update_rms: dict[str, float] = {}

    def before_step(self, model: nn.Module, clip_factor: float) -> None:
        """Remember weights and gradient norms (as they were before clipping by ``clip_factor``)."""
        squares = dict.fromkeys(ROLES, 0.0)
        self._before_step = {}
        for name, parameter in named_parameters_once(model):
            self._before_step[name] = parameter.detach().clone()
            if parameter.grad is not None:
                squares[role(name)] += parameter.grad.detach().double().square().sum().item()
        self.grad_norms = {kind: math.sqrt(total) / clip_factor for kind, total in squares.items()}

    def after_step(self, model: nn.Module) -> None:
        """Measure the step that :meth:`before_step` awaited."""
        if self._before_step is None:
            return
        changes = self._squares_by_role(model, self._before_step)
        self._update_rms = {kind: math.sqrt(square / count) for kind, (square, _, count) in changes.items()}
        self._before_step = None

    def summary(self, model: nn.Module) -> dict[str, dict[str, float]]:
        """By role: gradient norm before clipping, RMS of the last measured update, RMS of the weights, and the
        distance from initialization over the norm of the initial weights."""
        moved = self._squares_by_role(model, self._initial)
        summary: dict[str, dict[str, float]] = {}
        for kind, (square, reference, count) in moved.items():
            weights = sum(
                p.detach().double().square().sum().item() for n, p in named_parameters_once(model) if role(n) == kind
            )
            summary[kind] = {
                "grad_norm": self.grad_norms.get(kind, math.nan),
                "update_rms": self._update_rms.get(kind, math.nan),
                "weight_rms": math.sqrt(weights / count),
                "distance_from_init": math.sqrt(square / reference) if reference > 0 else math.nan,
            }
        return summary

    @staticmethod
    def _squares_by_role(model: nn.Module, reference: Mapping[str, Tensor]) -> dict[str, tuple[float, float, int]]:
        totals: dict[str, Any] = {}
        for name, parameter in named_parameters_once(model):
            before = reference[name]
            square, base, count = totals.get(role(name), (0.0, 0.0, 0))
            totals[role(name)] = (
                square + (parameter.detach() - before).double().square().sum().item(),
                base + before.double().square().sum().item(),
                count + parameter.numel(),
            )
        return {kind: totals[kind] for kind in ROLES if kind in totals}

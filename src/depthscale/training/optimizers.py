"""The optimizer of a run, by its name in ``train.optimizer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.train_config import TrainConfig
from depthscale.training.parameter_groups import optimizer_groups


def build_optimizer(model: LoopedLMForCausalLM, config: TrainConfig) -> Optimizer:
    """AdamW on every weight, or Muon on the blocks' matrices and AdamW on the rest."""
    groups = optimizer_groups(model, config.lr, config.weight_decay, config.base_width)
    adam: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.adam_epsilon, "fused": True}
    for group in groups:
        is_block_matrix = group.pop("is_block_matrix")
        if config.optimizer == "muon" and is_block_matrix:
            group |= {"momentum": config.resolved_muon_momentum, "adjust_lr_fn": "match_rms_adamw"}
    if config.optimizer == "adamw":
        return AdamW(groups, lr=config.lr, **adam)
    muon_groups = [group for group in groups if "momentum" in group]
    return MuonAndAdamW(muon_groups, [group for group in groups if "momentum" not in group], adam)


class MuonAndAdamW(Optimizer):
    """One optimizer of two: Muon steps the groups of matrices, AdamW the others.

    Muon replaces the momentum M of a matrix by about the nearest semi-orthogonal matrix (five Newton-Schulz steps in
    bfloat16) and, as ``match_rms_adamw``, multiplies it by 0.2 * sqrt(max(rows, columns)), the RMS of a usual AdamW
    update. Both decay weights by 1 - rate * decay in each step. Groups and state are held in common, so that
    schedulers, checkpoints and loggers see a single optimizer.

    Args:
        matrices: groups for Muon, with their rates and decays.
        others: groups for AdamW, likewise.
        adam: AdamW's further arguments.

    Source: Jordan et al., https://kellerjordan.github.io/posts/muon/; the factor: Liu et al., arXiv 2502.16982.
    """

    def __init__(self, matrices: list[dict[str, Any]], others: list[dict[str, Any]], adam: dict[str, Any]) -> None:
        self._parts = (Muon(matrices), AdamW(others, **adam))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Both parts step the groups and the state that this optimizer holds."""
        first = len(self._parts[0].param_groups)
        self._parts[0].param_groups, self._parts[1].param_groups = self.param_groups[:first], self.param_groups[first:]
        for part in self._parts:
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state; see :meth:`torch.optim.Optimizer.load_state_dict`."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

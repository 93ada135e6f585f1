"""One real SGD step and one real AdamW step of the shared matrices: measured, to first order, and bounded.

The operator norms belong to the model and not to the step, so both steps share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from depthscale.alignment.directions import gradient_visits, operator_norm, push_forward
from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.measure import ForwardPass
from depthscale.alignment.one_step import Change, change_length, optimizer_step, state_change
from depthscale.alignment.sublayers import Sublayer


def measure_real_steps(
    module: nn.Module,
    forward: Callable[[], ForwardPass],
    sublayers: Sequence[Sublayer],
    *,
    sgd_lr: float,
    adamw_lr: float,
    num_iterations: int,
) -> list[dict[str, Any]]:
    """What one step of a fresh SGD and of a fresh AdamW does to the final states; the module is left as it was.

    The bound is that of the sublayers' own matrices, so the change of those alone is what it is compared with; the
    change of all parameters, embeddings and norm gains among them, stands beside it.

    Args:
        module: that ``forward`` runs, without checkpointing.
        forward: runs it once on the batch.
        sublayers: shared ones; norm gains are left out.
        sgd_lr, adamw_lr: rates; weight decay is 0.
        num_iterations: of the power iterations.

    Returns:
        One record per optimizer, plain data.
    """
    matrices = [sublayer for sublayer in sublayers if sublayer.kind != "norm"]

    def states() -> Tensor:
        return forward().final_states

    norms = {s.name: operator_norm(module, states, s, num_iterations=num_iterations) for s in matrices}
    names = [name for s in matrices for name in s.parameters]
    visits = {key for found in gradient_visits(module, states, names).values() for key in found}
    makers: dict[str, tuple[float, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
        "sgd": (sgd_lr, lambda parameters: torch.optim.SGD(parameters, lr=sgd_lr)),
        "adamw": (adamw_lr, lambda parameters: torch.optim.AdamW(parameters, lr=adamw_lr, weight_decay=0.0)),
    }
    records = []
    for optimizer, (lr, make) in makers.items():
        whole = optimizer_step(module, lambda: forward().loss, make)
        change = {name: whole[name] for name in names if bool(whole[name].any())}
        if not change:
            raise AlignmentError(f"one {optimizer} step at rate {lr:g} moved no matrix; raise its rate")
        lengths = {s.name: change_length([change[name] for name in s.parameters if name in change]) for s in matrices}
        terms = {name: norms[name].value * lengths[name] for name in lengths}
        records.append(
            {
                "optimizer": optimizer,
                "lr": lr,
                "actual": state_change(module, states, change),
                "first_order": change_length([push_forward(module, states, change, visits=visits)]),
                "bound": sum(terms.values()),
                "terms": terms,
                "lengths": lengths,
                "all_parameters": _change_of_all(module, states, whole),
                "largest_relative_change_of_a_norm": max(norm.relative_change for norm in norms.values()),
            }
        )
    return records


def _change_of_all(module: nn.Module, states: Callable[[], Tensor], change: Change) -> float:
    return state_change(module, states, {name: tensor for name, tensor in change.items() if bool(tensor.any())})

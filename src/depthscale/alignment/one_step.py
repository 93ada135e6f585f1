"""What one optimizer step does to the final states: measured, to first order, and bounded sublayer by sublayer.

    ||F(phi + dphi) - F(phi)||  ~  ||JVP(dphi)||  <=  sum_j ||sum_r U_rj||_op * ||dphi_j||

The inequality is the triangle inequality, so it must hold wherever every parameter that moves is in some sublayer.
Under SGD dphi_j = -rate * sum_r G_rj, and the right side is rate * sum_j R_j * kappa_j * max ||U_rj|| * max ||G_rj||.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depthscale.alignment.directions import gradient_visits, operator_norm, push_forward
from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import require_scalar
from depthscale.alignment.sublayers import Sublayer
from depthscale.plan import VisitCounts
from depthscale.residual import ResidualScales, first_order_bound

Change = Mapping[str, Tensor]


@dataclass(frozen=True)
class StepChange:
    """One step.

    Attributes:
        actual: ||F(phi + dphi) - F(phi)||.
        first_order: ||JVP(dphi)||.
        bound: sum of the terms.
        terms: by sublayer, ||sum_r U_rj||_op * ||dphi_j||.
        step_norm: ||dphi||.
    """

    actual: float
    first_order: float
    bound: float
    terms: Mapping[str, float]
    step_norm: float


def optimizer_step(
    module: nn.Module,
    objective: Callable[[], Tensor],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> dict[str, Tensor]:
    """The change that one real step of a fresh optimizer makes to every parameter; the module is left as it was.

    Args:
        module: whose parameters are stepped.
        objective: runs the module and returns the loss.
        make_optimizer: for example ``lambda parameters: torch.optim.SGD(parameters, lr=1e-2)``.

    Raises:
        AlignmentError: the objective is not a finite scalar.
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    before = {name: (p.detach().clone(), p.grad) for name, p in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    try:
        value = objective()
        require_scalar(value)
        value.backward()
        make_optimizer(list(parameters.values())).step()
        return {name: p.detach() - before[name][0] for name, p in parameters.items()}
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(before[name][0])
                parameter.grad = before[name][1]


def measure_step(
    module: nn.Module,
    final_states: Callable[[], Tensor],
    change: Change,
    sublayers: Sequence[Sublayer],
    *,
    num_iterations: int = 20,
    seed: int = 0,
) -> StepChange:
    """A step's change of the final states beside its first order and its bound.

    Parameters that move and are in no sublayer (embeddings) get a term of their own. Visits that carry no gradient
    are part of the actual change but of neither first order nor bound.

    Args:
        module: that ``final_states`` runs, without checkpointing.
        final_states: runs the module once, without gradient tracking being needed.
        change: what is added to the parameters, such as :func:`optimizer_step` gives.
        sublayers: shared sublayers.
        num_iterations: of the power iterations; they approach the operator norms from below.
        seed: of their first vectors.
    """
    moved = {name: tensor for name, tensor in change.items() if bool(tensor.any())}
    if not moved:
        raise AlignmentError("the change is zero everywhere; expected a step that moves some parameter")
    inside = {name for sublayer in sublayers for name in sublayer.parameters}
    others = tuple(Sublayer(name, "other", ((name,),)) for name in moved if name not in inside)
    terms = {}
    for sublayer in (*sublayers, *others):
        length = change_length([moved[name] for name in sublayer.parameters if name in moved])
        if length > 0:
            norm = operator_norm(module, final_states, sublayer, num_iterations=num_iterations, seed=seed)
            terms[sublayer.name] = norm.value * length
    visits = {key for found in gradient_visits(module, final_states, list(moved)).values() for key in found}
    first_order = push_forward(module, final_states, moved, visits=visits)
    return StepChange(
        actual=state_change(module, final_states, moved),
        first_order=change_length([first_order]),
        bound=sum(terms.values()),
        terms=terms,
        step_norm=change_length(list(moved.values())),
    )


def predict_change(
    reference: float,
    reference_model: tuple[VisitCounts, ResidualScales],
    model: tuple[VisitCounts, ResidualScales],
    kappa: Sequence[float] | None = None,
) -> float:
    """||F(phi + dphi) - F(phi)|| by the paper's bound C * M * kappa * (beta/alpha)^2, with C fixed at the reference.

    Args:
        reference: the change measured at the reference, usually R = 1, in any unit.
        reference_model: its visit counts and scales; its kappa is 1 where R = 1.
        model: counts and scales of the model to predict, under any rule.
        kappa: measured alignment per group; None is the aligned worst case.

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> from depthscale.residual import deeploop
        >>> one, four = (DepthPlan.looped(2, rounds).counts() for rounds in (1, 4))
        >>> predict_change(1.0, (one, deeploop(one)), (four, deeploop(four)))   # flat in R under p = 1/2 when aligned
        1.0
    """
    return reference * first_order_bound(*model, kappa) / first_order_bound(*reference_model)


def state_change(module: nn.Module, final_states: Callable[[], Tensor], change: Change) -> float:
    """||F(phi + dphi) - F(phi)||, measured; parameters are put back exactly.

    Args:
        module: that ``final_states`` runs.
        final_states: runs the module once.
        change: by parameter, what is added to it.
    """
    parameters = dict(module.named_parameters())
    held = {name: parameters[name].detach().clone() for name in change}
    with torch.no_grad():
        before = final_states().clone()
        try:
            for name, tensor in change.items():
                parameters[name].add_(tensor)
            after = final_states()
        finally:
            for name, tensor in held.items():
                parameters[name].copy_(tensor)
    return change_length([after - before])


def change_length(tensors: Sequence[Tensor]) -> float:
    """Euclidean length of all of them together, summed in float64."""
    return math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors))

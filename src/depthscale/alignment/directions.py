"""Changes of the final states along a direction in parameter space, and the largest such change per unit.

The first-order change is exact (forward-mode differentiation): no step size enters. Visits can be chosen, so that
sum_r U_rj is taken over exactly those that carry gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.alignment.sublayers import Sublayer

Direction = Mapping[str, Tensor]


@dataclass(frozen=True)
class OperatorNorm:
    """Largest singular value found by power iteration, a lower bound that grows to the true one.

    Attributes:
        value: ||A v|| at the last unit vector v.
        relative_change: of the last iteration; small where it has converged.
        num_iterations: pairs of products made.
    """

    value: float
    relative_change: float
    num_iterations: int


def push_forward(
    module: nn.Module,
    final_states: Callable[[], Tensor],
    direction: Direction,
    *,
    visits: Collection[VisitKey] | None = None,
    whole: Collection[str] = (),
) -> Tensor:
    """sum_r U_r v: the derivative of the final states along ``direction``, entering at the chosen visits.

    Args:
        module: that ``final_states`` runs, without checkpointing (which hides tangents).
        final_states: runs the module once.
        direction: by parameter, a tensor of its shape; others do not move.
        visits: where the direction enters; None is at every visit, the ordinary derivative.
        whole: see :class:`VisitRecorder`.

    Raises:
        AlignmentError: a direction of another shape, or states that do not depend on the parameters.
    """

    def stand(name: str, visit: VisitKey, parameter: Tensor) -> Tensor:
        if visits is not None and visit not in visits:
            return parameter.detach()
        return forward_ad.make_dual(parameter.detach(), direction[name])

    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    for name, tensor in direction.items():
        if tensor.shape != shapes.get(name, tensor.shape):
            raise AlignmentError(
                f"the direction of '{name}' has shape {tuple(tensor.shape)}; expected {tuple(shapes[name])}"
            )
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),  # the only kernel that forward-mode differentiation goes through
        forward_ad.dual_level(),
        VisitRecorder(module, whole, list(direction), stand),
    ):
        tangent = forward_ad.unpack_dual(final_states()).tangent
        if tangent is None:
            raise AlignmentError(
                "the final states do not move with the direction; expected parameters that lead to them"
            )
        return tangent.clone()


def operator_norm(
    module: nn.Module,
    final_states: Callable[[], Tensor],
    sublayer: Sublayer,
    *,
    visit: int | None = None,
    num_iterations: int = 20,
    tolerance: float = 1e-4,
    seed: int = 0,
    whole: Collection[str] = (),
) -> OperatorNorm:
    """||sum_r U_rj|| as the largest stretch of a unit change of the sublayer's parameters.

    Each iteration costs one forward-mode pass and one forward and backward pass.

    Args:
        module: that ``final_states`` runs, without checkpointing.
        final_states: runs the module once.
        sublayer: with one member.
        visit: only U_r of this gradient-carrying visit, from 0; None sums over all of them.
        num_iterations: at most.
        tolerance: stop when the value grows by less, relatively.
        seed: of the first vector.
        whole: see :class:`VisitRecorder`.

    Raises:
        AlignmentError: the sublayer has several members, no such visit, or no effect.
    """
    if len(sublayer.members) != 1:
        raise AlignmentError(f"sublayer '{sublayer.name}' is untied; operator norms are of shared sublayers")
    names = sublayer.members[0]
    chosen = gradient_visits(module, final_states, names, whole)
    if visit is not None:
        chosen = _one_visit(chosen, visit, sublayer)
    visits = {key for found in chosen.values() for key in found}
    parameters = dict(module.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    vector = {name: torch.randn(parameters[name].shape, generator=generator).to(parameters[name]) for name in names}
    value = change = math.nan
    iteration = 0
    while iteration < num_iterations and not change < tolerance:
        length = math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in vector.values()))
        if not length > 0:
            raise AlignmentError(f"sublayer '{sublayer.name}' has no effect on the final states")
        vector = {name: tensor / length for name, tensor in vector.items()}
        image = push_forward(module, final_states, vector, visits=visits, whole=whole)
        before, value = value, float(torch.linalg.vector_norm(image, dtype=torch.float64))
        change = abs(value - before) / value if value > 0 else 0.0
        vector = _pull_back(module, final_states, names, image, visits, whole)
        iteration += 1
    return OperatorNorm(value, change, iteration)


def gradient_visits(
    module: nn.Module, final_states: Callable[[], Tensor], names: Sequence[str], whole: Collection[str] = ()
) -> dict[str, list[VisitKey]]:
    """By parameter, the visits that gradient of the final states reaches, in the order of the calls."""
    reached: dict[str, list[VisitKey]] = {name: [] for name in names}
    with VisitRecorder(module, whole, names) as recorder:
        states = final_states()
        recorder.backward(states, lambda name, visit, gradient: reached[name].append(visit), torch.ones_like(states))
        order = {visit: index for index, visit in enumerate(recorder.visits)}
    return {name: sorted(found, key=order.__getitem__) for name, found in reached.items()}


def _pull_back(
    module: nn.Module,
    final_states: Callable[[], Tensor],
    names: Sequence[str],
    cotangent: Tensor,
    visits: Collection[VisitKey],
    whole: Collection[str],
) -> dict[str, Tensor]:
    """sum_r U_r^T w over the chosen visits."""
    total: dict[str, Tensor] = {}

    def add(name: str, visit: VisitKey, gradient: Tensor) -> None:
        if visit in visits:
            total[name] = total[name] + gradient if name in total else gradient

    # The kernel of the forward-mode pass, so that both products are of one and the same matrix.
    with sdpa_kernel(SDPBackend.MATH), VisitRecorder(module, whole, names) as recorder:
        recorder.backward(final_states(), add, cotangent)
    return total


def _one_visit(chosen: Mapping[str, list[VisitKey]], visit: int, sublayer: Sublayer) -> dict[str, list[VisitKey]]:
    for name, found in chosen.items():
        if not 0 <= visit < len(found):
            raise AlignmentError(
                f"visit came as {visit} for sublayer '{sublayer.name}'; expected 0 to {len(found) - 1}, the visits of"
                f" '{name}' that carry gradient"
            )
    return {name: [found[visit]] for name, found in chosen.items()}

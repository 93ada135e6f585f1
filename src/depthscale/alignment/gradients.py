"""Gradients of each visit, all kept: exact, at the price of one copy of the parameters per visit.

For many visits or large models :mod:`depthscale.alignment.sums` keeps only what kappa needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.errors import unknown_name


@dataclass(frozen=True)
class VisitGradients:
    """What one backward pass left at every visit.

    Attributes:
        visits: by parameter, every visit it was available to, in the order of the calls.
        gradients: by parameter and visit, the gradient; a visit that gradient does not reach has no entry.
        outside: by parameter, gradient that reached it outside every call of its module.
    """

    visits: Mapping[str, tuple[VisitKey, ...]]
    gradients: Mapping[str, Mapping[VisitKey, Tensor]]
    outside: Mapping[str, Tensor]

    def of(self, parameter: str) -> list[Tensor]:
        """A parameter's gradients, one per visit that carries gradient, in the order of the calls."""
        if parameter not in self.visits:
            raise AlignmentError(unknown_name("parameter", parameter, self.visits))
        found = self.gradients.get(parameter, {})
        return [found[visit] for visit in self.visits[parameter] if visit in found]

    def total(self, parameter: str) -> Tensor | None:
        """The sum over visits and of what came from outside: autograd's gradient. None where there is none."""
        parts = self.of(parameter)
        if parameter in self.outside:
            parts.append(self.outside[parameter])
        return torch.stack(parts).sum(dim=0) if parts else None

    def vectors(self, parameters: Sequence[str]) -> Tensor:
        """Several parameters as one vector per visit, ``[visits, numbers]``.

        Raises:
            AlignmentError: the parameters are not visited equally often, or some gradient came from outside.
        """
        counts = {name: len(self.of(name)) for name in parameters}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            found = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise AlignmentError(
                f"gradient came from these numbers of visits: {found}; expected one number, at least 1"
            )
        for name in parameters:
            if name in self.outside:
                raise AlignmentError(outside_message(name))
        rows = zip(*(self.of(name) for name in parameters), strict=True)
        return torch.stack([torch.cat([gradient.reshape(-1) for gradient in row]) for row in rows])

    def cosine_matrix(self, parameters: Sequence[str]) -> Tensor:
        """Cosines between visits ``[visits, visits]`` in float64; NaN in the row and column of a zero gradient."""
        vectors = self.vectors(parameters)
        # Scaled first, so that tiny gradients do not underflow when they are squared.
        gram = (vectors / vectors.abs().amax().clamp_min(torch.finfo(vectors.dtype).tiny)).double()
        gram = gram @ gram.T
        norms = gram.diagonal().sqrt()
        return (gram / (norms[:, None] * norms[None])).clamp(-1.0, 1.0)


def per_visit_gradients(
    module: nn.Module,
    objective: Callable[[], Tensor],
    *,
    whole: Collection[str] = (),
    only: Collection[str] | None = None,
) -> VisitGradients:
    """Run ``objective`` once, forward and backward, and keep the gradient of every visit apart.

    Sums over visits equal autograd's gradient up to the rounding of the sum. Memory: one copy of a parameter for each
    visit that carries gradient, beside the activations of an ordinary backward pass.

    Args:
        module: whose parameters are told apart by visit; ``grad`` and weights are left as they were.
        objective: runs the module and returns a scalar.
        whole: see :class:`VisitRecorder`.
        only: see :class:`VisitRecorder`.

    Raises:
        AlignmentError: the objective is not a scalar with gradient, or is not finite; and what VisitRecorder raises.

    Example:
        >>> layer = nn.Linear(3, 3, bias=False)
        >>> x = torch.ones(1, 3)
        >>> found = per_visit_gradients(layer, lambda: layer(layer(x)).sum())
        >>> len(found.of("weight")), tuple(found.cosine_matrix(["weight"]).shape)
        (2, (2, 2))
    """
    gradients: dict[str, dict[VisitKey, Tensor]] = {}

    def keep(name: str, visit: VisitKey, gradient: Tensor) -> None:
        gradients.setdefault(name, {})[visit] = gradient

    with VisitRecorder(module, whole, only) as recorder:
        value = objective()
        require_scalar(value)
        outside = recorder.backward(value, keep)
        names = recorder.parameters if only is None else only
        visits = {name: recorder.visits_of(name) for name in names}
    return VisitGradients(visits, gradients, {name: value for name, value in outside.items() if name in visits})


def require_scalar(value: Tensor) -> None:
    """Refuse an objective that backward could not start from."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise AlignmentError(f"the objective came as {shape}; expected one number, such as the loss of a batch")
    if not math.isfinite(value.item()):
        raise AlignmentError(f"the objective is {value.item()}; expected a finite loss: measure before it diverges")


def outside_message(name: str) -> str:
    return (
        f"gradient reached '{name}' without a call of the module that owns it, so it belongs to no visit; name the"
        " module that uses it in whole=[...], and call modules as module(x), not module.forward(x)"
    )

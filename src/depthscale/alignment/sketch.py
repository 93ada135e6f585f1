"""Per-visit gradients as short random sketches: between sums (kappa only) and exact gradients (all in memory).

Entry i of a vector is added to bucket h(i) with sign s(i), both random. For any two vectors a and b

    E <Sa, Sb> = <a, b>        Var <Sa, Sb> = (|a|^2 |b|^2 + <a, b>^2 - 2 sum_i a_i^2 b_i^2) / size

so a cosine has a standard error of at most sqrt((1 + cos^2) / size), and a squared norm a relative one of at most
sqrt(2 / size). Memory: ``size`` numbers per visit, and one int32 per parameter for its bucket and sign.

Source: CountSketch, Charikar, Chen and Farach-Colton 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import outside_message, require_scalar
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.alignment.sublayers import Sublayer
from depthscale.alignment.sums import VisitSums


@dataclass(frozen=True)
class VisitSketch:
    """Sketched gradients of one sublayer.

    Attributes:
        name: of the sublayer.
        sketches: float64 ``[visits, size]``, in the order of the calls; visits without gradient are left out.
    """

    name: str
    sketches: Tensor

    @property
    def cosine_standard_error(self) -> float:
        """sqrt(2 / size), the largest standard error of an entry of :meth:`cosine_matrix`."""
        return math.sqrt(2 / self.sketches.shape[1])

    def cosine_matrix(self) -> Tensor:
        """Estimated cosines between visits, ``[visits, visits]``."""
        gram = self.sketches @ self.sketches.T
        norms = gram.diagonal().sqrt()
        return (gram / (norms[:, None] * norms[None])).clamp(-1.0, 1.0)

    def sums(self) -> VisitSums:
        """Estimated norms; a sum of sketches is the sketch of the sum."""
        norms = torch.linalg.vector_norm(self.sketches, dim=1).tolist()
        return VisitSums(self.name, tuple(norms), torch.linalg.vector_norm(self.sketches.sum(dim=0)).item())


def sketch_visits(
    module: nn.Module,
    objective: Callable[[], Tensor],
    sublayers: Sequence[Sublayer],
    *,
    size: int = 4096,
    seed: int = 0,
    whole: Collection[str] = (),
) -> list[VisitSketch]:
    """Run ``objective`` once, forward and backward, and sketch the gradient of every visit.

    Args:
        module: whose parameters are told apart by visit; left as it was.
        objective: runs the module and returns a scalar.
        sublayers: what is one vector; parameters at the same place of two members share their buckets, so that
            visits of untied blocks can be compared.
        size: of a sketch.
        seed: of buckets and signs.
        whole: see :class:`VisitRecorder`.

    Raises:
        AlignmentError: ``size`` is below 1, no gradient reached a sublayer, or some reached it outside every visit.
    """
    if size < 1:
        raise AlignmentError(f"size came as {size}; expected at least 1 number per visit")
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    places = {
        name: (number, member, slot)
        for number, sublayer in enumerate(sublayers)
        for member, names in enumerate(sublayer.members)
        for slot, name in enumerate(names)
    }
    hashes: dict[tuple[int, int], Tensor] = {}
    found: list[dict[tuple[int, int], Tensor]] = [{} for _ in sublayers]

    with VisitRecorder(module, whole, places) as recorder:
        value = objective()
        require_scalar(value)
        rank = {name: {visit: index for index, visit in enumerate(recorder.visits_of(name))} for name in places}
        # Drawn in the order of the sublayers, so that a seed means the same hashes in every run.
        for name, (number, _, slot) in places.items():
            if (number, slot) not in hashes:
                hashes[number, slot] = torch.randint(
                    -size, size, (shapes[name],), generator=generator, dtype=torch.int32
                )

        def add(name: str, visit: VisitKey, gradient: Tensor) -> None:
            number, member, slot = places[name]
            code = hashes[number, slot].to(gradient.device)
            signed = torch.where(code < 0, -1.0, 1.0).to(gradient.dtype) * gradient.reshape(-1)
            bucket = torch.where(code < 0, -1 - code, code)
            part = torch.bincount(bucket, weights=signed.double(), minlength=size)
            key = (member, rank[name][visit])
            found[number][key] = found[number][key] + part if key in found[number] else part

        outside = recorder.backward(value, add)
    for name in places:
        if name in outside:
            raise AlignmentError(outside_message(name))
    sketches = []
    for sublayer, parts in zip(sublayers, found, strict=True):
        if not parts:
            raise AlignmentError(f"no gradient reached sublayer '{sublayer.name}' in any visit")
        sketches.append(VisitSketch(sublayer.name, torch.stack([parts[key] for key in sorted(parts)])))
    return sketches

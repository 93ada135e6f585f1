"""What kappa needs of per-visit gradients, kept while they stream by: the sum's norm and each visit's norm.

Memory beside an ordinary backward pass: one copy of the sublayers' parameters for the sums, one more for the
preconditioner where there is one, whatever the number of visits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import outside_message
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.alignment.sublayers import Sublayer

# Squares of float32 numbers outside this range lose digits or overflow.
_SAFE_SQUARES = (1e-25, 1e30)


@dataclass(frozen=True)
class VisitSums:
    """Norms of one sublayer's gradients.

    Attributes:
        name: of the sublayer.
        visit_norms: ||g_r|| of each visit that carries gradient, in the order of the calls.
        sum_norm: ||sum_r g_r||.
    """

    name: str
    visit_norms: tuple[float, ...]
    sum_norm: float


class VisitSumsReceiver:
    """Receives the gradients of one backward pass.

    Args:
        recorder: that runs it, after its forward pass.
        sublayers: what is one vector.
        scale: by parameter, a tensor that every visit's gradient is multiplied by, such as Adam's.
    """

    def __init__(
        self, recorder: VisitRecorder, sublayers: Sequence[Sublayer], scale: Mapping[str, Tensor] | None = None
    ) -> None:
        self._sublayers, self._scale = sublayers, scale or {}
        self._places = {
            name: (number, index, slot)
            for number, sublayer in enumerate(sublayers)
            for index, member in enumerate(sublayer.members)
            for slot, name in enumerate(member)
        }
        self._rank = {
            name: {visit: rank for rank, visit in enumerate(recorder.visits_of(name))} for name in self._places
        }
        self._sums: list[dict[int, Tensor]] = [{} for _ in sublayers]
        self._squares: list[dict[tuple[int, int], dict[str, Tensor | float]]] = [{} for _ in sublayers]

    def __call__(self, name: str, visit: VisitKey, gradient: Tensor) -> None:
        if name not in self._places:
            return
        number, member, slot = self._places[name]
        if name in self._scale:
            gradient.mul_(self._scale[name])
        squares = self._squares[number].setdefault((member, self._rank[name][visit]), {})
        squares[name] = squared_norm(gradient)
        held = self._sums[number].get(slot)
        if held is None:
            self._sums[number][slot] = gradient
        else:
            held.add_(gradient)

    def finish(self, outside: Mapping[str, Tensor]) -> list[VisitSums]:
        """The norms, one entry per sublayer.

        Args:
            outside: what :meth:`VisitRecorder.backward` returned.

        Raises:
            AlignmentError: a parameter got gradient from no visit, from other visits than the rest of its sublayer,
                or outside every visit; or a gradient is not finite.
        """
        return [self._finish(number, sublayer, outside) for number, sublayer in enumerate(self._sublayers)]

    def _finish(self, number: int, sublayer: Sublayer, outside: Mapping[str, Tensor]) -> VisitSums:
        found = self._squares[number]
        for name in sublayer.parameters:
            if name in outside:
                raise AlignmentError(outside_message(name))
            if not self._rank[name]:
                raise AlignmentError(f"the module of '{name}' was never visited; leave sublayer '{sublayer.name}' out")
        for member, names in enumerate(sublayer.members):
            visits = {name: sum(name in squares for squares in found.values()) for name in names}
            if 0 in visits.values():
                without = next(name for name, count in visits.items() if count == 0)
                raise AlignmentError(
                    f"no gradient reached '{without}' in any visit; expected it to be trainable and used"
                )
            uneven = [sorted(set(names) - set(squares)) for (of, _), squares in found.items() if of == member]
            if any(uneven):
                missing = next(names for names in uneven if names)[0]
                raise AlignmentError(
                    f"gradient reached '{missing}' in fewer visits than the rest of sublayer '{sublayer.name}';"
                    " expected the parameters of a sublayer to be visited together"
                )
        norms = []
        for (_, rank), squares in sorted(found.items()):
            norms.append(math.sqrt(sum(map(float, squares.values()))))
            if not math.isfinite(norms[-1]):
                raise AlignmentError(
                    f"gradients of sublayer '{sublayer.name}' are not finite at visit {rank}; measure before they are"
                )
        total = math.sqrt(sum(float(squared_norm(part)) for part in self._sums[number].values()))
        self._sums[number].clear()
        return VisitSums(sublayer.name, tuple(norms), total)


def squared_norm(gradient: Tensor) -> Tensor | float:
    """||g||^2, exact to float32 rounding whatever the size of the entries.

    A tensor where a number would make its device wait.
    """
    flat = gradient.reshape(-1)
    if flat.device.type == "cpu" and flat.dtype == torch.float32:
        fast = torch.dot(flat, flat).item()  # five times faster than a float64 reduction
        if _SAFE_SQUARES[0] < fast < _SAFE_SQUARES[1]:
            return fast
    return torch.linalg.vector_norm(flat, dtype=torch.float64).square()

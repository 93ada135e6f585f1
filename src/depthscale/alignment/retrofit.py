"""Bring a residual rule to a model that somebody else wrote: its init gain, and its skip or branch scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from depthscale.alignment.errors import AlignmentError
from depthscale.errors import unknown_name


@torch.no_grad()
def apply_init_gain(module: nn.Module, names: Sequence[str | tuple[str, slice]], gain: float) -> None:
    """Multiply initial weights by ``gain`` (beta), once, in place.

    A fused matrix is scaled in part: ``("attn.c_attn.weight", slice(512, 768))`` are rows 512 to 767, and
    ``("attn.c_attn.weight", (slice(None), slice(512, 768)))`` columns, where a model stores matrices transposed. For
    the rules of this package: value, output and MLP matrices, never query and key.

    Args:
        module: with freshly initialized weights; trained ones are no longer what the rule speaks of.
        names: parameters by dotted name, or pairs of a name and what to take of it.
        gain: positive.

    Raises:
        AlignmentError: unknown name, one weight twice, an empty slice, or a gain that is not positive.

    Example:
        >>> layer = nn.Linear(2, 6, bias=False)
        >>> _ = nn.init.ones_(layer.weight)
        >>> apply_init_gain(layer, [("weight", slice(4, 6))], 0.5)
        >>> layer.weight[:, 0].tolist()
        [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
    """
    if not (math.isfinite(gain) and gain > 0):
        raise AlignmentError(f"gain came as {gain!r}; expected a positive number such as 0.1")
    parameters = dict(module.named_parameters(remove_duplicate=False))
    touched: dict[int, Tensor] = {}
    chosen: list[Tensor] = []
    for entry in names:
        name, part = (entry, slice(None)) if isinstance(entry, str) else entry
        if name not in parameters:
            raise AlignmentError(unknown_name("parameter", name, parameters))
        parameter = parameters[name]
        if parameter[part].numel() == 0:
            raise AlignmentError(f"{part} of '{name}' {tuple(parameter.shape)} is empty; expected some of its numbers")
        mark = touched.setdefault(id(parameter), torch.zeros(parameter.shape, dtype=torch.bool))
        if bool(mark[part].any()):
            raise AlignmentError(f"'{name}' came twice (or is tied to one that came); expected each weight once")
        mark[part] = True
        chosen.append(parameter[part])
    # Only once everything is known to be right: an error leaves no weight half scaled.
    for weights in chosen:
        weights.mul_(gain)


class ScaledResidual(nn.Module):
    """A residual sublayer x <- after(skip * x + branch * f(before(x))) around a module that knows no scales.

        post      ScaledResidual(f, skip=alpha, after=norm)
        sandwich  ScaledResidual(f, skip=alpha, before=inner_norm, after=norm)
        pre       ScaledResidual(f, branch=epsilon, before=norm)

    Args:
        sublayer: f, which must not add its own skip.
        skip: alpha, a plain number that no way of loading weights can lose.
        branch: epsilon.
        before: applied to the stream before f; None is the identity.
        after: applied to the sum; None is the identity.

    Source: DeepLoop, arXiv 2607.13491 (post, sandwich); arXiv 2606.18524 (pre).

    Example:
        >>> residual = ScaledResidual(nn.Identity(), skip=2.0)
        >>> residual(torch.ones(2)).tolist()
        [3.0, 3.0]
    """

    def __init__(
        self,
        sublayer: Callable[..., Tensor],
        skip: float = 1.0,
        branch: float = 1.0,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("skip", skip), ("branch", branch)):
            if not (math.isfinite(value) and value > 0):
                raise AlignmentError(f"{name} came as {value!r}; expected a positive number")
        self.sublayer, self.before, self.after = sublayer, before, after
        self.skip, self.branch = float(skip), float(branch)

    def forward(self, hidden_state: Tensor, *context: object) -> Tensor:
        """One visit; ``context`` (masks, positions) is handed to f."""
        entering = hidden_state if self.before is None else self.before(hidden_state)
        mixed = self.skip * hidden_state + self.branch * self.sublayer(entering, *context)
        return mixed if self.after is None else self.after(mixed)

"""Bring a residual rule to a model that somebody else wrote: its init gain, and its skip or branch scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gain_marks import Region, forget, mark, marked_gains, overlap, owners
from depthscale.errors import unknown_name

#: A parameter by its dotted name, or a name and what to take of it.
Weights = str | tuple[str, slice | tuple[slice, ...]]


@torch.no_grad()
def apply_init_gain(module: nn.Module, names: Sequence[Weights], gain: float) -> None:
    """Multiply initial weights by ``gain`` (beta), once, in place, sharded weights too.

    What was multiplied is marked beside the weights and saved in ``state_dict`` (a small buffer ``NAME_init_gain``):
    a second call changes nothing, and neither does one after a resume. On the meta device there is nothing to multiply
    yet: the call only announces the marks, so that a checkpoint can be loaded before the weights are ever drawn, and
    is to be made again once they are. Whoever draws marked weights anew says so with :func:`forget_init_gain`.

    A fused matrix is scaled in part: ``("attn.c_attn.weight", slice(512, 768))`` are rows 512 to 767, and
    ``("attn.c_attn.weight", (slice(None), slice(512, 768)))`` columns, where a model stores matrices transposed. For
    the rules of this package: value, output and MLP matrices, never query and key.

    Args:
        module: with freshly initialized weights; trained ones are no longer what the rule speaks of.
        names: parameters by dotted name, or pairs of a name and what to take of it.
        gain: positive.

    Raises:
        AlignmentError: unknown name, one weight twice, an empty or backward slice, a gain that is not positive, or a
            weight that another gain has multiplied before.

    Example:
        >>> layer = nn.Linear(2, 6, bias=False)
        >>> _ = nn.init.ones_(layer.weight)
        >>> for _ in range(2):
        ...     apply_init_gain(layer, [("weight", slice(4, 6))], 0.5)
        >>> layer.weight[:, 0].tolist()
        [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
    """
    if not (math.isfinite(gain) and gain > 0):
        raise AlignmentError(f"gain came as {gain!r}; expected a positive number such as 0.1")
    parameters = dict(module.named_parameters(remove_duplicate=False))
    asked: list[tuple[str, nn.Parameter, Region]] = []
    for entry in names:
        name, part = (entry, slice(None)) if isinstance(entry, str) else entry
        if name not in parameters:
            raise AlignmentError(unknown_name("parameter", name, parameters))
        region = _region(name, parameters[name], part)
        if any(parameters[name] is other and overlap(region, taken) for _, other, taken in asked):
            raise AlignmentError(f"'{name}' came twice (or is tied to one that came); expected each weight once")
        asked.append((name, parameters[name], region))
    fresh = [
        (parameter, region) for name, parameter, region in asked if not _is_done(module, name, parameter, region, gain)
    ]
    # Only once everything is known to be right: an error leaves no weight half scaled.
    for parameter, region in fresh:
        exists = parameter.device.type != "meta"
        if exists:
            _multiply(parameter, region, gain)
        for owner, own_name in list(owners(module, parameter)):
            mark(owner, own_name, region, gain if exists else None)


def forget_init_gain(module: nn.Module) -> None:
    """Say that the weights of ``module`` were drawn anew, so that :func:`apply_init_gain` may multiply them again."""
    forget(module)


def _region(name: str, parameter: Tensor, part: slice | tuple[slice, ...]) -> Region:
    slices = part if isinstance(part, tuple) else (part,)
    if len(slices) > parameter.ndim or not all(isinstance(one, slice) for one in slices):
        raise AlignmentError(f"{part} of '{name}' {tuple(parameter.shape)} came; expected one slice a dimension")
    slices += (slice(None),) * (parameter.ndim - len(slices))
    region = tuple(one.indices(size) for one, size in zip(slices, parameter.shape, strict=True))
    if any(step < 0 for *_, step in region):
        raise AlignmentError(f"{part} of '{name}' runs backwards; expected slices with positive steps")
    if any(not range(*bounds) for bounds in region):
        raise AlignmentError(f"{part} of '{name}' {tuple(parameter.shape)} is empty; expected some of its numbers")
    return region


def _is_done(module: nn.Module, name: str, parameter: Tensor, region: Region, gain: float) -> bool:
    """Whether the region was multiplied before, by the same gain and as a whole."""
    for owner, own_name in owners(module, parameter):
        for before, with_gain in marked_gains(owner, own_name).items():
            if not overlap(before, region):
                continue
            if before != region or with_gain != gain:
                raise AlignmentError(
                    f"'{name}' was multiplied by {with_gain!r} before{'' if before == region else ', in another part'},"
                    f" and came with {gain!r}; a gain acts once: call forget_init_gain where weights are drawn anew"
                )
            return True
    return False


def _multiply(parameter: Tensor, region: Region, gain: float) -> None:
    factor = torch.full((1,) * parameter.ndim, gain, dtype=_working_dtype(parameter), device=parameter.device)
    partial = [size != len(range(*bounds)) for bounds, size in zip(region, parameter.shape, strict=True)]
    if any(partial):
        # As small as it can be: broadcast along every dimension that is taken as a whole.
        shape = [size if cut else 1 for size, cut in zip(parameter.shape, partial, strict=True)]
        gained, factor = factor, torch.ones(shape, dtype=factor.dtype, device=parameter.device)
        factor[tuple(slice(*bounds) if cut else slice(None) for bounds, cut in zip(region, partial, strict=True))] = (
            gained
        )
    if torch.distributed.is_available():
        from torch.distributed.tensor import DTensor, Replicate

        if isinstance(parameter, DTensor):
            # Every process made the same factor, and multiplies its own shard by its own part of it.
            everywhere = [Replicate()] * parameter.device_mesh.ndim
            factor = DTensor.from_local(factor, parameter.device_mesh, everywhere, run_check=False)
    parameter.mul_(factor)


def _working_dtype(parameter: Tensor) -> torch.dtype:
    """A factor in less than float32 would round the gain before it acts."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


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

    Raises:
        AlignmentError: a scale that is not positive, or a skip scale on a pre-norm block, as DeepLoop's would be.

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
        if skip != 1 and before is not None and after is None:
            raise AlignmentError(
                f"skip came as {skip!r} with a norm before f and none after the sum: a pre-norm block; its stream would"
                f" grow {skip:g}-fold at every visit; put a norm after, or use rule 'inverse_rounds' and its branch"
            )
        self.sublayer, self.before, self.after = sublayer, before, after
        self.skip, self.branch = float(skip), float(branch)

    def forward(self, hidden_state: Tensor, *context: object) -> Tensor:
        """One visit; ``context`` (masks, positions) is handed to f."""
        entering = hidden_state if self.before is None else self.before(hidden_state)
        mixed = self.skip * hidden_state + self.branch * self.sublayer(entering, *context)
        return mixed if self.after is None else self.after(mixed)

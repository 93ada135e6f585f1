"""Which initial weights a gain has multiplied already, remembered beside the weights and saved with them.

A mark is a line in a small buffer ``NAME_init_gain`` of the module that owns the parameter NAME, so that every way of
saving and loading weights carries it, sharded ones too. What counts while a program runs is a plain table of Python
numbers on the same module: ``to_empty`` and changes of precision overwrite buffers, and must not lose or invent marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

#: For each dimension of a parameter the start, stop and step of what is meant.
Region = tuple[tuple[int, int, int], ...]

_TABLE = "_depthscale_init_gains"
_SUFFIX = "_init_gain"
#: Stands for a region that is announced (on the meta device, say) but not multiplied yet.
_NOT_YET = 0.0


def marked_gains(module: nn.Module, name: str) -> Mapping[Region, float]:
    """The gains that parts of a module's own parameter were multiplied by."""
    return {region: gain for region, gain in _table(module).get(name, {}).items() if gain != _NOT_YET}


def mark(module: nn.Module, name: str, region: Region, gain: float | None) -> None:
    """Remember that ``region`` of the module's own parameter was multiplied by ``gain``; None only announces it."""
    if _TABLE not in module.__dict__:
        setattr(module, _TABLE, {})
        module.register_state_dict_pre_hook(_write_buffers)
        module.register_load_state_dict_pre_hook(_read_state)
    gains = _table(module).setdefault(name, {})
    gains[region] = gains.get(region, _NOT_YET) if gain is None else gain
    device = module._parameters[name].device  # type: ignore[union-attr]
    lines = torch.zeros(len(gains), 3 * len(region) + 1, dtype=torch.int64, device=device)
    module.register_buffer(name + _SUFFIX, lines)


def forget(module: nn.Module) -> None:
    """Remove every mark from ``module`` and its submodules."""
    for part in module.modules():
        for name in list(_table(part)):
            del part._buffers[name + _SUFFIX]
        _table(part).clear()


def owners(module: nn.Module, parameter: Tensor) -> Iterator[tuple[nn.Module, str]]:
    """Every module below ``module`` that holds this very parameter as its own, and under what name."""
    for part in module.modules():
        for name, own in part._parameters.items():
            if own is parameter:
                yield part, name


def overlap(first: Region, second: Region) -> bool:
    """Whether two regions of one parameter share a number."""
    return all(not set(range(*a)).isdisjoint(range(*b)) for a, b in zip(first, second, strict=True))


def _table(module: nn.Module) -> dict[str, dict[Region, float]]:
    table: dict[str, dict[Region, float]] = module.__dict__.get(_TABLE, {})
    return table


def _write_buffers(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    for name, gains in _table(module).items():
        buffer = module._buffers[name + _SUFFIX]
        assert buffer is not None, "made together with the table"
        if buffer.device.type != "meta":
            buffer.copy_(_encoded(gains))


def _read_state(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *rest: object) -> None:
    for name, gains in _table(module).items():
        lines = state_dict.get(prefix + name + _SUFFIX)
        # One that is missing or of another shape is refused by load_state_dict itself.
        if lines is not None and lines.shape[0] == len(gains):
            gains.clear()
            gains.update(_decoded(lines))


def _encoded(gains: Mapping[Region, float]) -> Tensor:
    """int64 lines: the bits of the gain, then start, stop and step of each dimension. Whole numbers outlast casts."""
    bits = torch.tensor(list(gains.values()), dtype=torch.float64).view(torch.int64)
    regions = torch.tensor([[number for bounds in region for number in bounds] for region in gains], dtype=torch.int64)
    return torch.cat([bits[:, None], regions], dim=1)


def _decoded(lines: Tensor) -> dict[Region, float]:
    lines = lines.cpu()
    values = lines[:, 0].contiguous().view(torch.float64).tolist()
    regions = lines[:, 1:].reshape(len(lines), -1, 3).tolist()
    return {tuple((a, b, c) for a, b, c in region): gain for region, gain in zip(regions, values, strict=True)}

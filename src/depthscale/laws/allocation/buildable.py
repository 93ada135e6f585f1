"""Grids of buildable shapes around a law's own optimum, for one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.allocation.candidates import Candidates, Limits, ShapeTemplate, enumerate_candidates
from depthscale.laws.frontier import Budget, block_parameters, optimal_shape
from depthscale.laws.law import AdditiveLaw

Array = NDArray[np.float64]
# Numbers or arrays [S], as in depthscale.laws.quantities.
Values = Any

#: Width over depth where a law reads neither: between those of GPT-3 and Llama 3.
CONVENTIONAL_ASPECT = 128.0
#: Columns that candidates have a value for.
KNOWN_COLUMNS = ("width", "depth", "blocks", "rounds", "parameters", "unrolled_parameters", "flops_per_token", "tokens")
#: Weights, gradients and two moments: bytes per parameter, to start the search from.
_BYTES_PER_PARAMETER = 16.0
_A_LITTLE_MORE = 1.02  # multiples of 64 do not meet a size exactly
_STEP = 1.05  # between neighbors of the grid, where multiples of 64 lie closer
_FINE = 1.12  # around the optimum every multiple is tried
_LARGEST = 1e40  # of any budget; nothing on Earth is near it
_COMPUTES = (1.0, 1e45)
_SECANT_STEPS = 40


@dataclass(frozen=True)
class Spending:
    """What the user has; exactly one of the four.

    Attributes:
        flops: training FLOPs.
        parameters: at most.
        memory: bytes for weights, gradients and moments, at most.
        tokens: of the run.
    """

    flops: float | None = None
    parameters: float | None = None
    memory: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"{len(given)} budgets came ({', '.join(given) or 'none'}); expected exactly one of"
                " --flops, --params, --memory, --tokens"
            )
        if not 0 < self.value <= _LARGEST:
            raise ConfigError(
                f"budget {given[0]} came as {self.value:g}; expected a positive number of at most {_LARGEST:g}"
            )

    @property
    def kind(self) -> str:
        """Name of the one that is given."""
        return next(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def value(self) -> float:
        """Its value."""
        return float(getattr(self, self.kind))


def require_known(law: AdditiveLaw) -> None:
    """Refuse a law over columns that no shape answers.

    Raises:
        ConfigError: names the column.
    """
    odd = [name for name in law.columns if name not in KNOWN_COLUMNS]
    if odd:
        raise ConfigError(f"law '{law.name}' reads {', '.join(odd)}; shapes can only be chosen over {KNOWN_COLUMNS!r}")


def closed_optimum(
    law: AdditiveLaw, parameters: Mapping[str, float], budget: Budget, spending: Spending
) -> tuple[float, dict[str, float]]:
    """The compute-optimal FLOPs and columns, as built, that spend exactly what there is.

    With FLOPs that is the frontier; a number of parameters, bytes or tokens picks the point that has it.

    Raises:
        ConfigError: no point of the frontier has it.
    """
    compute, shape = closed_optima(law, {k: np.asarray(v) for k, v in parameters.items()}, budget, spending)
    if not _COMPUTES[0] <= compute <= _COMPUTES[1]:
        raise ConfigError(f"budget {spending.kind} = {spending.value:g} lies outside every frontier of '{law.name}'")
    return float(compute), {name: float(value) for name, value in shape.items()}


def closed_optima(
    law: AdditiveLaw, parameters: Mapping[str, Values], budget: Budget, spending: Spending
) -> tuple[Values, dict[str, Values]]:
    """:func:`closed_optimum` of many parameter sets [S]; nan where a set has no frontier."""

    def built(compute: Values) -> dict[str, Values]:
        shape = optimal_shape(law, parameters, budget, compute)
        return {name: budget.as_built(name, value) for name, value in shape.items()}

    with np.errstate(all="ignore"):
        compute: Values = np.asarray(spending.value if spending.kind == "flops" else 1.0)
        # Every column is a power of compute on the frontier, so two points of it give all; nearly so under an offset.
        steps = 0 if spending.kind == "flops" else _SECANT_STEPS if budget.offsets else 1
        for _ in range(steps):
            low, high = (np.log(_held_size(built(compute * factor), spending)) for factor in (1.0, math.e))
            compute = compute * np.exp((math.log(spending.value) - low) / (high - low))
        return compute, built(compute)


def _held_size(shape: Mapping[str, Values], spending: Spending) -> Values:
    if spending.kind == "tokens":
        return shape["tokens"]
    size = _parameters(shape)
    return size * _BYTES_PER_PARAMETER if spending.kind == "memory" else size


def limits_of(
    spending: Spending, optimum: Mapping[str, float], unique_tokens: float | None, rounds: float = 1.0
) -> Limits:
    """The budget as limits of candidates; what it leaves open follows the frontier.

    Args:
        spending: the budget.
        optimum: the frontier's columns.
        unique_tokens: tokens that exist.
        rounds: that the frontier was taken at. Shapes with more rounds have fewer tokens, or are smaller: a round costs
            as much as a block, and no shape costs more than the frontier's.
    """
    if spending.kind == "flops":
        return Limits(flops=spending.value, unique_tokens=unique_tokens)
    if spending.kind == "tokens":
        size = _parameters(optimum) * rounds * _A_LITTLE_MORE
        return Limits(tokens=spending.value, unrolled_parameters=size, unique_tokens=unique_tokens)
    tokens = optimum["tokens"] * rounds
    if spending.kind == "parameters":
        return Limits(unrolled_tokens=tokens, parameters=spending.value, unique_tokens=unique_tokens)
    return Limits(unrolled_tokens=tokens, memory=spending.value, unique_tokens=unique_tokens)


def center_of(law: AdditiveLaw, optimum: Mapping[str, float], growth: float, aspect: float) -> tuple[float, float]:
    """Width and visits to search around, sizes multiplied by ``growth``."""
    if "width" in optimum:
        depth = optimum.get("depth", optimum.get("blocks", 1.0))
        return optimum["width"] * growth ** (1 / 3), depth * growth ** (1 / 3)
    depth = depth_of(_parameters(optimum) * growth, aspect)
    return aspect * depth, depth


def depth_of(parameters: Any, aspect: float) -> Any:
    """Depth of so many parameters at width = aspect x depth."""
    return (parameters / block_parameters(aspect, 1.0)) ** (1 / 3)


def shapes_around(
    template: ShapeTemplate,
    limits: Limits,
    center: tuple[float, float],
    reach: float,
    rounds: Sequence[int],
    aspect: float | None,
) -> Candidates:
    """Every buildable shape within a factor ``reach`` of the center.

    Args:
        template: what stays the same.
        limits: of the budget.
        center: width and visits.
        reach: factor each way.
        rounds: numbers of rounds.
        aspect: width over visits to keep to, for laws that do not read shape; None lets both vary.
    """
    step = template.width_step
    most = max(rounds)
    widths = grid(center[0] / reach, center[0] * reach, step, center[0])
    blocks = grid(center[1] / reach / most, center[1] * reach, 1, center[1])
    found = enumerate_candidates(template, limits, widths, blocks, rounds)
    if aspect is None:
        return found
    visits = found.blocks * found.rounds
    keep = np.abs(found.width - aspect * visits) <= np.maximum(step / 2, (_STEP - 1) * aspect * visits)
    if not keep.any():
        raise ConfigError(f"no shape near width = {aspect:g} x depth fits the budget; expected another --aspect")
    return found.take(keep)


def grid(low: float, high: float, step: int, center: float) -> list[int]:
    """Multiples of ``step``, 5 % apart or more, and every one (or every 1 %) around the center.

    Example:
        >>> grid(100, 420, 64, 200)
        [128, 192, 256, 320, 384, 448]
    """
    count = max(math.ceil(math.log(high / low) / math.log(_STEP)), 1) + 1
    values = [*np.geomspace(low, high, count), *np.geomspace(center / _FINE, center * _FINE, 25)]
    return sorted({max(round(float(value) / step), 1) * step for value in values})


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of several budgets below each other."""
    return Candidates(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Candidates)))


def deep_enough(candidates: Candidates, offset: float) -> Candidates:
    """Shapes whose depth is positive under every form's convention."""
    keep = candidates.blocks * candidates.rounds > offset
    if not keep.any():
        raise ConfigError(f"every shape that fits has at most {offset:g} layers; expected a larger budget")
    return candidates.take(keep)


def thinned(values: Sequence[float] | Array, most: int) -> list[float]:
    """At most that many of the distinct values, evenly over their order, both ends among them."""
    unique = np.unique(values)
    picked = np.unique(np.linspace(0, len(unique) - 1, min(most, len(unique))).round().astype(int))
    result: list[float] = unique[picked].tolist()
    return result


def _parameters(shape: Mapping[str, Any]) -> Any:
    for name in ("parameters", "unrolled_parameters"):
        if name in shape:
            return shape[name]
    if "width" in shape:
        return block_parameters(shape["width"], shape.get("depth", shape.get("blocks", 1.0)))
    raise ConfigError(f"columns {', '.join(shape)} say nothing of parameters; give the budget as --flops")

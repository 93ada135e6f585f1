"""Grids of buildable shapes around a law's own optimum, for one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from depthscale.errors import ConfigError
from depthscale.laws.candidates import WIDTH_STEP, Candidates, Limits, ShapeTemplate, enumerate_candidates
from depthscale.laws.frontier import Budget, optimal_shape
from depthscale.laws.law import AdditiveLaw

Array = NDArray[np.float64]

#: Width over depth where a law reads neither: between those of GPT-3 and Llama 3.
CONVENTIONAL_ASPECT = 128.0
#: Columns that candidates have a value for.
KNOWN_COLUMNS = ("width", "depth", "blocks", "rounds", "parameters", "unrolled_parameters", "flops_per_token", "tokens")
#: Weights, gradients and two moments: bytes per parameter, to start the search from.
_BYTES_PER_PARAMETER = 16.0
_STEP = 1.05  # between neighbors of the grid, where multiples of 64 lie closer
_FINE = 1.12  # around the optimum every multiple is tried
_COMPUTES = (1.0, 1e45)


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
        if not 0 < self.value < math.inf:
            raise ConfigError(f"budget {given[0]} came as {self.value:g}; expected a positive number")

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
    """The compute-optimal FLOPs and columns that spend exactly what there is.

    With FLOPs that is the frontier; a number of parameters, bytes or tokens picks the point that has it.
    """
    arrays = {name: np.asarray(value) for name, value in parameters.items()}

    def shape(compute: float) -> dict[str, float]:
        return {name: float(v) for name, v in optimal_shape(law, arrays, budget, compute).items()}

    if spending.kind == "flops":
        return spending.value, shape(spending.value)

    def gap(log_compute: float) -> float:
        found = shape(math.exp(log_compute))
        size = found["tokens"] if spending.kind == "tokens" else _parameters(found)
        if spending.kind == "memory":
            size *= _BYTES_PER_PARAMETER
        return math.log(size / spending.value)

    low, high = map(math.log, _COMPUTES)
    if gap(low) > 0 or gap(high) < 0:
        raise ConfigError(f"budget {spending.kind} = {spending.value:g} lies outside every frontier of '{law.name}'")
    compute = math.exp(brentq(gap, low, high))
    return compute, shape(compute)


def limits_of(spending: Spending, optimum: Mapping[str, float], unique_tokens: float | None) -> Limits:
    """The budget as limits of candidates; what it leaves open follows the frontier."""
    if spending.kind == "flops":
        return Limits(flops=spending.value, unique_tokens=unique_tokens)
    if spending.kind == "tokens":
        return Limits(tokens=spending.value, parameters=_parameters(optimum) * 1.02, unique_tokens=unique_tokens)
    tokens = min(optimum["tokens"], unique_tokens or math.inf)
    if spending.kind == "parameters":
        return Limits(tokens=tokens, parameters=spending.value)
    return Limits(tokens=tokens, memory=spending.value)


def center_of(law: AdditiveLaw, optimum: Mapping[str, float], growth: float, aspect: float) -> tuple[float, float]:
    """Width and visits to search around, sizes multiplied by ``growth``."""
    if "width" in optimum:
        depth = optimum.get("depth", optimum.get("blocks", 1.0))
        return optimum["width"] * growth ** (1 / 3), depth * growth ** (1 / 3)
    depth = (_parameters(optimum) * growth / (12 * aspect**2)) ** (1 / 3)
    return aspect * depth, depth


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
    step = math.lcm(WIDTH_STEP, template.head_dim * (template.num_key_value_heads or template.queries_per_key_value))
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


def _parameters(shape: Mapping[str, float]) -> float:
    for name in ("parameters", "unrolled_parameters"):
        if name in shape:
            return shape[name]
    if "width" in shape:
        return 12 * shape["width"] ** 2 * shape.get("depth", shape.get("blocks", 1.0))
    raise ConfigError(f"columns {', '.join(shape)} say nothing of parameters; give the budget as --flops")

"""Which affordable run would narrow a far prediction most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.allocation.allocate import Form, most_useful_run
from depthscale.laws.allocation.buildable import deep_enough, depth_of, grid, joined, thinned
from depthscale.laws.allocation.candidates import Candidates, Limits, ShapeTemplate, enumerate_candidates
from depthscale.laws.frontier import Budget, block_parameters

Array = NDArray[np.float64]

_A_LITTLE_BEYOND = 2.0  # how far from the rows a proposed run may lie
_RUN_COSTS = (1 / 30, 1 / 10, 1 / 3, 1.0, 3.0)  # of the rows' largest budget
_RUN_LINES = 24


@dataclass(frozen=True)
class Workshop:
    """What a proposed run is built with.

    Attributes:
        template: what stays the same.
        unique_tokens: tokens that exist.
        rounds: numbers of rounds to try.
        aspect: width over visits, around which runs stay for laws that do not read shape.
        reads_shape: the law reads width.
    """

    template: ShapeTemplate
    unique_tokens: float | None
    rounds: Sequence[int]
    aspect: float
    reads_shape: bool


def propose_run(
    form: Form, target: Candidates, budget: Budget, workshop: Workshop, offset: float
) -> dict[str, float] | None:
    """The run that would help most, at most three times as dear as the rows' dearest and near their range.

    Args:
        form: whose parameters leave the prediction uncertain.
        target: the shape whose loss is predicted, one candidate.
        budget: by which the rows' cost is counted.
        workshop: what can be built.
        offset: layers that some form does not count; shallower runs are left out.
    """
    data = form.fit.data
    largest = float(budget.spent(data.columns).max())
    goal = float(target.flops[0])
    parts = []
    low_width, high_width, low_depth, high_depth = _run_range(data.columns, workshop.aspect)
    step = workshop.template.width_step
    widths = thinned(np.array(grid(low_width, high_width, step, math.sqrt(low_width * high_width))), _RUN_LINES)
    depths = thinned(np.array(grid(low_depth, high_depth, 1, math.sqrt(low_depth * high_depth))), _RUN_LINES)
    for share in _RUN_COSTS:
        cost = min(largest * share, goal)
        try:
            limits = Limits(flops=cost, unique_tokens=workshop.unique_tokens)
            part = enumerate_candidates(
                workshop.template, limits, [*map(int, widths)], [*map(int, depths)], workshop.rounds
            )
            parts.append(_near_rows(deep_enough(part, offset), form, None if workshop.reads_shape else workshop.aspect))
        except ConfigError:
            continue
    runs = joined(parts) if parts else None
    if runs is None or not len(runs.width):
        return None
    best, removed = most_useful_run(form, target, runs)
    names = ("width", "blocks", "rounds", "tokens", "parameters")
    chosen = {name: float(runs.columns[name][best]) for name in names}
    return {**chosen, "flops": float(runs.flops[best]), "variance_removed": removed}


def _run_range(columns: Mapping[str, Array], aspect: float) -> tuple[float, float, float, float]:
    if "width" in columns and ("depth" in columns or "blocks" in columns):
        width, depth = columns["width"], columns["depth" if "depth" in columns else "blocks"]
    else:
        size = columns["parameters" if "parameters" in columns else "unrolled_parameters"]
        depth = depth_of(size, aspect)
        width = aspect * depth
    reach = _A_LITTLE_BEYOND
    return width.min() / reach, width.max() * reach, max(depth.min() / reach, 1.0), depth.max() * reach


def _size(columns: Mapping[str, Array]) -> Array | None:
    """Parameters of each row, counted from the shape where the rows do not say; None where they say no shape."""
    if "parameters" in columns:
        return columns["parameters"]
    deep = "blocks" if "blocks" in columns else "depth"
    return block_parameters(columns["width"], columns[deep]) if {"width", deep} <= set(columns) else None


def _near_rows(runs: Candidates, form: Form, aspect: float | None) -> Candidates:
    keep = np.ones(len(runs.width), dtype=np.bool_)
    columns = form.columns(runs)
    for name in form.fit.law.columns:
        values = form.fit.data.column(name)
        keep &= (columns[name] >= values.min() / _A_LITTLE_BEYOND) & (columns[name] <= values.max() * _A_LITTLE_BEYOND)
    # Corners of the range help most on paper: large models on hardly any tokens are no runs that anyone makes.
    size = _size(form.fit.data.columns)
    if size is not None and "tokens" in form.fit.data.columns:
        given = form.fit.data.column("tokens") / size
        asked = runs.tokens / runs.parameters
        keep &= (asked >= given.min() / _A_LITTLE_BEYOND) & (asked <= given.max() * _A_LITTLE_BEYOND)
    if aspect is not None:
        visits = runs.blocks * runs.rounds
        keep &= (runs.width > visits * aspect / 2) & (runs.width < visits * aspect * 2)
    return runs.take(keep)

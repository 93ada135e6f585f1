"""Shapes that meet several budgets at once, by search over small grids of widths."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from depthscale.budget.flops import flops_per_token, kv_cache_bytes_per_token
from depthscale.budget.parameters import ModelShape, count_parameters, require_positive
from depthscale.errors import PlanError, unknown_name
from depthscale.plan import DepthPlan

Budget = Literal["flops", "parameters", "kv"]


@dataclass(frozen=True)
class BudgetMatch:
    """The shape that meets its budgets best.

    Attributes:
        shape: the shape found.
        mismatches: for each named budget, shape / reference - 1 (0.02 is 2 % above the reference).
    """

    shape: ModelShape
    mismatches: Mapping[Budget, float]

    @property
    def worst(self) -> float:
        """The largest mismatch in absolute value."""
        return max(abs(mismatch) for mismatch in self.mismatches.values())


def match_width(
    reference: ModelShape,
    plan: DepthPlan,
    *,
    budgets: Sequence[Budget] = ("flops",),
    context_length: int = 1024,
    hidden_step: int | None = None,
    intermediate_ratios: Sequence[float] | None = None,
    key_value_heads: Sequence[int] | None = None,
) -> BudgetMatch:
    """The shape of ``plan`` whose worst relative mismatch to ``reference`` over the named budgets is least.

    Tried is every combination of hidden size d (multiples of ``hidden_step`` up to twice the reference's),
    intermediate size (ratio * d, rounded to 8) and key-value heads. The number of query heads stays the
    reference's and head_dim = d / heads, so narrower models get smaller heads. Among equal matches the one
    nearest the reference's width wins. The answer is as good as the grids: read its mismatches. A dense plan
    that visits blocks twice cannot meet "flops" and "parameters" together, as both grow with the same matrices.

    Args:
        reference: the shape whose budgets are to be met.
        plan: the plan of the wanted shape.
        budgets: any of "flops" (forward per token, head included, attention at full T^2), "parameters"
            (non-embedding) and "kv" (cache bytes per token).
        context_length: T, used by "flops".
        hidden_step: step of the hidden size, a multiple of 2 * heads (the default).
        intermediate_ratios: candidates for intermediate size over hidden size; default the reference's own.
        key_value_heads: candidates, each a divisor of the heads; default all divisors when "kv" is named,
            else the reference's own.

    Raises:
        PlanError: an unknown or empty list of budgets, or a grid without a valid shape.

    Source: SMELT, arXiv 2609.01343, matches the same three budgets, with more experts where a dense model
        has only widths to turn.

    Example:
        >>> reference = ModelShape(DepthPlan.stacked(12), 50257, 768, 6, 6, 128, 2048)
        >>> match = match_width(reference, DepthPlan.looped(12, 3))
        >>> match.shape.hidden_size, match.shape.intermediate_size, round(match.worst, 4)
        (444, 1184, 0.0154)
    """
    if not budgets:
        raise PlanError(f"budgets came empty; expected some of {', '.join(get_args(Budget))}")
    for budget in budgets:
        if budget not in get_args(Budget):
            raise PlanError(unknown_name("budget", budget, get_args(Budget)))
    require_positive("context_length", context_length)
    heads = reference.num_attention_heads
    step = 2 * heads if hidden_step is None else require_positive("hidden_step", hidden_step)
    if step % (2 * heads):
        raise PlanError(f"hidden_step came as {step}; expected a multiple of {2 * heads} (2 * {heads} heads)")
    if step > 2 * reference.hidden_size:
        raise PlanError(f"hidden_step came as {step}; expected at most {2 * reference.hidden_size} (twice the width)")
    ratios = intermediate_ratios or (reference.intermediate_size / reference.hidden_size,)
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise PlanError(f"intermediate_ratios came as {list(ratios)}; expected positive numbers")
    kv_grid = key_value_heads or _key_value_heads(reference, budgets)

    targets = _spend(reference, context_length)
    best: BudgetMatch | None = None
    for shape in _candidates(reference, plan, step, ratios, kv_grid):
        spent = _spend(shape, context_length)
        match = BudgetMatch(shape, {budget: spent[budget] / targets[budget] - 1 for budget in budgets})
        if best is None or _rank(match, reference) < _rank(best, reference):
            best = match
    assert best is not None  # every grid holds at least one candidate by the checks above
    return best


def _candidates(
    reference: ModelShape, plan: DepthPlan, step: int, ratios: Sequence[float], kv_grid: Sequence[int]
) -> Iterator[ModelShape]:
    for width in range(step, 2 * reference.hidden_size + 1, step):
        for ratio in ratios:
            for kv_heads in kv_grid:
                yield dataclasses.replace(
                    reference,
                    plan=plan,
                    hidden_size=width,
                    head_dim=width // reference.num_attention_heads,
                    num_key_value_heads=kv_heads,
                    intermediate_size=max(8, 8 * round(ratio * width / 8)),
                )


def _key_value_heads(reference: ModelShape, budgets: Sequence[Budget]) -> tuple[int, ...]:
    heads = reference.num_attention_heads
    if "kv" not in budgets:
        return (reference.num_key_value_heads,)
    return tuple(divisor for divisor in range(1, heads + 1) if heads % divisor == 0)


def _spend(shape: ModelShape, context_length: int) -> dict[Budget, int]:
    return {
        "flops": flops_per_token(shape, context_length).forward,
        "parameters": count_parameters(shape).non_embedding,
        "kv": kv_cache_bytes_per_token(shape),
    }


def _rank(match: BudgetMatch, reference: ModelShape) -> tuple[float, int, int]:
    shape = match.shape
    return (
        match.worst,
        abs(shape.hidden_size - reference.hidden_size),
        abs(shape.intermediate_size - reference.intermediate_size),
    )

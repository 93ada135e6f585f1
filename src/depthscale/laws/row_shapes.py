"""The shape behind a row, and rows whose parameters or FLOPs are not those of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from depthscale.budget import ModelShape, flops_per_token
from depthscale.budget.parameters import MlpKind
from depthscale.errors import DataError, PlanError
from depthscale.laws.card import DataCard, Finding, compare_with_budget, counted_parameters, require_numbers
from depthscale.laws.observations import Observations
from depthscale.plan import DepthPlan

Array = NDArray[np.float64]

#: An MLP ratio below it is read as gated: three matrices at 8/3 cost what two cost at 4.
_GATED_BELOW = 3.5


def mlp_of_ratio(mlp_ratio: float) -> MlpKind:
    """What an MLP of this ratio is read as, where nobody says."""
    return "swiglu" if mlp_ratio < _GATED_BELOW else "gelu"


def budget_findings(data: Observations, card: DataCard, context: int | None) -> list[Finding]:
    """Rows whose parameters or FLOPs are not what the shape says; nothing where the shape is not known."""
    needed = ("width", "depth", "parameters")
    if not set(needed) <= set(data.columns) or card.vocab_size is None or card.mlp_ratio is None:
        return []
    sizes = [name for name in ("width", "depth", "blocks", "rounds") if name in data.columns]
    for name in (*sizes, "parameters"):
        require_numbers(data, name)
        if name != "parameters":
            _require_whole(name, data.column(name))
    depth = data.columns["depth"]
    rounds = data.columns.get("rounds", np.ones(data.num_rows))
    if "blocks" not in data.columns and (rounds > 1).any():
        # Whether depth counts blocks or visits is not known.
        return []
    blocks = data.columns.get("blocks", depth)
    try:
        shapes = [
            _shape(plan_of_row(*(int(value) for value in row[1:])), int(row[0]), card.vocab_size, card)
            for row in zip(data.columns["width"], depth, blocks, rounds, strict=True)
        ]
    except PlanError as error:
        raise DataError(f"a row is no model ({error}); expected whole even widths and whole depths") from error
    counted = counted_parameters(shapes, bool(card.embeddings_counted))
    found = [compare_with_budget(data.columns["parameters"], counted, "parameters")]
    if context is not None and {"flops", "tokens"} <= set(data.columns):
        per_token = np.array([float(flops_per_token(shape, context).training) for shape in shapes])
        found.append(compare_with_budget(data.columns["flops"], per_token * data.columns["tokens"], "flops"))
    return [finding for finding in found if finding is not None]


def _require_whole(name: str, values: Array) -> None:
    odd = np.flatnonzero(values != np.round(values))
    if len(odd):
        raise DataError(
            f"column '{name}' has {float(values[odd[0]])} in row {odd[0]}; expected whole numbers, to count parameters"
            " (leave --vocab or --ffn-ratio out to fit without that check)"
        )


def plan_of_row(depth: int, blocks: int, rounds: int) -> DepthPlan:
    """A plan with so many blocks and block visits; which of them are looped changes nothing that is counted.

    A depth above the blocks counts visits; else the whole stack is visited ``rounds`` times.

    Example:
        >>> [plan_of_row(depth, 4, 3).unrolled_depth for depth in (4, 10, 12)]
        [12, 10, 12]
    """
    visits = depth if depth > blocks else blocks * rounds
    return DepthPlan.looped(1, visits - blocks + 1, prelude=blocks - 1)


def _shape(plan: DepthPlan, width: int, vocab_size: int, card: DataCard) -> ModelShape:
    assert card.mlp_ratio is not None, "rows are counted only where it is known"
    # Heads do not change the count: their widths add up to the model's.
    return ModelShape(
        plan=plan,
        vocab_size=vocab_size,
        hidden_size=width,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=width,
        intermediate_size=round(card.mlp_ratio * width),
        mlp=card.mlp or mlp_of_ratio(card.mlp_ratio),
        norm_placement="pre",
    )

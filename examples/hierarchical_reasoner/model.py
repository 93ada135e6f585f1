"""A fast module visited several times inside a slow one, with finished residual scales for each.

    repeat num_cycles times:    z_L <- fast(norm(z_L + z_H + x))   num_fast_visits times
                                z_H <- slow(norm(z_H + z_L))       once
    answer: a linear head on z_H. Only the last cycle carries gradient (one-step truncation).

Blocks that carry gradient then number K_H + num_fast_visits * K_L, two sublayers each: M_g = 2 (K_H + C_L K_L).

Source: hierarchical reasoning model, arXiv 2506.21734 (two time scales, one-step gradient); its count of visits under
DeepLoop, arXiv 2607.13491. Ours: one supervised segment, and a learned attention bias for rows, columns and boxes
instead of positions, so that rows and columns may be reordered without a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from depthscale.alignment.retrofit import ScaledResidual, apply_init_gain
from depthscale.alignment.tracing import trace_visits
from depthscale.errors import PlanError
from depthscale.plan import VisitCounts, VisitGroup
from depthscale.residual import GroupScales, ResidualScales, apply_rule, require_placement

from .sudoku import geometry

MODULES = ("fast", "slow")


@dataclass(frozen=True)
class Shape:
    """Sizes of a reasoner; ``num_cycles`` slow visits, the last of which carries gradient."""

    box: int
    width: int = 64
    num_heads: int = 4
    fast_blocks: int = 1
    slow_blocks: int = 1
    fast_visits: int = 4
    num_cycles: int = 2

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise PlanError(f"width came as {self.width}; expected a multiple of the {self.num_heads} heads")

    def counts(self) -> VisitCounts:
        """Visits of both modules, as a residual rule asks for them."""
        return VisitCounts(
            (
                VisitGroup("fast", self.fast_blocks, self.num_cycles * self.fast_visits, self.fast_visits),
                VisitGroup("slow", self.slow_blocks, self.num_cycles, 1),
            )
        )


class CellAttention(nn.Module):
    """Attention between all cells, with one learned bias for each head and relation of two cells."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(shape.width, shape.width, bias=False) for _ in range(4)
        )
        relations = cell_relations(shape.box)
        self.register_buffer("relations", relations, persistent=False)
        self.relation_bias = nn.Parameter(torch.zeros(shape.num_heads, int(relations.max()) + 1))

    def forward(self, hidden_state: Tensor) -> Tensor:
        """``[boards, cells, width]`` to the same."""
        query, key, value = (
            layer(hidden_state).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        bias = self.relation_bias[:, self.relations]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class CellMLP(nn.Module):
    """Two matrices with GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden_state: Tensor) -> Tensor:
        """``[..., width]`` to the same."""
        output: Tensor = self.down(functional.gelu(self.up(hidden_state)))
        return output


class Reasoner(nn.Module):
    """The hierarchical reasoner on Sudoku boards.

    Args:
        shape: sizes.
        scales: skip and gain of each module, by name; both carry post-norm blocks.
    """

    def __init__(self, shape: Shape, scales: Mapping[str, GroupScales]) -> None:
        super().__init__()
        self.shape = shape
        side = geometry(shape.box).side
        self.digits = nn.Embedding(side + 1, shape.width)
        self.fast = nn.ModuleList(_block(shape, scales["fast"]) for _ in range(shape.fast_blocks))
        self.slow = nn.ModuleList(_block(shape, scales["slow"]) for _ in range(shape.slow_blocks))
        self.head = nn.Linear(shape.width, side, bias=False)
        self.initial_states = nn.Parameter(torch.randn(2, shape.width), requires_grad=False)
        for matrix in self.matrices():
            nn.init.xavier_normal_(matrix)
        for module in MODULES:
            apply_init_gain(self, gained_weights(self, module), scales[module].gain)

    def matrices(self) -> list[nn.Parameter]:
        """Weights of the linear layers: what is drawn by Xavier's rule, and decays."""
        return [layer.weight for layer in self.modules() if isinstance(layer, nn.Linear)]

    def forward(self, puzzles: Tensor) -> Tensor:
        """Logits of every cell's digit.

        Args:
            puzzles: ``int64[boards, cells]``, 0 for a blank.

        Returns:
            ``float[boards, cells, digits]``; index 0 is digit 1.
        """
        given = _norm(self.digits(puzzles))
        fast_state, slow_state = (_norm(state).expand_as(given) for state in self.initial_states)
        carries_gradient = torch.is_grad_enabled()
        for cycle in range(self.shape.num_cycles):
            with torch.set_grad_enabled(carries_gradient and cycle == self.shape.num_cycles - 1):
                for _ in range(self.shape.fast_visits):
                    fast_state = _norm(fast_state + slow_state + given)
                    for block in self.fast:
                        fast_state = block(fast_state)
                slow_state = _norm(slow_state + fast_state)
                for block in self.slow:
                    slow_state = block(slow_state)
        logits: Tensor = self.head(slow_state)
        return logits


def build(shape: Shape, rule: str, seed: int) -> tuple[Reasoner, VisitCounts, ResidualScales]:
    """A reasoner under a rule: visits counted in a dry run, checked against the formula, handed to the rule.

    Raises:
        PlanError: the trace does not count what the shape says, or the rule is unknown or not for post-norm blocks.
    """
    torch.manual_seed(seed)
    bare = Reasoner(shape, dict.fromkeys(MODULES, GroupScales()))
    board = torch.zeros(1, geometry(shape.box).num_cells, dtype=torch.int64)
    counts = trace_visits(bare, board)
    expected = 2 * (shape.slow_blocks + shape.fast_visits * shape.fast_blocks)
    if counts.num_gradient_sublayer_visits != expected or set(counts.groups) != set(shape.counts().groups):
        raise PlanError(f"traced {counts}, expected {shape.counts()} with M_g = {expected}")
    scales = apply_rule(rule, counts)
    require_placement(scales, "post")
    by_name = {group.name: found for group, found in zip(counts.groups, scales.groups, strict=True)}
    torch.manual_seed(seed)
    return Reasoner(shape, by_name), counts, scales


def gained_weights(model: Reasoner, module: str) -> list[str]:
    """Value, output and MLP matrices of one module: what a rule's init gain scales."""
    parts = ("0.sublayer.value", "0.sublayer.output", "1.sublayer.up", "1.sublayer.down")
    return [f"{module}.{i}.{part}.weight" for i in range(len(getattr(model, module))) for part in parts]


def cell_relations(box: int) -> Tensor:
    """How two cells stand to each other, ``int64[cells, cells]``.

    0 nothing, 1 row, 2 column, 3 box, 4 box and row, 5 box and column, 6 the same cell.
    """
    shape = geometry(box)
    table = {(): 0, ("r",): 1, ("c",): 2, ("b",): 3, ("r", "b"): 4, ("c", "b"): 5, ("r", "c", "b"): 6}
    kinds = ["r"] * shape.side + ["c"] * shape.side + ["b"] * shape.side
    return torch.tensor(
        [
            [
                table[tuple(kinds[u] for u in shape.units_of[first] if u in shape.units_of[second])]
                for second in range(shape.num_cells)
            ]
            for first in range(shape.num_cells)
        ]
    )


def _block(shape: Shape, scales: GroupScales) -> nn.Sequential:
    return nn.Sequential(
        ScaledResidual(CellAttention(shape), skip=scales.skip, after=nn.RMSNorm(shape.width)),
        ScaledResidual(CellMLP(shape.width), skip=scales.skip, after=nn.RMSNorm(shape.width)),
    )


def _norm(state: Tensor) -> Tensor:
    return functional.rms_norm(state, state.shape[-1:])

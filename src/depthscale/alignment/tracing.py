"""Counts from a dry run: how often the blocks of any module are visited, and which visits carry gradient.

What a plan says by :meth:`DepthPlan.counts`, this finds out for modules that are no plan: hierarchical reasoners,
hand-written loops, models of other libraries. From the counts any residual rule follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.plan import VisitCounts, VisitGroup


@dataclass(frozen=True)
class BlockVisits:
    """One block.

    Attributes:
        name: of the module.
        num_visits: calls in the forward pass.
        gradient_calls: which of them, from 0, gradient of the output reaches.
    """

    name: str
    num_visits: int
    gradient_calls: tuple[int, ...]


def trace_blocks(
    module: nn.Module, *inputs: Any, blocks: Sequence[str] | None = None, named_inputs: Mapping[str, Any] | None = None
) -> tuple[BlockVisits, ...]:
    """Run ``module`` once forward and backward and count the visits of every block.

    Args:
        module: any module; left as it was, weights, ``grad`` and buffers.
        inputs: of its forward.
        blocks: names of the modules that count as blocks; None takes the elements of every outermost ModuleList.
        named_inputs: keyword arguments of its forward.

    Raises:
        AlignmentError: no blocks were named or found, or the output carries no gradient.
    """
    names = find_blocks(module) if blocks is None else tuple(blocks)
    reached: dict[str, set[int]] = {name: set() for name in names}

    def arrived(name: str, visit: VisitKey, gradient: Tensor) -> None:
        if visit.module in reached:
            reached[visit.module].add(visit.call)

    with torch.enable_grad(), VisitRecorder(module, whole=names) as recorder:
        output = module(*inputs, **(named_inputs or {}))
        recorder.backward(_sum_of_outputs(output), arrived)
        visits = recorder.visits
    return tuple(
        BlockVisits(name, sum(visit.module == name for visit in visits), tuple(sorted(reached[name]))) for name in names
    )


def trace_visits(
    module: nn.Module, *inputs: Any, blocks: Sequence[str] | None = None, named_inputs: Mapping[str, Any] | None = None
) -> VisitCounts:
    """What a residual rule needs to know of a module: groups of blocks that are visited equally often.

    Blocks of one parent with equal counts form a group, named after the parent. Arguments as for
    :func:`trace_blocks`.

    Raises:
        AlignmentError: as :func:`trace_blocks`; or a block is never visited, or owns no trainable parameter.
        PlanError: no visit carries gradient.

    Example:
        >>> class Loop(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.cells = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        ...     def forward(self, x):
        ...         for _ in range(3):
        ...             for cell in self.cells:
        ...                 x = cell(x)
        ...         return x
        >>> trace_visits(Loop(), torch.ones(1, 2)).groups
        (VisitGroup(name='cells', num_blocks=2, num_visits=3, num_gradient_visits=3),)
    """
    found = trace_blocks(module, *inputs, blocks=blocks, named_inputs=named_inputs)
    parts = dict(module.named_modules())
    grouped: dict[tuple[str, int, int], int] = {}
    for block in found:
        if block.num_visits == 0:
            raise AlignmentError(f"block '{block.name}' was never visited; name the blocks that are with blocks=[...]")
        if not any(p.requires_grad for p in parts[block.name].parameters()):
            raise AlignmentError(f"block '{block.name}' has no trainable parameter; leave it out with blocks=[...]")
        key = (block.name.rpartition(".")[0] or block.name, block.num_visits, len(block.gradient_calls))
        grouped[key] = grouped.get(key, 0) + 1
    return VisitCounts(
        tuple(VisitGroup(name, number, visits, gradient) for (name, visits, gradient), number in grouped.items())
    )


def find_blocks(module: nn.Module) -> tuple[str, ...]:
    """Names of the elements of every outermost ModuleList.

    Raises:
        AlignmentError: there is none.
    """
    lists = [name for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    parts = dict(module.named_modules())
    names = tuple(f"{name}.{index}".lstrip(".") for name in outermost for index, _ in enumerate(parts[name].children()))
    if not names:
        raise AlignmentError("the module holds no ModuleList of blocks; name its blocks with blocks=[...]")
    return names


def _sum_of_outputs(output: Any) -> Tensor:
    """Every output that carries gradient, added up; gradient arrives at a visit also where its value is zero."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not leaves:
        raise AlignmentError("no output of the module carries gradient; expected at least one float tensor that does")
    return torch.stack([leaf.float().sum() for leaf in leaves]).sum()

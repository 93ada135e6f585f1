"""FSDP2 for looped models: shared blocks are gathered once a step instead of once a visit and pass.

FSDP gathers a block's weights before every call, in the forward and again in the backward pass, and frees them
after it. That suits a stack, where a block is called once. K blocks that are visited R times each would be gathered
2 * K * R times a step; kept whole from their first visit to the end of their backward pass they are gathered K times.
The price is memory for the weights of K whole blocks, which looping keeps small: its depth lies in visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from depthscale.alignment.tracing import find_blocks
from depthscale.errors import ConfigError, unknown_name


def shard_looped(
    model: nn.Module,
    mesh: DeviceMesh | None = None,
    *,
    blocks: Sequence[str] | None = None,
    mixed_precision: MixedPrecisionPolicy | None = None,
) -> FSDPModule:
    """Shard a model whose blocks are visited several times, in place, so that each is gathered once a step.

    Everything outside the blocks (embeddings, head, outer norms, tied or not) is one group more, gathered once. The
    gradient is that of plain ``fully_shard``. Call it on a model on the meta device or with weights, before the
    optimizer is made; then as with any FSDP model: ``to_empty``, initialize, train. After the backward pass every block
    is in shards again, as optimizers and gradient clipping expect it.

    Args:
        model: its forward calls the blocks; a :class:`LoopedLMForCausalLM` or any module.
        mesh: of the data-parallel processes; None takes all of them.
        blocks: dotted names of the blocks; None takes the elements of every outermost ModuleList.
        mixed_precision: FSDP's policy for every group; None keeps the weights' own precision.

    Returns:
        The model itself, now also an ``FSDPModule``.

    Raises:
        ConfigError: an unknown block, or no process group to shard over.

    Source: torch.distributed.fsdp.fully_shard (``reshard_after_forward``, ``set_reshard_after_backward``).
    """
    if mesh is None and not torch.distributed.is_initialized():
        raise ConfigError(
            "there is no process group to shard over; start with torchrun and call init_process_group, or pass a mesh"
        )
    parts = dict(model.named_modules())
    names = find_blocks(model) if blocks is None else tuple(blocks)
    for name in names:
        if name not in parts:
            raise ConfigError(unknown_name("block", name, parts))
    policy = mixed_precision or MixedPrecisionPolicy()
    for name in names:
        block = fully_shard(parts[name], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        model.register_forward_pre_hook(_WholeBlock(block).before_pass)
    sharded = fully_shard(model, mesh=mesh, mp_policy=policy)
    model.register_forward_hook(_release_without_backward)
    return sharded


class _WholeBlock:
    """Lets a block stay whole between the backward passes of its visits, until its gradient is complete.

    FSDP frees weights after the backward pass of *each* call. That is put off where gradient arrives at a visit, and
    allowed again when a weight's gradient is complete: autograd adds up the visits' gradients and accumulates the sum
    once, in the backward pass of the earliest visit, just before FSDP reduces it and would free the weights. A block
    that no gradient reaches is freed by FSDP itself when the backward pass ends.
    """

    def __init__(self, block: FSDPModule) -> None:
        self.block = block
        self._is_complete = False
        self._watched = WeakIdKeyDictionary()
        block.register_forward_hook(self._after_visit)  # type: ignore[attr-defined]
        # FSDP would gather the block of the visit before, which is whole already or, in a truncated loop, done with.
        block.set_modules_to_backward_prefetch([block])

    def before_pass(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Before a forward pass of the whole model; checkpointing calls blocks again, but not this."""
        self._is_complete = False

    def _after_visit(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not (torch.is_grad_enabled() and trainable):
            return
        for parameter in trainable:
            # Whole weights are the same objects at every step: FSDP fills them anew.
            if parameter not in self._watched:
                self._watched[parameter] = parameter.register_post_accumulate_grad_hook(self._gradient_is_complete)
        for tensor in pytree.tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(self._gradient_arrives)

    def _gradient_arrives(self, gradient: Tensor) -> None:
        self.block.set_reshard_after_backward(self._is_complete, recurse=False)

    def _gradient_is_complete(self, parameter: Tensor) -> None:
        self._is_complete = True
        self.block.set_reshard_after_backward(True, recurse=False)


def _release_without_backward(model: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
    """After a pass without gradient nothing else would put the weights back into shards."""
    if torch.is_grad_enabled():
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()

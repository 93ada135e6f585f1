"""Bytes of tensors that are alive at once, counted exactly, whatever the allocator keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class PeakLiveBytes(TorchDispatchMode):
    """Context that counts what operations inside it allocate; workspace within a single operation is not seen.

    Attributes:
        peak: largest sum so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        output = function(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(output):
            if _is_tensor(leaf):
                storage = leaf.untyped_storage()
                # Views and in-place results live in a storage that was there before.
                if storage._cdata not in known:
                    self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: (ref, size) for key, (ref, size) in self._alive.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return output


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)

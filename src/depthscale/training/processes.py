"""The processes of a run that torchrun started; a run without torchrun is one process."""

from __future__ import annotations

import os

import torch
from torch import distributed


def num_processes() -> int:
    """Processes that train together, as torchrun tells each of them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this is the one that writes the run's files."""
    return int(os.environ.get("RANK", "0")) == 0


def wait_for_all() -> None:
    """Go on when every process has come here."""
    if distributed.is_initialized():
        distributed.barrier()


def is_true_anywhere(flag: bool) -> bool:
    """Whether ``flag`` is true in any process, told alike to all of them; each must ask."""
    if not distributed.is_initialized():
        return flag
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    any_true = torch.tensor(int(flag), device=device)
    distributed.all_reduce(any_true, op=distributed.ReduceOp.MAX)
    return bool(any_true.item())

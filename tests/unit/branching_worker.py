"""One of two processes that branch off a run beside them; the first is slow. Judged in test_branching.py."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides
from depthscale.training import run

TAKEN_UP: list[int] = []


def folder() -> Path:
    """Where the test wants its files; asked for late, since collecting the tests imports this module."""
    return Path(sys.argv[1]).parent


def slowly(*arguments: Any) -> None:
    time.sleep(3)
    begin(*arguments)


def watched(*arguments: Any) -> Path | None:
    found = newest(*arguments)
    TAKEN_UP.append(0 if found is None else int(found.name.rpartition("-")[2]))
    return found


if __name__ == "__main__":
    # No process group here: as under torchrun, it is the run that makes it.
    torch.set_num_threads(1)
    begin, newest = run.begin_at_branch_point, run._newest_whole_checkpoint
    run.begin_at_branch_point, run._newest_whole_checkpoint = slowly, watched
    changes = ["train.steps=6", "train.branch_at=[]", "branch.run=../run"]
    config = validate(RunConfig, with_overrides(read_toml(folder() / "run" / "config.toml"), changes), "branch")
    result = run.train_run(config, folder() / "together")
    everywhere: list[Any] = [None, None]
    dist.all_gather_object(everywhere, TAKEN_UP[0])
    if dist.get_rank() == 0:
        seen = {"step": result["step"], "resumed": result["resumed"], "taken_up": everywhere}
        Path(sys.argv[1]).write_text(json.dumps(seen))
    dist.destroy_process_group()

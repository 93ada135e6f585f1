"""Run a script in two processes of one machine that talk over gloo, and bring back what they observed."""

import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 240


def observe(script: Path, out: Path, num_processes: int = 2) -> dict[str, Any]:
    """What rank 0 of ``script`` wrote to the path that it is given; an error of any process fails the test.

    The environment is torchrun's, without the third process and the seconds that torchrun itself takes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(num_processes):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(script), str(out)]
        workers.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        texts = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, text in zip(workers, texts, strict=True):
        assert worker.returncode == 0, text[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def report(observations: Callable[[], dict[str, Any]]) -> None:
    """The body of a worker: join the others, observe, and let rank 0 write it down."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found = observations()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.destroy_process_group()

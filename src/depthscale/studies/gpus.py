"""GPUs of this machine as the jobs of a study share them: one each, by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from importlib import metadata


def visible_gpus() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` takes them; empty without any.

    They are asked of the driver: importing torch only to count them would take seconds. The variable is read as CUDA
    reads it: names behind one that is unknown do not count, and one that stands twice leaves none.
    """
    if metadata.version("torch").endswith("+cpu") or shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(query, check=False, capture_output=True, text=True)
    present = tuple(answer.stdout.split()) if answer.returncode == 0 else ()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None or not present:
        return present
    known = itertools.takewhile(
        lambda name: name in present or name.startswith(("GPU-", "MIG-")), (name.strip() for name in named.split(","))
    )
    found = tuple(known)
    return found if len(set(found)) == len(found) else ()


def default_workers() -> int:
    """Jobs at a time where the user names no number: one a GPU, without GPUs one a core."""
    return len(visible_gpus()) or os.cpu_count() or 1

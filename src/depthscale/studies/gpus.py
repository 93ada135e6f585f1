"""GPUs of this machine as the jobs of a study share them: one each, by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata


def visible_gpus() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` takes them; empty without any.

    They are asked of the driver: importing torch only to count them would take seconds.
    """
    if metadata.version("torch").endswith("+cpu"):
        return ()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip() not in ("", "-1"))
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(query, check=False, capture_output=True, text=True)
    return tuple(answer.stdout.split()) if answer.returncode == 0 else ()


def default_workers() -> int:
    """Jobs at a time where the user names no number: one a GPU, without GPUs one a core."""
    return len(visible_gpus()) or os.cpu_count() or 1

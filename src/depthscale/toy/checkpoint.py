"""The state of an unfinished job in one file: weights, moments and what was measured so far."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from depthscale.errors import CheckpointError
from depthscale.runs.files import atomic_write_bytes
from depthscale.toy.students import StudentGroup

STATE_FILE = "toy_state.safetensors"


def save_state(directory: Path, step: int, groups: Sequence[StudentGroup], measured: Any, job: str) -> None:
    """Write the state whole or not at all.

    Args:
        directory: of the job.
        step: updates made.
        groups: in the job's order.
        measured: plain data.
        job: the settings as JSON, checked when the state is taken back.
    """
    tensors = {
        f"{number}.{name}": tensor for number, group in enumerate(groups) for name, tensor in group.snapshot().items()
    }
    # json writes nan for a replicate that diverged, and reads it back.
    metadata = {"step": str(step), "job": job, "measured": json.dumps(measured)}
    atomic_write_bytes(directory / STATE_FILE, safetensors.torch.save(tensors, metadata))


def load_state(directory: Path, groups: Sequence[StudentGroup], job: str) -> tuple[int, Any] | None:
    """Put the state back into ``groups``; step and measurements, or None where there is no state.

    Raises:
        CheckpointError: the file is damaged, or of other settings.
    """
    path = directory / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            if metadata["job"] != job:
                raise CheckpointError(f"{path} is of other settings; delete it, or choose another folder")
            for number, group in enumerate(groups):
                prefix = f"{number}."
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                group.restore({name.removeprefix(prefix): file.get_tensor(name) for name in names})
            return int(metadata["step"]), json.loads(metadata["measured"])
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged ({error}); delete it and run the job again") from error

"""What a user points at: a run directory, the checkpoint in it, or any exported folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from depthscale.errors import CheckpointError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate
from depthscale.runs.layout import CHECKPOINT, CONFIG_FILE
from depthscale.runs.results import result_path

_MODEL_CONFIG = "config.json"


@dataclass(frozen=True)
class Target:
    """A trained model and what is known of its training.

    Attributes:
        checkpoint: folder with the weights.
        run_directory: the run that made them, None for a folder that lies elsewhere.
    """

    checkpoint: Path
    run_directory: Path | None

    def run_config(self) -> RunConfig | None:
        """The run's configuration, or None without a run.

        Raises:
            ConfigError: the file is damaged.
        """
        if self.run_directory is None:
            return None
        path = self.run_directory / CONFIG_FILE
        return validate(RunConfig, read_toml(path), str(path))

    def run_sha256(self) -> str | None:
        """SHA-256 over the run's training result and its configuration, or None where either is missing.

        It ties numbers that are shown elsewhere to the files they came from: ``cat results/training.json
        config.toml | sha256sum`` in the run directory gives it.
        """
        if self.run_directory is None:
            return None
        files = [result_path(self.run_directory, "training"), self.run_directory / CONFIG_FILE]
        if not all(path.is_file() for path in files):
            return None
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def find_target(path: Path) -> Target:
    """The checkpoint that ``path`` means.

    Args:
        path: a run directory, its ``checkpoint`` folder, or another folder with ``config.json`` and weights.

    Raises:
        CheckpointError: there is none.
    """
    if (path / CHECKPOINT / _MODEL_CONFIG).is_file():
        return Target(path / CHECKPOINT, path if (path / CONFIG_FILE).is_file() else None)
    if (path / _MODEL_CONFIG).is_file():
        parent = path.resolve().parent
        belongs_to_run = path.resolve().name == CHECKPOINT and (parent / CONFIG_FILE).is_file()
        return Target(path, parent if belongs_to_run else None)
    if (path / CONFIG_FILE).is_file():
        raise CheckpointError(f"run {path} has no checkpoint yet; finish it with depthscale train --resume")
    raise CheckpointError(f"no checkpoint or run at {path}; expected a run directory or a folder with config.json")

"""Decay branches: runs of several lengths from one stable run, each as if it had been trained alone.

Under the ``wsd`` schedule two runs that differ in length alone are the same run, bit for bit, until the shorter one's
decay begins: the order of the rows depends on the position and the seed only, and the rate is flat. The longer run
keeps its whole training state there, and the shorter one goes on from it: weights, optimizer moments, position in the
data, records. Where no such state is at hand, the run begins at its first step, which comes to the same in more time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rich.console import Console

from depthscale.errors import ConfigError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate
from depthscale.runs.layout import BRANCH_POINTS, CONFIG_FILE, METRICS_FILE, TRAINING_STATE
from depthscale.runs.manifest import is_intact
from depthscale.runs.metrics import keep_until


def keep_branch_point(checkpoint: Path, run_directory: Path) -> None:
    """Keep a training checkpoint beyond the end of its run; files are linked, as none is ever written again."""
    _link_whole(checkpoint, run_directory / BRANCH_POINTS / checkpoint.name)


def begin_at_branch_point(config: RunConfig, run_directory: Path, console: Console) -> None:
    """Give a run that has not begun the training state of the run it branches off, and its records so far.

    Raises:
        ConfigError: that run is another one: not the same up to the point where this run's decay begins.
    """
    if config.branch is None or any((run_directory / TRAINING_STATE).glob("checkpoint-*")):
        return
    trunk = run_directory / config.branch.run
    step = config.train.stable_until
    point = trunk / BRANCH_POINTS / f"checkpoint-{step}"
    if not is_intact(point):
        console.print(f"{trunk} keeps no state at step {step}; this run begins at its first step", markup=False)
        return
    _require_same_run(config, trunk)
    shutil.copy(trunk / METRICS_FILE, run_directory / METRICS_FILE)
    keep_until(run_directory / METRICS_FILE, step)
    _link_whole(point, run_directory / TRAINING_STATE / point.name)


def _link_whole(checkpoint: Path, target: Path) -> None:
    """The checkpoint in a second place, whole or not at all."""
    staging = target.with_name(f".{target.name}.writing")
    for leftover in (staging, target):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(checkpoint, staging, copy_function=os.link)
    staging.rename(target)


def _require_same_run(config: RunConfig, trunk: Path) -> None:
    found = validate(RunConfig, read_toml(trunk / CONFIG_FILE), str(trunk / CONFIG_FILE))
    length = {"steps", "decay_fraction", "min_lr_ratio", "branch_at"}
    sides = [run.model_copy(update={"branch": None}).model_dump(exclude={"train": length}) for run in (config, found)]
    if sides[0] != sides[1]:
        raise ConfigError(
            f"{trunk} is not this run up to step {config.train.stable_until}: a branch may differ in train.steps,"
            " decay_fraction and min_lr_ratio alone"
        )

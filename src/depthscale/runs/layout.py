"""Names inside a run directory and a study directory."""

from __future__ import annotations

import re

#: The resolved configuration of a run.
CONFIG_FILE = "config.toml"
#: One JSON object a line, appended while a run trains.
METRICS_FILE = "metrics.jsonl"
#: The trained weights, loadable by transformers.
CHECKPOINT = "checkpoint"
#: Optimizer state and weights of an unfinished run; gone when it finishes.
TRAINING_STATE = "training_state"
#: Training states kept where other runs may branch off.
BRANCH_POINTS = "branch_points"
#: TensorBoard's event files, where they are asked for.
TENSORBOARD = "tensorboard"
#: Held while a run trains, so that no second process writes into its directory.
LOCK_FILE = "lock"
#: What a study's worker printed.
LOG_FILE = "log.txt"
#: A study's plan, written before its first run.
STUDY_FILE = "study.json"
#: A study's runs, a directory each.
RUNS = "runs"

_RUN_NAME = re.compile(r"(?P<arm>.+)-r\d+(-t\d+)?-s\d+")


def run_name(arm: str, rounds: int, seed: int, budget: int | None = None) -> str:
    """Name of a run's directory inside ``runs/`` of its study.

    Example:
        >>> run_name("deeploop", 4, seed=1)
        'deeploop-r4-s1'
        >>> run_name("deeploop", 4, seed=1, budget=1000)
        'deeploop-r4-t1000-s1'
    """
    return f"{arm}-r{rounds}" + (f"-t{budget}" if budget else "") + f"-s{seed}"


def arm_of(name: str) -> str | None:
    """The arm in a name that :func:`run_name` made; None for any other name.

    Example:
        >>> arm_of("deeploop-r4-t1000-s1")
        'deeploop'
    """
    match = _RUN_NAME.fullmatch(name)
    return None if match is None else match["arm"]

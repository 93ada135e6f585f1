"""Which tasks the harness knows by the names given, and their data, fetched where they must be."""

from __future__ import annotations

import difflib
import importlib.resources
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from depthscale.errors import ConfigError, DataError, first_line
from depthscale.runs.task_names import LOCAL_NAMES, PAPER_GROUP, distinct_tasks

#: Where the harness keeps the paper's tasks; naming the folders spares reading all of its ten thousand files.
_PAPER_FOLDERS = ("arc", "hellaswag", "openbookqa", "piqa", "sciq", "siqa", "winogrande")
#: A data set that the Hub has had for years: asked for only to learn whether the Hub answers.
_PROBE = "allenai/ai2_arc"
_PROBE_SECONDS = 10.0
#: Similarity of a name to one of ours from which it is a slip of the keyboard; the nearest of the harness has 0.80.
_SURELY_MEANT = 0.85
_OFFLINE_HINT = "without a network use --tasks local, whose items are made from your own held-out text"


def require_known(tasks: Sequence[str]) -> None:
    """Refuse a name that no task has, before anything slow is done.

    Raises:
        ConfigError: no task of that name; the nearest is suggested.
    """
    task_manager(distinct_tasks(tasks), None)


def task_manager(tasks: Sequence[str], local_directory: Path | None) -> Any:
    """The harness's ``TaskManager`` over no more files than these tasks need.

    Raises:
        ConfigError: no task of that name; the nearest is suggested.
    """
    from lm_eval.tasks import TaskManager

    ours = [*LOCAL_NAMES, PAPER_GROUP]
    others = [task for task in tasks if task not in ours]
    for task in others:
        # No task of the harness is named so like one of ours, and listing all of its tasks takes seconds.
        near = difflib.get_close_matches(task, ours, n=1, cutoff=_SURELY_MEANT)
        if near:
            raise ConfigError(_unknown_task(task, near[0]))
    paths = []
    if local_directory is not None:
        paths.append(str(local_directory))
    if PAPER_GROUP in tasks:
        bundled = Path(str(importlib.util.find_spec("lm_eval").submodule_search_locations[0])) / "tasks"  # type: ignore[union-attr,index]
        paths += [str(bundled / folder) for folder in _PAPER_FOLDERS]
        paths.append(str(importlib.resources.files("depthscale.evaluation") / "task_files" / PAPER_GROUP))
    manager = TaskManager(include_path=paths, include_defaults=bool(others))
    for task in others:
        if task not in manager.all_tasks:
            near = difflib.get_close_matches(task, [*manager.all_tasks, *ours], n=1, cutoff=0.5)
            raise ConfigError(_unknown_task(task, near[0] if near else None))
    return manager


def _unknown_task(task: str, near: str | None) -> str:
    hint = f"; did you mean '{near}'?" if near else "."
    return (
        f"unknown task '{task}'{hint} Known: {PAPER_GROUP}, {', '.join(LOCAL_NAMES)} and what 'lm_eval ls tasks' lists"
    )


def require_hub(tasks: Sequence[str]) -> None:
    """Learn in one question that there is no network: loading itself tries again for most of a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return
    try:
        HfApi().dataset_info(_PROBE, timeout=_PROBE_SECONDS)
    except HfHubHTTPError:
        return
    except Exception as error:
        raise DataError(
            f"{_names(tasks)} cannot be fetched, as the Hub does not answer ({first_line(error)}); {_OFFLINE_HINT},"
            " or set HF_HUB_OFFLINE=1 if the data lie in the Hub's cache"
        ) from error


def build_tasks(manager: Any, tasks: Sequence[str], num_fewshot: int, network: Sequence[str]) -> list[Any]:
    """The harness's tasks and groups with their data; a task that a group among them holds comes with the group only.

    Only here are data fetched, so only here does an error of the harness mean that they cannot be.
    """
    try:
        loaded = [manager.load([task]) for task in tasks]
    # The harness and its data library raise dozens of kinds where data cannot be had.
    except (OSError, ConnectionError, HfHubHTTPError, ValueError) as error:
        if not network:
            raise
        raise DataError(f"{_names(network)} cannot be fetched: {first_line(error)}; {_OFFLINE_HINT}") from error
    groups = {task: found["groups"][task] for task, found in zip(tasks, loaded, strict=True) if task in found["groups"]}
    held: dict[str, str] = {}
    for name, group in groups.items():
        for member in group.get_all_tasks():
            if held.setdefault(member.task_name, name) != name:
                raise ConfigError(
                    f"groups '{held[member.task_name]}' and '{name}' both hold the task '{member.task_name}';"
                    " ask one of them at a time"
                )
    alone = {name: task for found in loaded for name, task in found["tasks"].items() if name not in held}
    for task in [*alone.values(), *(member for group in groups.values() for member in group.get_all_tasks())]:
        _require_examples(task, num_fewshot)
    return [*groups.values(), *alone.values()]


def _require_examples(task: Any, num_fewshot: int) -> None:
    sampler = getattr(task, "sampler", None)
    if not num_fewshot or sampler is None:
        return
    # Where the items are the examples too, the one that is asked is left out.
    shared = task.fewshot_cfg.split == task.config.test_split
    available = len(sampler.df or ()) - shared
    if num_fewshot > available:
        raise ConfigError(
            f"{num_fewshot} shots were asked, but task '{task.task_name}' has {max(available, 0)} examples to show;"
            " ask for no more than it has"
        )


def _names(tasks: Sequence[str]) -> str:
    return f"the data of {', '.join(tasks)}"

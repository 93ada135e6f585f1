"""Downstream tasks through lm-evaluation-harness, in this process, with the outcome of every item.

``local``     two tasks made from held-out text (see ``local_tasks``), offline
``deeploop``  the eight tasks of DeepLoop, arXiv 2607.13491; fetches data
NAME          any task, group or tag that the harness knows; fetches data
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.resources
import importlib.util
import logging
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from transformers import PreTrainedTokenizerBase

from depthscale.errors import ConfigError, DataError
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.task_names import LOCAL_NAMES, PAPER_GROUP, distinct_tasks, usual_shots

#: Where the harness keeps the paper's tasks; naming the folders spares reading all of its ten thousand files.
_PAPER_FOLDERS = ("arc", "hellaswag", "openbookqa", "piqa", "sciq", "siqa", "winogrande")
#: A data set that the Hub has had for years: asked for only to learn whether the Hub answers.
_PROBE = "allenai/ai2_arc"
_PROBE_SECONDS = 10.0
#: Similarity of a name to one of ours from which it is a slip of the keyboard; the nearest of the harness has 0.80.
_SURELY_MEANT = 0.85
#: For metrics without a standard error in closed form; accuracies have one.
_BOOTSTRAP_DRAWS = 1000
#: An aggregate this near to the mean of the items' numbers is that mean.
_SAME_MEAN = 1e-9


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task.

    Attributes:
        task: its name.
        num_fewshot: solved examples in the prompt.
        metric: for example ``acc``.
        value: mean over the items (or what the metric aggregates to).
        standard_error: of the mean over items, None where the harness gives none.
        num_items: items asked.
        higher_is_better: direction of the metric.
        item_keys: one name per item, which are the same for every model; empty for a group.
        outcomes: the metric of every item, in that order; empty where the value is not their mean (a perplexity, whose
            items are log-likelihoods) or an item has no number of its own.
        members: of a group, the tasks whose scores its value is made of; else empty.
    """

    task: str
    num_fewshot: int
    metric: str
    value: float
    standard_error: float | None
    num_items: int
    higher_is_better: bool
    item_keys: tuple[str, ...]
    outcomes: tuple[float, ...]
    members: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


@dataclass(frozen=True)
class PromptCount:
    """How many prompts were too long for the context.

    Attributes:
        num_fewshot: solved examples in the prompt.
        asked: prompts that were scored, one for each choice of each item.
        cut: those whose beginning was left off, so that they hold fewer examples, or less text, than was asked for.
    """

    num_fewshot: int
    asked: int
    cut: int


def run_tasks(
    model: LoopedLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    *,
    local_directory: Path | None,
    shots: Sequence[int] | None = None,
    batch_rows: int = 16,
    limit: int | None = None,
    show_progress: bool = False,
    on_prompts: Callable[[PromptCount], None] | None = None,
) -> list[TaskScore]:
    """Ask a model every item of the tasks.

    Args:
        model: a trained model.
        tokenizer: its own.
        tasks: names of tasks or groups; one that comes twice, by itself or in a group, is asked once.
        local_directory: where ``write_local_tasks`` wrote; None where no local task is asked.
        shots: numbers of solved examples in the prompt, each a run of its own; None takes 0 and 1 for ``deeploop``, as
            its paper does, and 0 for all others.
        batch_rows: prompts per forward pass.
        limit: only so many items of each task, for trying out.
        show_progress: let the harness write its progress bars to stderr.
        on_prompts: called after the prompts of one number of shots.

    Raises:
        ConfigError: no task of that name (the nearest is suggested), or more shots than a task has examples.
        DataError: a task's data cannot be fetched.
    """
    # A warning for every prompt that is cut would bury what matters.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from lm_eval import simple_evaluate

    from depthscale.evaluation.harness_model import CountingHFLM

    tasks = distinct_tasks(tasks)
    manager = _task_manager(tasks, local_directory)
    network = [task for task in tasks if task not in LOCAL_NAMES]
    if network:
        _require_hub(network)
    harness_model = CountingHFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_rows)
    scores: list[TaskScore] = []
    for num_fewshot, asked in _by_shots(tasks, shots).items():
        harness_model.asked = harness_model.cut = 0
        with _output_to_stderr(show_progress), _no_git():
            built = _build(manager, asked, num_fewshot, network)
            found = simple_evaluate(
                harness_model,
                tasks=built,
                num_fewshot=num_fewshot,
                task_manager=manager,
                limit=limit,
                bootstrap_iters=_BOOTSTRAP_DRAWS,
                log_samples=True,
            )
        if on_prompts:
            on_prompts(PromptCount(num_fewshot, harness_model.asked, harness_model.cut))
        scores += _scores(found, num_fewshot)
    return scores


def require_known(tasks: Sequence[str]) -> None:
    """Refuse a name that no task has, before anything slow is done.

    Raises:
        ConfigError: no task of that name; the nearest is suggested.
    """
    _task_manager(distinct_tasks(tasks), None)


def _build(manager: Any, tasks: Sequence[str], num_fewshot: int, network: Sequence[str]) -> list[Any]:
    """The harness's tasks and groups with their data; a task that a group among them holds comes with the group only.

    Only here are data fetched, so only here does an error of the harness mean that they cannot be.
    """
    try:
        loaded = [manager.load([task]) for task in tasks]
    # The harness and its data library raise dozens of kinds where data cannot be had.
    except (OSError, ConnectionError, HfHubHTTPError, ValueError) as error:
        if not network:
            raise
        raise DataError(f"{_names(network)} cannot be fetched: {_first_line(error)}; {_OFFLINE_HINT}") from error
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


_OFFLINE_HINT = "without a network use --tasks local, whose items are made from your own held-out text"


def _task_manager(tasks: Sequence[str], local_directory: Path | None) -> Any:
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


def _by_shots(tasks: Sequence[str], shots: Sequence[int] | None) -> dict[int, list[str]]:
    """Which tasks are asked at each number of shots."""
    grouped: dict[int, list[str]] = {}
    for task in tasks:
        for num_fewshot in usual_shots(task) if shots is None else dict.fromkeys(shots):
            grouped.setdefault(num_fewshot, []).append(task)
    return grouped


def _require_hub(tasks: Sequence[str]) -> None:
    """Learn in one question that there is no network: loading itself tries again for most of a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return
    try:
        HfApi().dataset_info(_PROBE, timeout=_PROBE_SECONDS)
    except HfHubHTTPError:
        return
    except Exception as error:
        raise DataError(
            f"{_names(tasks)} cannot be fetched, as the Hub does not answer ({_first_line(error)}); {_OFFLINE_HINT},"
            " or set HF_HUB_OFFLINE=1 if the data lie in the Hub's cache"
        ) from error


def _scores(found: Mapping[str, Any], num_fewshot: int) -> Iterable[TaskScore]:
    for task, results in found["results"].items():
        samples = found["samples"].get(task, [])
        keys = tuple(str(sample["doc"].get("id", sample["doc_hash"])) for sample in samples)
        for name, value in results.items():
            metric, _, kept_by = name.partition(",")
            if kept_by != "none" or metric.endswith("_stderr") or not isinstance(value, float | int):
                continue
            error = results.get(f"{metric}_stderr,none")
            outcomes = [sample.get(metric) for sample in samples]
            numbers = _mean_is(outcomes, value)
            yield TaskScore(
                task=task,
                num_fewshot=num_fewshot,
                metric=metric,
                value=float(value),
                standard_error=float(error) if isinstance(error, float | int) else None,
                num_items=len(samples) or int(results.get("sample_len", 0)),
                higher_is_better=bool(found["higher_is_better"].get(task, {}).get(metric, True)),
                item_keys=keys if numbers else (),
                outcomes=tuple(float(outcome) for outcome in outcomes if outcome is not None) if numbers else (),
                members=tuple(found["group_subtasks"].get(task, ())),
            )


def _mean_is(outcomes: Sequence[Any], value: float) -> bool:
    """Whether every item has a number, and ``value`` is their mean."""
    if not outcomes or not all(isinstance(outcome, float | int) for outcome in outcomes):
        return False
    return math.isfinite(value) and abs(statistics.fmean(outcomes) - value) < _SAME_MEAN


@contextlib.contextmanager
def _no_git() -> Iterator[None]:
    """Keep the harness from asking git which commit the user's folder is at: outside a repository git complains."""
    from lm_eval import evaluator

    asks = evaluator.get_git_commit_hash
    evaluator.get_git_commit_hash = lambda: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = asks


@contextlib.contextmanager
def _output_to_stderr(shown: bool) -> Iterator[None]:
    """The harness prints to both streams; stdout belongs to the caller."""
    with contextlib.ExitStack() as stack:
        if shown:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        else:
            nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield


def _names(tasks: Sequence[str]) -> str:
    return f"the data of {', '.join(tasks)}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

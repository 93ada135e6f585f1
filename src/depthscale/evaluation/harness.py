"""Downstream tasks through lm-evaluation-harness, in this process, with the outcome of every item.

``local``     two tasks made from held-out text (see ``local_tasks``), offline
``deeploop``  the eight tasks of DeepLoop, arXiv 2607.13491; fetches data
NAME          any task, group or tag that the harness knows; fetches data
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from depthscale.evaluation.harness_tasks import build_tasks, require_hub, task_manager
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.task_names import LOCAL_NAMES, distinct_tasks, usual_shots

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
    manager = task_manager(tasks, local_directory)
    network = [task for task in tasks if task not in LOCAL_NAMES]
    if network:
        require_hub(network)
    harness_model = CountingHFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_rows)
    scores: list[TaskScore] = []
    for num_fewshot, asked in _by_shots(tasks, shots).items():
        harness_model.asked = harness_model.cut = 0
        with _output_to_stderr(show_progress), _no_git():
            built = build_tasks(manager, asked, num_fewshot, network)
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


def _by_shots(tasks: Sequence[str], shots: Sequence[int] | None) -> dict[int, list[str]]:
    """Which tasks are asked at each number of shots."""
    grouped: dict[int, list[str]] = {}
    for task in tasks:
        for num_fewshot in usual_shots(task) if shots is None else dict.fromkeys(shots):
            grouped.setdefault(num_fewshot, []).append(task)
    return grouped


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

"""The two results of ``depthscale evaluate``: losses (over rounds, at exits) and downstream tasks, as plain data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthscale.errors import DataError
from depthscale.evaluation.early_exit import exits_to_dict, measure_exits
from depthscale.evaluation.exit_flops import exit_flops_per_token
from depthscale.evaluation.local_tasks import write_local_tasks
from depthscale.evaluation.round_laws import fit_round_laws, rises_again
from depthscale.evaluation.rounds import MAX_ROUNDS, RoundsPoint, evaluate_rounds, own_rounds
from depthscale.evaluation.target import Target
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.runs.task_names import LOCAL_NAMES, distinct_tasks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from depthscale.evaluation.harness import PromptCount
    from depthscale.training.held_out import HeldOut

#: What an evaluation may hold, each measured only when it is asked for.
SECTIONS = ("rounds", "exits")
#: Two evaluations that agree in these are of one model on one text, so that one file may hold sections of both.
_SAME_MEASUREMENT = ("run_sha256", "corpus_sha256", "split", "max_rows")


def default_rounds(config: LoopedLMConfig) -> list[int]:
    """Every R up to the model's own, and its doublings up to four times, none above ``MAX_ROUNDS``.

    Example:
        >>> default_rounds(LoopedLMConfig(plan=[{"blocks": 1, "rounds": 3}]))
        [1, 2, 3, 6, 12]
    """
    own = own_rounds(config)
    return [count for count in (*range(1, own + 1), 2 * own, 4 * own) if count <= MAX_ROUNDS]


def with_earlier_sections(result: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """The evaluation with the sections that it did not measure taken from an earlier one of the same model and text.

    Args:
        result: what :func:`evaluation_result` gave.
        earlier: the result file as it was; None where there was none.
    """
    merged = dict(result)
    if earlier is not None and all(earlier.get(key) == result[key] for key in _SAME_MEASUREMENT):
        merged.update({name: earlier.get(name) for name in SECTIONS if result[name] is None})
    return merged


def evaluation_result(
    model: LoopedLMForCausalLM,
    target: Target,
    held_out: HeldOut,
    split: str,
    *,
    rounds: Sequence[int],
    exits: bool,
    trained: tuple[int, int],
    batch_rows: int,
    max_rows: int | None = None,
    on_point: Callable[[RoundsPoint], None] | None = None,
) -> dict[str, Any]:
    """Losses of a trained model on held-out text.

    Args:
        model: loaded from ``target``.
        target: for its provenance.
        held_out: text in the model's tokens.
        split: name of the split.
        rounds: R to measure; the checkpoint's own R is always among them. Empty measures none.
        exits: measure early exit up to the checkpoint's own R.
        trained: smallest and largest R of training, see :func:`depthscale.evaluation.rounds.trained_rounds`.
        batch_rows: rows per forward pass.
        max_rows: rows at most, evenly spaced.
        on_point: called after each measurement over rounds.

    Returns:
        What ``results/evaluation.json`` holds: nats per token, bits per byte.

    Raises:
        DataError: no split of that name.
        PlanError: the plan has no rounds to change, or no single loop to leave.
    """
    data = held_out.data
    held_out.require_split(split)
    part = data.splits[split]
    result: dict[str, Any] = {
        **_provenance(target, held_out, split),
        "trained_rounds": list(trained),
        "own_rounds": own_rounds(model.config),
        "max_rows": max_rows,
        "unigram_loss_nats": data.unigram_loss_nats(split),
        "rounds": None,
        "exits": None,
    }
    if rounds:
        curve = evaluate_rounds(
            model,
            part,
            data.collate,
            [*rounds, own_rounds(model.config)],
            trained=trained,
            batch_rows=batch_rows,
            max_rows=max_rows,
            on_point=on_point,
        )
        result["rounds"] = {
            **curve.to_dict(),
            "laws": {
                source: {"rises_again": rises_again(points), "fits": [law.to_dict() for law in fit_round_laws(points)]}
                for source, points in (("kept", curve.kept), ("recomputed", curve.recomputed))
                if points is not None
            },
        }
    if exits:
        measured = measure_exits(
            model,
            part.dataset,
            data.collate,
            rounds=own_rounds(model.config),
            batch_rows=batch_rows,
            max_rows=max_rows,
        )
        result["exits"] = exits_to_dict(
            measured,
            part.bits_per_byte,
            lambda rule, mean_rounds: exit_flops_per_token(model.config, data.context_length, rule, mean_rounds),
        )
    return result


def tasks_result(
    model: LoopedLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    target: Target,
    held_out: HeldOut | None,
    split: str,
    tasks: Sequence[str],
    *,
    shots: Sequence[int] | None = None,
    batch_rows: int = 16,
    limit: int | None = None,
    local_directory: Path | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Downstream tasks of a trained model; arguments as for :func:`depthscale.evaluation.harness.run_tasks`.

    Args:
        held_out: text that local tasks are made from; None where none of them is asked.
        split: local tasks are made from its text, their few-shot examples from another split's.
        local_directory: where the local tasks are kept; None makes them for this call only.

    Returns:
        What ``results/tasks.json`` holds.

    Raises:
        DataError: a local task is asked without text to make it from, or other tasks' data cannot be fetched.
        ConfigError: no task of that name, or more shots than a task has examples.
    """
    # The harness takes seconds to import, which losses alone need not wait for.
    from depthscale.evaluation.harness import run_tasks

    asked = distinct_tasks(tasks)
    text = held_out if any(task in LOCAL_NAMES for task in asked) else None
    if text is None and any(task in LOCAL_NAMES for task in asked):
        raise DataError("local tasks are made from held-out text, and none was given; expected a corpus")
    prompts: list[PromptCount] = []
    with tempfile.TemporaryDirectory(prefix="depthscale-tasks-") as scratch:
        directory = None
        if text is not None:
            directory = local_directory or Path(scratch)
            _write_local(directory, text, split)
        scores = run_tasks(
            model,
            tokenizer,
            asked,
            local_directory=directory,
            shots=shots,
            batch_rows=batch_rows,
            limit=limit,
            show_progress=show_progress,
            on_prompts=prompts.append,
        )
    result = {
        **_provenance(target, text, split),
        "tasks": asked,
        "shots": None if shots is None else list(shots),
        "limit": limit,
        "prompts": [asdict(count) for count in prompts],
        "scores": [score.to_dict() for score in scores],
    }
    result["notes"] += [
        f"at {count.num_fewshot} shots {count.cut} of {count.asked} prompts were longer than the context and lost"
        " their beginning"
        for count in prompts
        if count.cut
    ]
    return result


def _write_local(directory: Path, held_out: HeldOut, split: str) -> None:
    data = held_out.data

    def count_tokens(text: str) -> int:
        return len(data.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    shots_split = "tuning" if split != "tuning" else "train"
    write_local_tasks(directory, held_out.texts(split), held_out.texts(shots_split), count_tokens, data.context_length)


def _provenance(target: Target, held_out: HeldOut | None, split: str) -> dict[str, Any]:
    model = {"checkpoint": str(target.checkpoint), "run_sha256": target.run_sha256()}
    if held_out is None:
        text = dict.fromkeys(("corpus", "corpus_sha256", "tokenizer_sha256", "context_length", "split"))
        return {**model, **text, "notes": []}
    data = held_out.data
    return {
        **model,
        "corpus": data.name,
        "corpus_sha256": data.corpus_sha256,
        "tokenizer_sha256": data.tokenizer_sha256,
        "context_length": data.context_length,
        "split": split,
        "notes": list(held_out.notes),
    }

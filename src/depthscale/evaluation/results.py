"""The two results of ``depthscale evaluate``: losses (over rounds, at exits) and downstream tasks, as plain data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthscale.errors import DataError, unknown_name
from depthscale.evaluation.early_exit import exits_to_dict, measure_exits
from depthscale.evaluation.local_tasks import LOCAL_NAMES, write_local_tasks
from depthscale.evaluation.round_laws import fit_round_laws, rises_again
from depthscale.evaluation.rounds import RoundsPoint, evaluate_rounds, own_rounds
from depthscale.evaluation.target import Target
from depthscale.nn import LoopedLMForCausalLM

if TYPE_CHECKING:
    from depthscale.training.held_out import HeldOut


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
    if split not in data.splits:
        raise DataError(unknown_name("split", split, data.splits))
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
        result["exits"] = exits_to_dict(measured, part.bits_per_byte)
    return result


def tasks_result(
    model: LoopedLMForCausalLM,
    target: Target,
    held_out: HeldOut,
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
        split: local tasks are made from its text, their few-shot examples from another split's.
        local_directory: where the local tasks are kept; None makes them for this call only.

    Returns:
        What ``results/tasks.json`` holds.
    """
    # The harness takes seconds to import, which losses alone need not wait for.
    from depthscale.evaluation.harness import run_tasks

    data = held_out.data

    def count_tokens(text: str) -> int:
        return len(data.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    with tempfile.TemporaryDirectory(prefix="depthscale-tasks-") as scratch:
        directory = None
        if any(task in LOCAL_NAMES for task in tasks):
            directory = local_directory or Path(scratch)
            shots_split = "tuning" if split != "tuning" else "train"
            write_local_tasks(
                directory, held_out.texts(split), held_out.texts(shots_split), count_tokens, data.context_length
            )
        scores = run_tasks(
            model,
            data.tokenizer,
            tasks,
            local_directory=directory,
            shots=shots,
            batch_rows=batch_rows,
            limit=limit,
            show_progress=show_progress,
        )
    return {
        **_provenance(target, held_out, split),
        "tasks": list(tasks),
        "limit": limit,
        "scores": [score.to_dict() for score in scores],
    }


def _provenance(target: Target, held_out: HeldOut, split: str) -> dict[str, Any]:
    data = held_out.data
    return {
        "checkpoint": str(target.checkpoint),
        "run_sha256": target.run_sha256(),
        "corpus": data.name,
        "corpus_sha256": data.corpus_sha256,
        "tokenizer_sha256": data.tokenizer_sha256,
        "context_length": data.context_length,
        "split": split,
        "notes": list(held_out.notes),
    }

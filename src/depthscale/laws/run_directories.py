"""Runs of our own as rows for a fit: one row a run, from its training result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from depthscale.errors import DataError, ResultError
from depthscale.laws.card import DataCard
from depthscale.laws.observations import Observations
from depthscale.runs.layout import RUNS, STUDY_FILE, arm_of
from depthscale.runs.one_text import require_one_text
from depthscale.runs.results import read_result, result_path


@dataclass(frozen=True)
class RunRows:
    """Rows made of runs.

    Attributes:
        data: columns width, depth (visits), blocks, rounds, tokens, parameters (embedding and head left out),
            unrolled_parameters, flops, flops_per_token, step, total_steps, rate and seed; loss on the report split.
        card: what the runs themselves say.
        notes: runs that were left out and why, one line each.
    """

    data: Observations
    card: DataCard
    notes: tuple[str, ...]


def read_runs(directories: Sequence[Path], arm: str | None = None) -> RunRows:
    """Rows of run directories and of the runs in study directories.

    Args:
        directories: each a study or a run.
        arm: only the runs of this arm, or of every arm that matches, such as ``looped_*``. A run that stands for
            itself has the arm that its name says.

    Raises:
        DataError: no run has a result.
        ResultError: a result is damaged, or their losses do not compare (other text, other tokenizer).
    """
    listed = [_runs_of(directory, arm) for directory in directories]
    found = [path for runs, _ in listed for path in runs]
    without = sum(count for _, count in listed)
    if arm is not None and not found:
        arms = sorted({arm_of(path.resolve().name) or "none" for path in directories})
        raise DataError(f"none of the {len(directories)} runs is of arm '{arm}'; their arms: {', '.join(arms)}")
    trained = [(path, read_result(path, "training")) for path in found]
    good = [(path, training) for path, training in trained if training["outcome"] == "finished"]
    if not good:
        raise DataError(f"{len(found)} runs came, none of them finished; expected runs that trained to their end")
    require_one_text("the runs", ((path, training["data"]) for path, training in good), "leave the odd ones out")
    rows = [_row(path, training) for path, training in good]
    columns = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    loss = columns.pop("loss")
    notes = [f"{without} of {without + len(found)} runs have no training result and are left out"] if without else []
    if len(good) < len(trained):
        notes.append(f"{len(trained) - len(good)} of {len(trained)} runs are stuck or diverged and are left out")
    rules = sorted({f"{t['model']['rule']} ({t['model']['norm_placement']})" for _, t in good})
    if len(rules) > 1:
        notes.append(f"rows mix {', '.join(rules)}: one law for several rules; fit one with --arm NAME")
    card = _card([training for _, training in good])
    return RunRows(Observations(columns, loss), card, tuple(notes))


def shared_runs(directories: Sequence[Path], first: str, second: str) -> list[Path]:
    """Trained runs that are of both arms, by their names alone; empty where no run fits both patterns."""
    found = ({run.resolve() for each in directories for run in _runs_of(each, arm)[0]} for arm in (first, second))
    return sorted(set.intersection(*found))


def _runs_of(directory: Path, arm: str | None) -> tuple[list[Path], int]:
    """Runs with a training result, and how many there are without one."""
    if (directory / STUDY_FILE).exists():
        everything = sorted(path for path in (directory / RUNS).glob("*") if path.is_dir())
        if arm is not None:
            everything = [path for path in everything if fnmatchcase(arm_of(path.name) or "", arm)]
        runs = [path for path in everything if result_path(path, "training").exists()]
        if not runs:
            of = f" of arm '{arm}'" if arm else ""
            raise DataError(f"study {directory} has no trained run{of}; run 'depthscale compare' first")
        return runs, len(everything) - len(runs)
    if result_path(directory, "training").exists():
        return [directory] if arm is None or fnmatchcase(arm_of(directory.resolve().name) or "", arm) else [], 0
    raise DataError(f"{directory} is neither a study nor a run with a training result")


def _row(path: Path, training: Mapping[str, Any]) -> dict[str, float]:
    try:
        return _columns(training)
    except (KeyError, TypeError) as error:
        raise ResultError(
            f"the training result of {path} lacks {error}; expected what 'depthscale train' writes: run it again"
        ) from error


def _columns(training: Mapping[str, Any]) -> dict[str, float]:
    plan, budget = training["plan"], training["budget"]
    visits = plan["unrolled_depth"] / plan["num_blocks"]
    return {
        "width": training["model"]["hidden_size"],
        "depth": plan["unrolled_depth"],
        "blocks": plan["num_blocks"],
        "rounds": plan["num_rounds"],
        "tokens": training["tokens"],
        "parameters": budget["parameters_non_embedding"],
        "unrolled_parameters": budget["parameters_non_embedding"] * visits,
        "flops": budget["training_flops"],
        "flops_per_token": budget["flops_per_token_training"],
        "step": training["step"],
        "total_steps": training["steps_planned"],
        "rate": training["optimization"]["lr"],
        "seed": training["seed"],
        "loss": training["final"]["report"]["loss_nats"],
    }


def _card(trainings: Sequence[Mapping[str, Any]]) -> DataCard:
    ratios = {round(t["model"]["intermediate_size"] / t["model"]["hidden_size"], 2) for t in trainings}
    vocabularies = {t["model"]["vocab_size"] for t in trainings}
    # Results of an older version know no MLP or context.
    kinds = {t["model"].get("mlp") for t in trainings}
    contexts = {t["data"].get("context_length") for t in trainings}
    return DataCard(
        annealed=all(t["optimization"]["schedule"] != "constant" for t in trainings),
        tokenizer=str(trainings[0]["data"]["tokenizer"]),
        vocab_size=vocabularies.pop() if len(vocabularies) == 1 else None,
        mlp_ratio=ratios.pop() if len(ratios) == 1 else None,
        embeddings_counted=False,
        mlp=kinds.pop() if len(kinds) == 1 else None,
        context_length=contexts.pop() if len(contexts) == 1 else None,
    )

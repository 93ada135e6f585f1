"""The paper's loss table beside whichever cells of a recipe have been run.

A run is taken for a cell of the recipe by what it is (blocks, width, placement, rule and rounds), not by its name, and
every setting in which it departs from the recipe is listed: a short run, another corpus or another tokenizer has a loss
of its own kind, which stands in the table but is never set against the paper's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate
from depthscale.runs.layout import CONFIG_FILE
from depthscale.runs.one_text import require_one_text
from depthscale.runs.results import read_result
from depthscale.runs.study_config import StudyFile
from depthscale.studies.paired import paired_interval
from depthscale.studies.recipe_paper import SOURCE, paper_arm, paper_size
from depthscale.studies.study_runs import REPORT_SPLIT

#: Settings that change how fast or how often something is done, and not what is trained.
_OF_NO_EFFECT = {
    "train": {
        "batch_rows", "accumulation", "seed", "data_seed", "eval_every", "checkpoint_every", "log_every",
        "log_alignment_every", "compile_blocks", "checkpoint_visits", "tensorboard", "num_threads",
    },
    "data": {"revision"},
}  # fmt: skip


@dataclass(frozen=True)
class RecipeRun:
    """A run that is a cell of the recipe.

    Attributes:
        directory: of the run.
        seed: of its data order.
        outcome: ``finished``, ``stuck`` or ``diverged``.
        loss_nats: on the report split; None where it is not finite.
        tokens: trained on.
        corpus_sha256, tokenizer_sha256: of its data.
        departures: settings that differ from the recipe's, in words.
    """

    directory: str
    seed: int
    outcome: str
    loss_nats: float | None
    tokens: int
    corpus_sha256: str
    tokenizer_sha256: str
    departures: tuple[str, ...]


def recipe_table(file: StudyFile, runs: Path) -> dict[str, Any]:
    """Every cell of the recipe, with the paper's loss and ours where there are any.

    Args:
        file: the recipe.
        runs: a folder; every run directory below it is looked at.

    Returns:
        Plain data: ``cells`` (arm, rounds, paper's loss, runs, mean, standard deviation), ``gains`` (baseline less the
        other arm at one R, the paper's beside ours with its interval), ``num_other_runs``.

    Raises:
        ResultError: the folder is missing or holds no run with a result, a result is damaged, or runs that are as the
            recipe says read different text or tokenizers.
    """
    if not runs.is_dir():
        raise ResultError(
            f"no folder at {runs}; expected one that holds runs of the recipe: make some first with 'depthscale train'"
        )
    found = [path.parent.parent for path in sorted(runs.rglob("results/training.json"))]
    if not found:
        raise ResultError(f"no run below {runs} has a result yet; train a cell of the recipe there first")
    cells: dict[tuple[str, int], list[RecipeRun]] = {
        (arm.name, rounds): [] for arm in file.study.arms for rounds in file.study.rounds_of(arm.name)
    }
    num_other = 0
    for directory in found:
        if not (directory / CONFIG_FILE).exists():
            # Another trainer's run, which does not say what it trained.
            num_other += 1
            continue
        config = validate(RunConfig, read_toml(directory / CONFIG_FILE), str(directory / CONFIG_FILE))
        key = next((cell for cell in cells if _is_cell(config, _recipe_config(file, cell))), None)
        if key is None:
            num_other += 1
            continue
        cells[key].append(_run(directory, runs, config, _recipe_config(file, key)))
    alike = [run for of_cell in cells.values() for run in of_cell if not run.departures]
    require_one_text(
        "runs of the recipe", ((run.directory, asdict(run)) for run in alike), "move the odd ones out of the folder"
    )
    some = _recipe_config(file, next(iter(cells)))
    size = paper_size(some.plan.blocks, some.model.hidden_size)
    rows = [_row(file, key, size.losses if size else {}, of_cell) for key, of_cell in cells.items()]
    return {
        "name": file.study.name,
        "paper": SOURCE,
        "paper_size": size.name if size else None,
        "baseline": file.study.baseline,
        "confidence": file.study.confidence,
        "split": REPORT_SPLIT,
        "cells": rows,
        "gains": [
            _gain(file, arm.name, rounds, rows)
            for arm in file.study.arms
            if arm.name != file.study.baseline
            for rounds in file.study.rounds_of(arm.name)
            if (file.study.baseline, rounds) in cells
        ],
        "num_runs": len(found),
        "num_other_runs": num_other,
    }


def _recipe_config(file: StudyFile, cell: tuple[str, int]) -> RunConfig:
    return file.run_config(*cell, seed=file.study.seeds[0])


def _is_cell(run: RunConfig, recipe: RunConfig) -> bool:
    return (
        run.plan == recipe.plan
        and run.model.hidden_size == recipe.model.hidden_size
        and run.model.norm_placement == recipe.model.norm_placement
        and (run.model.rule, run.model.rule_arguments) == (recipe.model.rule, recipe.model.rule_arguments)
    )


def _run(directory: Path, root: Path, config: RunConfig, recipe: RunConfig) -> RecipeRun:
    training = read_result(directory, "training")
    loss = training["final"][REPORT_SPLIT]["loss_nats"]
    departures = _departures(config, recipe)
    if training["step"] < training["steps_planned"]:
        departures.append(f"ended at step {training['step']} of {training['steps_planned']}")
    wanted = recipe.train.rows_per_step(1)
    # Counted, as the configuration does not know how many processes shared a step.
    made = training["tokens"] / (training["step"] * config.data.context_length) if training["step"] else wanted
    if made != wanted:
        departures.append(f"rows per step {made:g} (recipe: {wanted})")
    return RecipeRun(
        str(directory.relative_to(root)),
        training["data_seed"],
        training["outcome"],
        loss,
        training["tokens"],
        training["data"]["corpus_sha256"],
        training["data"]["tokenizer_sha256"],
        tuple(departures),
    )


def _departures(run: RunConfig, recipe: RunConfig) -> list[str]:
    found = []
    for part in ("model", "data", "train"):
        ours, theirs = getattr(run, part).model_dump(), getattr(recipe, part).model_dump()
        for name, wanted in theirs.items():
            counted_apart = name == "global_batch_rows"
            if ours[name] != wanted and name not in _OF_NO_EFFECT.get(part, ()) and not counted_apart:
                found.append(f"{part}.{name} {ours[name]} (recipe: {wanted})")
    return found


def _row(
    file: StudyFile, key: tuple[str, int], paper: Mapping[tuple[str, int], float], runs: Sequence[RecipeRun]
) -> dict[str, Any]:
    arm, rounds = key
    in_paper = paper_arm(_recipe_config(file, key).model.model_dump())
    losses = [run.loss_nats for run in runs if run.loss_nats is not None and not run.departures]
    return {
        "arm": arm,
        "rounds": rounds,
        "paper_loss_nats": None if in_paper is None else paper.get((in_paper, rounds)),
        "runs": [asdict(run) for run in runs],
        "num_as_the_recipe": len(losses),
        "mean_nats": statistics.fmean(losses) if losses else None,
        "sd_nats": statistics.stdev(losses) if len(losses) > 1 else None,
    }


def _gain(file: StudyFile, arm: str, rounds: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Loss of the baseline less that of ``arm``, over seeds that both ran as the recipe says."""
    cells = {row["arm"]: row for row in rows if row["rounds"] == rounds}
    baseline, other = cells[file.study.baseline], cells[arm]
    printed = (baseline["paper_loss_nats"], other["paper_loss_nats"])
    losses = [
        {
            run["seed"]: run["loss_nats"]
            for run in cell["runs"]
            if run["loss_nats"] is not None and not run["departures"]
        }
        for cell in (baseline, other)
    ]
    differences = [losses[0][seed] - losses[1][seed] for seed in sorted(losses[0].keys() & losses[1].keys())]
    interval = paired_interval(differences, file.study.confidence)
    return {
        "arm": arm,
        "rounds": rounds,
        "paper_nats": None if None in printed else printed[0] - printed[1],
        "num_pairs": len(differences),
        "mean_nats": statistics.fmean(differences) if differences else None,
        "interval": None if interval is None else asdict(interval),
    }

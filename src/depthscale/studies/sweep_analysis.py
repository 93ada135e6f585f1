"""What a sweep's runs say: shares that train, the edge, times to escape, losses, and the paper's counts beside them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from depthscale.errors import ResultError
from depthscale.runs.one_text import require_one_text
from depthscale.runs.results import write_result
from depthscale.runs.sweep_config import SweepFile
from depthscale.studies.paired import paired_interval
from depthscale.studies.sweep_edge import find_edge, share_interval
from depthscale.studies.sweep_runs import (
    LONGER,
    NEAR_EDGE,
    THRESHOLD,
    EndedRun,
    planned_runs,
    read_runs,
    read_sweep_document,
    sweep_file,
)
from depthscale.studies.sweep_times import compare_times, escape_curve
from depthscale.studies.sweep_words import verdict, warnings_of

OUTCOMES = ("finished", "stuck", "diverged", "missing")

#: Runs that leave the unigram floor, of five each, and mean loss at step 2,000 of those that train.
#: Source: DeepLoop, arXiv 2607.13491, appendix C (K = 12, R = 3, about 2,700 steps, its own rate and data).
PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "source": "DeepLoop, arXiv 2607.13491, appendix C",
        "setting": "K = 12, R = 3, width 768, about 2,700 steps, 5 seeds",
        "exponents": [0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60],
        "trained": [0, 1, 2, 2, 3, 5, 5],
        "runs": [5, 5, 5, 5, 5, 5, 5],
        "loss_nats": [None, None, None, 3.70, 3.73, 3.76, 3.80],
    }
)

DEFINITIONS = {
    "train": "a run trains if a loss on the tuning split was ever below the unigram floor and it did not diverge",
    "unigram_floor": "entropy of the evaluated tokens' own frequencies; no model without context has a lower loss",
    "time": "first evaluated step below the floor; runs that never were are censored at their last step",
    "p50": "exponent at which half of the runs train, of a logistic curve that does not fall with p",
    "interval": "profile likelihood of p50, wider where the runs of a seed depend on each other; Wilson's and Clopper"
    " and Pearson's of a share; Student's t of a mean loss",
}


def write_sweep_result(directory: Path) -> dict[str, Any]:
    """Analyze a sweep's runs and write ``results/sweep.json``; return what was written.

    Raises:
        ResultError: the sweep or a result is damaged, no run has a result, or runs read different text.
    """
    document = read_sweep_document(directory)
    result = analyze(sweep_file(document, directory), document, directory)
    write_result(directory, "sweep", result)
    return result


def analyze(file: SweepFile, document: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The result as plain data."""
    sweep = file.sweep
    runs = read_runs(directory, planned_runs(file, document["later_additions"]))
    setting = _setting(file, runs, directory)
    ordinary = [run for run in runs if run.planned.step_factor == 1]
    cells = [
        _cell(found, sweep.confidence)
        for arm in dict.fromkeys(run.planned.arm for run in ordinary)
        for lr in sweep.rates
        if (found := [run for run in ordinary if (run.planned.arm, run.planned.lr) == (arm, lr)])
    ]
    of_grid = [cell for cell in cells if cell["in_grid"]]
    edges = [_edge_at(lr, of_grid, sweep.confidence) for lr in sweep.rates]
    result: dict[str, Any] = {
        "name": sweep.name,
        "definitions": DEFINITIONS,
        "setting": setting,
        "stopping_rule": document["stopping_rule"],
        "later_additions": document["later_additions"],
        "cells": cells,
        "edges": edges,
        "times": [comparison for lr in sweep.rates if (comparison := _times_at(lr, of_grid, setting["steps"]))],
        "longer": _longer(runs, sweep.confidence),
        "loss_trend": _loss_trend([cell for cell in of_grid if cell["lr"] == sweep.main_rate], sweep.confidence),
        "threshold": _threshold(document, next(edge for edge in edges if edge["lr"] == sweep.main_rate)),
        "paper": {
            **PAPER,
            "edge": dataclasses.asdict(
                find_edge(PAPER["exponents"], PAPER["trained"], PAPER["runs"], sweep.confidence)
            ),
        },
    }
    result["warnings"] = warnings_of(result)
    result["verdict"] = verdict(result)
    return result


def _setting(file: SweepFile, runs: Sequence[EndedRun], directory: Path) -> dict[str, Any]:
    made = [run.training for run in runs if run.training is not None]
    if not made:
        raise ResultError(f"no run under {directory / 'runs'} has a result yet; run the sweep first")
    data = (
        (f"{run.planned.arm} of seed {run.planned.seed}", run.training["data"])
        for run in runs
        if run.training is not None
    )
    require_one_text(f"the runs of {directory}", data, "delete the odd ones and run the sweep again")
    sweep, config = file.sweep, runs[0].planned.config
    floors = [training["unigram_loss_nats"]["tuning"] for training in made]
    return {
        "exponents": list(sweep.exponents),
        "rates": list(sweep.rates),
        "main_rate": sweep.main_rate,
        "seeds": list(sweep.seeds),
        "extra_seeds": list(sweep.extra_seeds),
        "confidence": sweep.confidence,
        "plan": made[0]["plan"],
        "norm_placement": config.model.norm_placement,
        "hidden_size": config.model.hidden_size,
        "num_attention_heads": config.model.num_attention_heads,
        "mlp": config.model.mlp,
        "steps": config.train.steps,
        "tokens_per_step": config.train.rows_per_step(1) * config.data.context_length,
        "warmup_steps": config.train.warmup_steps,
        "schedule": config.train.schedule,
        "resolution_steps": config.train.eval_every,
        "unigram_floor_nats": [min(floors), max(floors)],
        "data": {key: made[0]["data"][key] for key in ("corpus", "corpus_sha256", "tokenizer", "tokenizer_sha256")},
        "training_seconds": sum(training["wall_seconds"] for training in made),
        "num_runs": len(made),
    }


def _cell(runs: Sequence[EndedRun], confidence: float) -> dict[str, Any]:
    """One arm at one rate (and one length)."""
    first = runs[0].planned
    made = [run for run in runs if run.outcome != "missing"]
    outcomes = Counter(run.outcome for run in runs)
    trained = [run for run in made if run.trained]
    losses = [run.loss_nats for run in trained if run.loss_nats is not None]
    grid = [run for run in made if run.planned.added != NEAR_EDGE]
    return {
        "arm": first.arm,
        "p": first.p,
        "in_grid": first.p is not None and first.added != THRESHOLD,
        "lr": first.lr,
        "steps": first.config.train.steps,
        "outcomes": {name: outcomes[name] for name in OUTCOMES},
        "share": dataclasses.asdict(share_interval(len(trained), len(made), confidence)) if made else None,
        "first_seeds": {"trained": sum(run.trained for run in grid), "runs": len(grid)},
        "scales": made[0].training["model"]["scales"] if made and made[0].training else None,
        "loss": {
            "mean": sum(losses) / len(losses) if losses else None,
            "interval": dataclasses.asdict(found) if (found := paired_interval(losses, confidence)) else None,
            "num_runs": len(losses),
        },
        "escape": dataclasses.asdict(escape_curve([r.passed_at for r in made], first.config.train.steps, confidence))
        if made
        else None,
        "runs": [
            {
                "seed": run.planned.seed,
                "added": run.planned.added,
                "outcome": run.outcome,
                "passed_at": run.passed_at,
                "loss_nats": run.loss_nats,
                "directory": f"runs/{run.planned.name}",
            }
            for run in runs
        ],
    }


def _edge_at(lr: float, cells: Sequence[Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    made = sorted((cell for cell in cells if cell["lr"] == lr and cell["share"]), key=lambda cell: float(cell["p"]))
    shares = [cell["share"] for cell in made]
    if len(made) < 2:
        return {"lr": lr, "kind": "missing", "num_exponents": len(made)}
    edge = find_edge(
        [cell["p"] for cell in made],
        [share["num_trained"] for share in shares],
        [share["num_runs"] for share in shares],
        confidence,
        [{r["seed"]: r["outcome"] == "finished" for r in cell["runs"] if r["outcome"] != "missing"} for cell in made],
    )
    return {"lr": lr, "num_exponents": len(made), **dataclasses.asdict(edge)}


def _times_at(lr: float, cells: Sequence[Mapping[str, Any]], last_step: int) -> dict[str, Any] | None:
    """Times of the two theories' exponents, 1/4 and 1/2, or of the first and last where the grid lacks them."""
    at = {cell["p"]: cell for cell in cells if cell["lr"] == lr and cell["share"]}
    if len(at) < 2:
        return None
    low, high = (0.25, 0.5) if {0.25, 0.5} <= set(at) else (min(at), max(at))
    first, second = ([r["passed_at"] for r in at[p]["runs"] if r["outcome"] != "missing"] for p in (low, high))
    found = compare_times(first, second, last_step)
    return {"lr": lr, "exponents": [low, high], "test": dataclasses.asdict(found) if found else None}


def _longer(runs: Sequence[EndedRun], confidence: float) -> list[dict[str, Any]]:
    """The longer check, each exponent beside its ordinary runs of the same seeds."""
    found = []
    for p in sorted({run.planned.p for run in runs if run.planned.added == LONGER and run.planned.p is not None}):
        longer = {r.planned.seed: r for r in runs if r.planned.added == LONGER and r.planned.p == p}
        lr = next(iter(longer.values())).planned.lr
        ordinary = {
            r.planned.seed: r
            for r in runs
            if (r.planned.p, r.planned.lr, r.planned.added) == (p, lr, None) and r.planned.seed in longer
        }
        pairs = [
            (ordinary[seed].trained, run.trained)
            for seed, run in longer.items()
            if "missing" not in (run.outcome, ordinary[seed].outcome)
        ]
        found.append(
            {
                **_cell(list(longer.values()), confidence),
                "num_pairs": len(pairs),
                "trained_before": sum(before for before, _ in pairs),
                "trained_after": sum(after for _, after in pairs),
                "gained": sum(after and not before for before, after in pairs),
                "lost": sum(before and not after for before, after in pairs),
            }
        )
    return found


def _loss_trend(cells: Sequence[Mapping[str, Any]], confidence: float) -> dict[str, Any] | None:
    """Slope of the final loss on p among runs that train, per 0.1 of p, within seeds; None where there is too little.

    A seed that trains at small p may be a better one at every p, so each keeps a level of its own.
    """
    runs = [
        (cell["p"], run["loss_nats"], run["seed"])
        for cell in cells
        for run in cell["runs"]
        if run["outcome"] == "finished" and run["loss_nats"] is not None
    ]
    of_seed = {seed: [(p, loss) for p, loss, own in runs if own == seed] for _, _, seed in runs}
    paired = {seed: np.array(own) for seed, own in of_seed.items() if len(own) > 1}
    exponents = sorted({p for own in paired.values() for p in own[:, 0].tolist()})
    num_runs = sum(len(own) for own in paired.values())
    spare = num_runs - len(paired) - 1
    if len(exponents) < 3 or spare < 1:
        return None
    p, loss = np.concatenate([own - own.mean(axis=0) for own in paired.values()]).T
    slope = float(p @ loss / (p @ p))
    error = math.sqrt(float(((loss - slope * p) ** 2).sum()) / spare / float(p @ p))
    half_width = float(stats.t.ppf((1 + confidence) / 2, spare)) * error
    return {
        "nats_per_tenth": slope / 10,
        "interval": [(slope - half_width) / 10, (slope + half_width) / 10],
        "num_runs": num_runs,
        "exponents": exponents,
    }


def _threshold(document: Mapping[str, Any], edge: Mapping[str, Any]) -> dict[str, Any] | None:
    """The threshold measured elsewhere beside the edge at the main rate; ``agrees`` only where there is an edge."""
    addition = next((a for a in document["later_additions"] if a["reason"] == THRESHOLD), None)
    if addition is None:
        return None
    has_edge = edge["kind"] in ("crossing", "separated")
    agrees = edge["lower"] <= addition["p"] <= edge["upper"] if has_edge else None
    return {"p": addition["p"], "source": addition["source"], "agrees": agrees}

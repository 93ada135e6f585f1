"""Writes a study directory as training would leave it, with losses that the test chooses."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from depthscale.runs.config_file import validate, write_toml
from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import write_result
from depthscale.runs.study_config import StudyFile

VOCABULARY = 1024
UNIFORM_LOSS = math.log(VOCABULARY)
UNIGRAM_LOSS = 5.2
STEPS = 600
TOKENS_PER_STEP = 16 * 128
TRAIN_TOKENS = 900_000

ARMS = (
    {"name": "pre"},
    {"name": "deepnorm", "model": {"norm_placement": "post", "rule": "deepnorm"}},
    {"name": "deeploop", "model": {"norm_placement": "post", "rule": "deeploop"}},
)

#: Mean final losses; the gap of looping is far above the spread, that of deepnorm at R = 4 far below it.
LOSSES = {
    ("pre", 1): 3.10,
    ("deepnorm", 1): 3.101,
    ("deeploop", 1): 3.099,
    ("pre", 4): 2.98,
    ("deepnorm", 4): 2.982,
    ("deeploop", 4): 2.90,
}

Cell = tuple[str, int]


def write_synthetic_study(
    directory: Path,
    *,
    losses: Mapping[Cell, float] = LOSSES,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    spread: float = 0.008,
    outcomes: Mapping[tuple[str, int, int], str] | None = None,
    corpus: str = "stdlib",
    name: str = "synthetic",
    lr_source: str = "tuning study, seeds 100 and 101",
    training: Mapping[tuple[str, int, int], Mapping[str, Any]] | None = None,
    with_tuning: bool = True,
    all_arms: Sequence[Mapping[str, Any]] = ARMS,
    study: Mapping[str, Any] | None = None,
    document: Mapping[str, Any] | None = None,
) -> Path:
    """Write the study and return its directory.

    Args:
        losses: mean final loss of each cell; runs of one seed share a seed effect, as paired runs do.
        spread: standard deviation of each run's own noise, nats.
        outcomes: (arm, rounds, seed) -> stuck, diverged (loss lost) or missing; others finish.
        training: (arm, rounds, seed) -> what to change in its training result, table by table.
        all_arms: arms to take those from that have a loss.
        study: further keys of ``[study]``.
        document: further keys of ``study.json``.
    """
    outcomes, training = outcomes or {}, training or {}
    noise = random.Random(20260801)
    rounds = sorted({cell[1] for cell in losses})
    arms = []
    for arm in all_arms:
        if own := [r for r in rounds if (arm["name"], r) in losses]:
            arms.append(arm if own == rounds else {**arm, "rounds": own})
    cells = [
        {"arm": arm["name"], "rounds": r, "lr": 0.004 / r, "lr_source": lr_source}
        for arm in arms
        for r in arm.get("rounds", rounds)
    ]
    tables = {
        "plan": {"kind": "looped", "blocks": 2},
        "model": {"hidden_size": 64, "num_attention_heads": 4},
        "data": {"corpus": corpus},
        "train": {"steps": STEPS, "batch_rows": 16, "lr": 0.004, "warmup_steps": 30, "eval_every": 50},
        "study": {
            "name": name,
            "arms": arms,
            "baseline": "pre",
            "rounds": rounds,
            "seeds": list(seeds),
            "rates": [{"arm": c["arm"], "rounds": c["rounds"], "lr": c["lr"], "source": c["lr_source"]} for c in cells],
            **(study or {}),
        },
    }
    file = validate(StudyFile, tables, "synthetic study")
    written = {
        "kind": "study",
        "schema_version": 1,
        "name": name,
        "config": file.model_dump(mode="json"),
        "cells": cells,
        "stopping_rule": "every seed once, no looking in between",
        "created": "2026-08-01T00:00:00+00:00",
        "later_additions": [],
        **(document or {}),
    }
    atomic_write_text(directory / "study.json", json.dumps(written))
    seed_effects = {seed: noise.gauss(0, 0.03) for seed in seeds}
    for cell in cells:
        for seed in seeds:
            key = (cell["arm"], cell["rounds"], seed)
            outcome = outcomes.get(key, "finished")
            loss = losses[key[:2]] + seed_effects[seed] + noise.gauss(0, spread)
            if outcome != "missing":
                config = file.run_config(*key)
                run = directory / "runs" / f"{key[0]}-r{key[1]}-s{seed}"
                write_toml(run / "config.toml", config)
                _write_metrics(run, outcome, loss, noise)
                write_result(run, "training", _training(config, outcome, loss, training.get(key, {}), noise))
    if with_tuning:
        _write_tuning(directory, cells, losses)
    return directory


def _loss_at(step: int, outcome: str, loss: float) -> float:
    if outcome == "stuck":
        loss = UNIGRAM_LOSS + 0.02
    return loss + (UNIFORM_LOSS - loss) * math.exp(-step / (0.18 * STEPS))


def _write_metrics(run: Path, outcome: str, loss: float, noise: random.Random) -> None:
    last = STEPS // 3 if outcome == "diverged" else STEPS
    lines = []
    for step in range(10, last + 1, 10):
        value = None if outcome == "diverged" and step == last else _loss_at(step, outcome, loss)
        jitter = noise.gauss(0, 0.05)
        lines.append(
            {
                "step": step,
                "kind": "train",
                "loss_nats": None if value is None else value + jitter,
                "lr": 1e-3,
                "grad_norm": 0.8,
                "tokens": step * TOKENS_PER_STEP,
                "seconds": 0.1 * step,
            }
        )
        if step % 50 == 0:
            lines.append(
                {"step": step, "kind": "evaluation", "split": "tuning", "loss_nats": value, "bits_per_byte": None}
            )
    atomic_write_text(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _training(
    config: Any, outcome: str, loss: float, changes: Mapping[str, Any], noise: random.Random
) -> dict[str, Any]:
    plan, rounds = config.plan.build(), config.plan.rounds
    final = {"finished": loss, "stuck": UNIGRAM_LOSS + 0.02, "diverged": None}[outcome]
    step = STEPS // 3 if outcome == "diverged" else STEPS
    tokens, parameters = step * TOKENS_PER_STEP, 164_032
    flops = 6 * (65_536 + 98_304 * rounds)
    evaluation = {
        "loss_nats": final,
        "bits_per_byte": None if final is None else final / math.log(2) / 3.1,
        "num_tokens": 51_200,
    }
    visits = plan.unrolled_depth
    result: dict[str, Any] = {
        "outcome": outcome,
        "outcome_reason": "as the test asked",
        "seed": config.train.seed,
        "data_seed": config.train.data_seed,
        "step": step,
        "steps_planned": STEPS,
        "tokens": tokens,
        "final": {"tuning": evaluation, "report": evaluation},
        "unigram_loss_nats": {"tuning": UNIGRAM_LOSS, "report": UNIGRAM_LOSS},
        "uniform_loss_nats": UNIFORM_LOSS,
        "plan": {
            "num_blocks": plan.num_blocks,
            "num_rounds": rounds,
            "unrolled_depth": visits,
            "num_sublayer_visits": 2 * visits,
        },
        "model": {
            "norm_placement": config.model.norm_placement,
            "rule": config.model.rule,
            "rule_arguments": {},
            "scales": [{"skip": 1.0, "gain": 1.0, "branch": 1.0, "lr_multiplier": 1.0}],
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 170,
            "mlp": "swiglu",
            "vocab_size": VOCABULARY,
        },
        "budget": {
            "parameters": parameters,
            "parameters_non_embedding": parameters - 65_536,
            "flops_per_token_forward": flops / 3,
            "flops_per_token_training": flops,
            "head_share": 6 * 65_536 / flops,
            "training_flops": flops * tokens,
        },
        "data": {
            "corpus": config.data.corpus,
            "corpus_sha256": "0123456789abcdef" * 4,
            "tokenizer": config.data.tokenizer,
            "tokenizer_sha256": "fedcba9876543210" * 4,
            "train_tokens": TRAIN_TOKENS,
            "epochs": tokens / TRAIN_TOKENS,
            "tokens_per_parameter": tokens / parameters,
            "tokens_per_parameter_non_embedding": tokens / (parameters - 65_536),
            "attend_across_documents": False,
            "context_length": 128,
        },
        "optimization": {
            "lr": config.train.lr,
            "schedule": "cosine",
            "warmup_steps": 30,
            "share_clipped": 0.12,
            "steps_non_finite": 0,
        },
        "visits": None
        if outcome == "diverged"
        else {
            "state_rms": [1 + 0.2 * visit * (1 + noise.random() / 10) for visit in range(visits + 1)],
            "relative_update": [0.5 / (1 + visit) for visit in range(visits)],
            "update_cosine": [0.1 + 0.05 * visit for visit in range(visits - 1)],
        },
        "groups": {
            "share_clipped": 0.12,
            "groups": {
                role: {
                    "grad_norm": 0.4,
                    "update_rms": 1e-4,
                    "weight_rms": 0.06,
                    "distance_from_init": 0.5 + 0.1 * index,
                }
                for index, role in enumerate(("embedding", "query_key", "value_output", "mlp", "norm"))
            },
        },
        "wall_seconds": 10.0 + 5 * rounds,
        "tokens_per_second": 20_000 / rounds,
        "peak_memory_bytes": 700_000_000,
        "resumed": 0,
        "precision": "float32",
        "num_threads": 1,
        "device": "cpu",
    }
    for table, values in changes.items():
        if isinstance(values, Mapping):
            result[table] = {**result[table], **values}
        else:
            result[table] = values
    result["budget"]["training_flops"] = result["budget"]["flops_per_token_training"] * result["tokens"]
    return result


def give_two_budgets(directory: Path) -> None:
    """Turn a study that names the budgets 300 and 600 into one that ran both, each run standing for two."""
    path = directory / "study.json"
    document = json.loads(path.read_text())
    document["cells"] = [{**cell, "budget": budget} for cell in document["cells"] for budget in (300, 600)]
    path.write_text(json.dumps(document))
    for run in list((directory / "runs").iterdir()):
        cell, seed = run.name.rsplit("-", 1)
        shutil.copytree(run, run.with_name(f"{cell}-t300-{seed}"))
        run.rename(run.with_name(f"{cell}-t600-{seed}"))


def _write_tuning(directory: Path, cells: Sequence[Mapping[str, Any]], losses: Mapping[Cell, float]) -> None:
    tuned = []
    for cell in cells:
        best = cell["lr"]
        points = [
            {
                "lr": best * factor,
                "seed": seed,
                "loss_nats": losses[cell["arm"], cell["rounds"]] + 0.05 * math.log2(factor) ** 2 + 0.01 * (seed - 100),
                "outcome": "finished",
            }
            for factor in (0.25, 0.5, 1.0, 2.0)
            for seed in (100, 101)
        ]
        tuned.append(
            {
                "arm": cell["arm"],
                "rounds": cell["rounds"],
                "best_lr": best,
                "at_edge": False,
                "points": points,
            }
        )
    atomic_write_text(
        directory / "results" / "tuning.json", json.dumps({"kind": "tuning", "schema_version": 1, "cells": tuned})
    )

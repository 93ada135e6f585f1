"""Writes a sweep's directory as training would leave it, with outcomes that the test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from depthscale.runs.config_file import validate
from depthscale.runs.results import result_path
from depthscale.runs.sweep_config import SweepFile
from depthscale.studies.sweep_runs import PlannedRun, planned_runs, read_sweep_document

FLOOR = 3.0
STEPS, EVAL_EVERY = 100, 20

#: A run's end: outcome, the step at which it passed below the floor, final loss.
Ending = tuple[str, int | None, float | None]


def sweep_tables(**changes: Any) -> dict[str, Any]:
    """A sweep file's tables; ``changes`` go into ``[sweep]``."""
    return {
        "plan": {"blocks": 2, "rounds": 3},
        "model": {"hidden_size": 16, "num_attention_heads": 2, "norm_placement": "post"},
        "data": {"tokenizer": "bytes", "context_length": 32},
        "train": {"steps": STEPS, "batch_rows": 2, "lr": 1e-3, "warmup_steps": 10, "eval_every": EVAL_EVERY},
        "sweep": {
            "name": "synthetic",
            "exponents": [0.3, 0.4, 0.5, 0.6],
            "rates": [1e-3, 3e-3],
            "main_rate": 1e-3,
            "seeds": [1, 2, 3, 4, 5],
            "extra_seeds": [6, 7, 8],
            "arms": [{"name": "pre", "model": {"norm_placement": "pre"}}],
            **changes,
        },
    }


def make_file(**changes: Any) -> SweepFile:
    return validate(SweepFile, sweep_tables(**changes), "synthetic sweep")


def write_runs(directory: Path, file: SweepFile, ending: Callable[[PlannedRun], Ending | None]) -> int:
    """End every planned run that has no result yet; None leaves one missing. Returns how many were written."""
    written = 0
    for run in planned_runs(file, read_sweep_document(directory)["later_additions"]):
        home = directory / "runs" / run.name
        ended = ending(run)
        if ended is None or result_path(home, "training").exists():
            continue
        write_run(home, run, *ended)
        written += 1
    return written


def write_run(home: Path, run: PlannedRun, outcome: str, passed_at: int | None, loss: float | None) -> None:
    steps = run.config.train.steps
    losses = {
        step: FLOOR + (-0.1 if passed_at is not None and step >= passed_at else 0.1)
        for step in range(EVAL_EVERY, steps + 1, EVAL_EVERY)
    }
    records = [{"step": s, "kind": "evaluation", "split": "tuning", "loss_nats": loss} for s, loss in losses.items()]
    path = result_path(home, "training")
    path.parent.mkdir(parents=True)
    (home / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    final = {"loss_nats": loss, "bits_per_byte": loss, "num_tokens": 1000}
    plan = run.config.plan.build()
    path.write_text(
        json.dumps(
            {
                "kind": "training",
                "schema_version": 1,
                "outcome": outcome,
                "seed": run.seed,
                "data_seed": run.seed,
                "step": steps,
                "steps_planned": steps,
                "final": {"tuning": final, "report": final},
                "unigram_loss_nats": {"tuning": FLOOR, "report": FLOOR},
                "plan": {"num_blocks": plan.num_blocks, "num_rounds": 3, "unrolled_depth": plan.unrolled_depth},
                "model": {"scales": [{"skip": 1.0, "gain": 1.0}]},
                "data": {"corpus": "c", "corpus_sha256": "a" * 64, "tokenizer": "bytes", "tokenizer_sha256": "b" * 64},
                "optimization": {"lr": run.lr},
                "wall_seconds": 10.0,
            }
        )
    )


def additions(directory: Path) -> list[dict[str, Any]]:
    return list(json.loads((directory / "study.json").read_text())["later_additions"])

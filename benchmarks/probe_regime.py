"""Thresholds of the regime verdict from some teachers, and its confusion table on others.

    python benchmarks/probe_regime.py calibrate                       thresholds, from seeds 0-2 at width 32
    python benchmarks/probe_regime.py confuse --output docs/results/probing/regime.json

Both print one line a teacher; ``confuse`` goes on where it stopped (``--ledger``). Calibration sees width 32, 128
blocks, seeds 0-2, rho 0 and 1; the table is on seeds 100 and up, other widths and depths, and rho between.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from depthscale.probing.evidence import Evidence, gather, verdict_of
from depthscale.probing.geometry import geometry
from depthscale.probing.intervention_run import prepare
from depthscale.probing.ledger import Ledger
from depthscale.probing.regime import Thresholds, Verdict, third_points
from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import finite, versions
from depthscale.toy.config import TeacherConfig
from depthscale.toy.regime_teachers import Stopping, teacher_passage, teacher_subject

#: Single layers removed, and choices for each number of dropped ones.
REMOVED, DRAWS = 8, 3
CALIBRATION_SEEDS = (0, 1, 2)
KINDS: dict[str, tuple[float, Stopping, str]] = {
    "independent": (0.0, "none", "averaging"),
    "tied": (1.0, "none", "smooth"),
    "stopping, independent": (0.0, "uniform", "compositional"),
    "stopping, tied": (1.0, "uniform", "compositional"),
}
MIXED = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)


def judged(config: TeacherConfig, seed: int, stopping: Stopping) -> tuple[Evidence, Verdict]:
    """One teacher beside its nulls."""
    subject = teacher_subject(config, seed, stopping)
    passage = teacher_passage(subject, config, seed, stopping)
    texts = prepare(subject, [passage])
    found = gather(subject, texts, Ledger(None, {}), DRAWS, seed, REMOVED)
    at_random = geometry([texts[0].clean.states], [passage.counted], at_random=True, seed=seed)
    other = teacher_subject(config, seed + 10_000, stopping)
    untrained = gather(other, prepare(other, [passage]), Ledger(None, {}), DRAWS, seed, 2)
    return found, verdict_of(found, at_random, untrained)


def figures(found: Evidence) -> dict[str, float]:
    """What thresholds are made of."""
    return {
        "update_cosine": found.geometry.update_cosine.value,
        "drop_exponent": found.drops.exponent.value,
        "rescaling_ratio": found.drops.relative_ratio.value,
        "later_change": found.later_change.value,
        "stop_spread": found.geometry.stop_spread.value - found.geometry.even_spread,
    }


def calibrate() -> None:
    """Print the figures of every calibration teacher and the thresholds that follow."""
    by_truth: dict[str, list[dict[str, float]]] = {}
    for name, (rho, stopping, truth) in KINDS.items():
        for seed in CALIBRATION_SEEDS:
            found, _ = judged(TeacherConfig(rho=rho), seed, stopping)
            row = figures(found)
            by_truth.setdefault(truth, []).append(row)
            say(f"{name}, seed {seed}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    say(json.dumps(dataclasses.asdict(third_points(by_truth)), indent=1))


def confuse(ledger_path: Path | None, output: Path | None) -> None:
    """Judge teachers that calibration has not seen and count verdicts by truth."""
    cases: list[tuple[str, str, TeacherConfig, int, Stopping]] = []
    for width in (16, 32, 64):
        for blocks in (32, 128):
            config = TeacherConfig(rho=0, width=width, hidden=4 * width, blocks=blocks)
            for seed in (100, 101, 102):
                for name, (rho, stopping, truth) in KINDS.items():
                    cases.append((name, truth, config.model_copy(update={"rho": rho}), seed, stopping))
                if blocks == 128:
                    for rho in MIXED:
                        cases.append((f"rho {rho}", "mixed", config.model_copy(update={"rho": rho}), seed, "none"))
    ledger = Ledger(ledger_path, {"thresholds": dataclasses.asdict(Thresholds()), "draws": DRAWS, "removed": REMOVED})
    rows: list[dict[str, Any]] = []
    for name, truth, config, seed, stopping in cases:
        key = f"{name}/{config.width}/{config.blocks}/{seed}"
        if key not in ledger:
            began = time.perf_counter()
            found, verdict = judged(config, seed, stopping)
            ledger.add(
                key,
                {
                    "kind": name,
                    "truth": truth,
                    "width": config.width,
                    "blocks": config.blocks,
                    "seed": seed,
                    "rho": config.rho,
                    "verdict": verdict.regime or "does not decide",
                    "sentence": verdict.sentence,
                    "figures": figures(found),
                    "seconds": time.perf_counter() - began,
                },
            )
        rows.append(ledger[key])
        say(f"{key}: {rows[-1]['verdict']} ({truth})")
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        cell = table.setdefault(row["truth"] if row["truth"] != "mixed" else row["kind"], {})
        cell[row["verdict"]] = cell.get(row["verdict"], 0) + 1
    say(json.dumps(table, indent=1))
    if output is not None:
        record = {
            "thresholds": dataclasses.asdict(Thresholds()),
            "table": table,
            "teachers": rows,
            "versions": versions(),
        }
        atomic_write_text(output, json.dumps(finite(record), indent=1) + "\n")


def say(line: str) -> None:
    """One line on standard output."""
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("calibrate", "confuse"))
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "calibrate":
        calibrate()
    else:
        confuse(arguments.ledger, arguments.output)


if __name__ == "__main__":
    sys.exit(main())

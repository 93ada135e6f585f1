"""The price of a study before it starts: runs, hours of a core or a GPU, and the smallest difference it could show."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.results import read_result
from depthscale.runs.study_config import StudyFile
from depthscale.studies.budgets import planned_run
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT, smallest_detectable_difference
from depthscale.studies.run_cost import run_cost
from depthscale.studies.step_timing import StepTimes
from depthscale.studies.study_runs import read_study

#: Standard deviation of a paired difference in nats, where no earlier study is given: the median over the seven
#: differences of the demonstration, docs/results/demo/comparison.json.
DEFAULT_SD_NATS = 0.0553
DEFAULT_SD_SOURCE = "the median over the differences of docs/results/demo (5 seeds, width 64, 0.5 M tokens)"


def price(
    file: StudyFile,
    vocab_size: int,
    *,
    tuned: bool,
    probe: StepTimes | None = None,
    earlier: Path | None = None,
) -> dict[str, Any]:
    """What a study would cost and could show.

    Seconds come from ``probe`` (short runs of the study's own cells), else from the FLOPs per second of ``earlier``.
    The spread of paired differences comes from ``earlier``, else from the demonstration.

    Args:
        file: with matched steps computed.
        vocab_size: rows of the embedding.
        tuned: whether rates are chosen first.
        probe: measured seconds per step.
        earlier: directory of an earlier study.

    Returns:
        ``cells`` (arm, rounds, budget, steps, tokens, parameters, tokens per parameter, FLOPs, runs, hours each and
        all), ``runs``, ``hours`` without extensions of a grid and ``hours_at_most`` with all of them, each of one
        ``unit`` (core or GPU), ``processes_per_unit``, ``seconds_from``, ``smallest_detectable_nats``,
        ``sd_nats``, ``sd_from``.

    Raises:
        ResultError: neither a probe nor an earlier study is given, or the earlier one holds nothing to go by.
    """
    study, seeds = file.study, len(file.study.seeds)
    rate, share = 0.0, 1.0
    if probe is not None:
        device, share = probe.device, probe.share
    elif earlier is not None:
        rate, device = _flops_per_second(earlier)
    else:
        raise ResultError("a price needs seconds: measure them by a probe, or give an earlier study with --from-study")
    tuning = study.tuning if tuned else None
    tuning_budget = tuning and (tuning.budget or max(study.budgets, default=None))
    cells = []
    for cell in study.cells():
        config = file.cell_config(cell, study.seeds[0])
        cost = run_cost(config, vocab_size)
        # A branch trains its decay alone; tuning runs are whole.
        branch = planned_run(file, cell, study.seeds[0]).branch is not None
        part = 1 - config.train.stable_until / config.train.steps if branch else 1.0
        spent = cost.training_flops + cost.evaluation_flops
        if probe is not None:
            step = probe.seconds_per_step[CellKey(cell.arm, cell.rounds)]
            seconds = step * cost.steps * spent / cost.training_flops + probe.overhead_seconds
        else:
            seconds = spent / rate
        tuning_runs = tuning_extra = 0
        if tuning and cell.budget == tuning_budget:
            values = len(tuning.grid) + len(tuning.weight_decays)
            tuning_runs = len(tuning.seeds) * values
            tuning_extra = len(tuning.seeds) * tuning.max_extensions * (2 if tuning.weight_decays else 1)
        cells.append(
            {
                **cell._asdict(),
                "steps": cost.steps,
                "tokens": cost.tokens,
                "parameters": cost.parameters,
                "tokens_per_parameter": cost.tokens / cost.parameters,
                "training_flops": cost.training_flops,
                "runs": seeds,
                "branch": branch,
                "tuning_runs": tuning_runs,
                "tuning_runs_at_most": tuning_runs + tuning_extra,
                "seconds_per_run": seconds,
                "hours": share * seconds * (part * seeds + tuning_runs) / 3600,
                "hours_at_most": share * seconds * (part * seeds + tuning_runs + tuning_extra) / 3600,
            }
        )
    sd, sd_source = (DEFAULT_SD_NATS, DEFAULT_SD_SOURCE) if earlier is None else _spread(earlier)
    return {
        "name": study.name,
        "cells": cells,
        "num_seeds": seeds,
        "runs": sum(cell["runs"] for cell in cells),
        "tuning_runs": sum(cell["tuning_runs"] for cell in cells),
        "tuning_runs_at_most": sum(cell["tuning_runs_at_most"] for cell in cells),
        "hours": sum(cell["hours"] for cell in cells),
        "hours_at_most": sum(cell["hours_at_most"] for cell in cells),
        "unit": "core" if device == "cpu" else "GPU",
        "processes_per_unit": 1 / share,
        "seconds_from": (
            f"a probe of every cell, {probe.workers} at a time"
            if probe
            else f"FLOPs per second of the runs of {earlier}"
        ),
        "sd_nats": sd,
        "sd_from": sd_source,
        "confidence": study.confidence,
        "smallest_detectable_nats": smallest_detectable_difference(sd, seeds, study.confidence),
        "enough_pairs": seeds >= MIN_PAIRS_FOR_VERDICT,
    }


def _flops_per_second(earlier: Path) -> tuple[float, str]:
    """The median over an earlier study's runs, and their device.

    Raises:
        ResultError: no run took time, or they ran on several devices, whose speeds have no middle.
    """
    timed = [
        run.training
        for run in read_study(earlier).runs()
        if run.training["wall_seconds"] and run.training["budget"]["training_flops"]
    ]
    if not timed:
        raise ResultError(f"no run of {earlier} took time and FLOPs to go by; price the study by a probe")
    devices = {training.get("device") or "cpu" for training in timed}
    if len(devices) > 1:
        raise ResultError(
            f"the runs of {earlier} were made on {', '.join(sorted(devices))}; price the study by a probe"
        )
    rates = [training["budget"]["training_flops"] / training["wall_seconds"] for training in timed]
    return statistics.median(rates), devices.pop()


def _spread(earlier: Path) -> tuple[float, str]:
    """Median standard deviation of the paired differences of an earlier study, from its comparison."""
    pairs: list[Mapping[str, Any]] = read_result(earlier, "comparison")["pairs"]
    spreads = [statistics.stdev(p["differences"]) for p in pairs if len(p["differences"]) > 1]
    if not spreads:
        raise ResultError(f"{earlier} holds no difference over two seeds or more, so no spread to go by")
    number = len(spreads)
    return statistics.median(spreads), f"the median over the {number} differences of {earlier}"

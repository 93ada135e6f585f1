"""The tables of ``depthscale train --dry-run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from depthscale.runs.config import RunConfig
    from depthscale.runs.study_config import StudyFile
    from depthscale.training.dry_run import DryRun

GIB = 2**30
#: Share of a device's memory that a run may count on; the rest is for what the count leaves out.
USABLE_MEMORY = 0.9


def print_dry_run(
    console: Console,
    runs: Sequence[tuple[str, RunConfig]],
    study: StudyFile | None,
    num_processes: int,
    num_seeds: int = 1,
) -> None:
    """Cost of every run, beside the paper where it has such a run, and what the study could resolve.

    Args:
        num_seeds: how often each run would be made.
    """
    from depthscale.budget.hardware import ACCELERATORS, ASSUMED_UTILIZATION, device_hours
    from depthscale.studies.recipe_paper import SOURCE, paper_size
    from depthscale.studies.recipe_resolution import resolution_sentences
    from depthscale.studies.words import count
    from depthscale.training.dry_run import dry_run

    costs = [(name, config, dry_run(config, num_processes)) for name, config in runs]
    config, cost = costs[0][1], costs[0][2]
    size = paper_size(config.plan.blocks, config.model.hidden_size)
    train = config.train
    processes = "1 process" if num_processes == 1 else f"{num_processes} processes"
    console.print(
        f"{cost.parameters:,} parameters ({cost.parameters_non_embedding:,} without embedding), on the meta device."
        f" {train.steps:,} steps of {train.rows_per_step(num_processes)} rows x {config.data.context_length} tokens ="
        f" {cost.tokens:,} tokens, {cost.tokens / cost.parameters:.0f} per parameter."
        f" {train.batch_rows} rows x {train.accumulation_over(num_processes)} accumulated x {processes}.",
        soft_wrap=True,
    )
    console.print(_table(costs, None if size is None else size.losses))
    devices = ", ".join(f"{device.name}: {device.peak_flops / 1e12:.0f} TFLOP/s" for device in ACCELERATORS.values())
    flops = sum(cost.training_flops for _, _, cost in costs)
    notes = [
        f"GPU hours: FLOPs of training over {ASSUMED_UTILIZATION:.0%} of the bfloat16 peak ({devices}); the share is"
        f" assumed, not measured. FLOPs count attention at full T^2. All rows, {count(num_seeds, 'seed')} each: "
        + ", ".join(f"{num_seeds * device_hours(flops, d):.4g} on {name}" for name, d in ACCELERATORS.items())
        + "; divide by the GPUs for hours on the clock.",
        "GiB: weights, gradients and moments in float32 and activations at their peak, of one process. Allocator,"
        f" compiler and communication come on top: a run fits if this is below {USABLE_MEMORY:.0%} of the memory.",
    ]
    if size is not None:
        notes.append(
            f"Paper: {SOURCE}; GPT-2 {size.name}, nominally {size.nominal_parameters / 1e6:.0f} M parameters. What its"
            " runs took in GPU hours and memory is not known here."
        )
        if study is not None:
            notes += resolution_sentences(size, len(study.study.seeds), study.study.confidence)
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)


def _table(costs: Sequence[tuple[str, RunConfig, DryRun]], losses: Mapping[tuple[str, int], float] | None) -> object:
    from rich.table import Table

    from depthscale.budget.hardware import ACCELERATORS, device_hours
    from depthscale.studies.recipe_paper import paper_arm

    table = Table()
    table.add_column("arm", no_wrap=True)
    names_by_peak: dict[float, list[str]] = {}
    for name, device in ACCELERATORS.items():
        names_by_peak.setdefault(device.peak_flops, []).append(name)
    devices = {", ".join(names): ACCELERATORS[names[0]] for names in names_by_peak.values()}
    headings = ["R", "FLOP per token", "FLOP", "GiB", "fits", *(f"hours {names}" for names in devices)]
    for heading in headings + (["paper's loss"] if losses else []):
        table.add_column(heading, justify="right", no_wrap=heading == "fits")
    for name, config, cost in costs:
        fits = [key for key, device in ACCELERATORS.items() if cost.memory_bytes < USABLE_MEMORY * device.memory_bytes]
        cells = [
            str(config.plan.rounds),
            f"{cost.flops_per_token:.3g}",
            f"{cost.training_flops:.3g}",
            f"{cost.memory_bytes / GIB:.3g}",
            ", ".join(fits) or "none",
            *(f"{device_hours(cost.training_flops, device):.3g}" for device in devices.values()),
        ]
        if losses:
            arm = paper_arm(config.model.model_dump())
            loss = None if arm is None else losses.get((arm, config.plan.rounds))
            cells.append("" if loss is None else f"{loss:.4f}")
        table.add_row(name, *cells)
    return table

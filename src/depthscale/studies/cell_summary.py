"""One cell of a comparison in numbers: losses, outcomes and what its runs cost."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from depthscale.studies.study_runs import Study, StudyCell, StudyRun


def cell_summary(study: Study, cell: StudyCell) -> dict[str, Any]:
    """One entry of a comparison's ``cells``: losses over all runs and over those that trained, and the cost."""
    runs = list(cell.runs.values())
    bits_per_nat = _bits_per_nat(study.runs())
    bits = [_bits(run, bits_per_nat) for run in runs]
    known_bits = [value for value in bits if value is not None]
    tokens = planned_tokens(cell)
    budget = runs[0].training["budget"] if runs else {}
    epochs = epochs_seen(cell)
    return {
        **cell.names,
        "added_later": cell.added_later,
        "lr": cell.lr,
        "lr_source": cell.lr_source,
        "outcomes": outcomes(study, [cell]),
        "runs": [
            {
                "seed": run.seed,
                "added_later": cell.added_later or run.seed in study.seeds_added_later,
                "outcome": run.outcome,
                "loss_nats": run.loss_nats,
                "imputed": run.imputed,
                "bits_per_byte": value,
                "wall_seconds": run.training["wall_seconds"],
                "directory": run.directory,
            }
            for run, value in zip(runs, bits, strict=True)
        ],
        "loss_nats": _mean_and_spread([run.loss_nats for run in runs]),
        "loss_nats_trained": _mean_and_spread([run.loss_nats for run in runs if run.outcome == "finished"]),
        "bits_per_byte": statistics.fmean(known_bits) if known_bits else None,
        "tokens": tokens,
        "tokens_per_parameter": _over(tokens, budget.get("parameters")),
        "tokens_per_parameter_non_embedding": _over(tokens, budget.get("parameters_non_embedding")),
        "epochs": epochs,
        "data_seen": data_seen(epochs),
        "parameters": budget.get("parameters"),
        "training_flops": training_flops(cell),
        "flops_ratio_to_r1": flops_ratio(cell, study.cell(cell.arm, 1, cell.budget)),
        "head_share": budget.get("head_share"),
        "wall_seconds": wall_seconds(cell),
        "peak_memory_bytes": max(
            (run.training["peak_memory_bytes"] for run in runs if run.training["peak_memory_bytes"]), default=None
        ),
    }


def epochs_seen(cell: StudyCell) -> float | None:
    """How often one whole planned run of the cell sees its training text."""
    run = next(iter(cell.runs.values()), None)
    if run is None:
        return None
    return _over(planned_tokens(cell), _over(run.training["tokens"], run.training["data"]["epochs"]))


def data_seen(epochs: float | None) -> str | None:
    """Whether text repeats: ``fresh`` up to one epoch, ``repeated`` beyond; None where epochs are not known.

    Example:
        >>> data_seen(1.0), data_seen(1.01)
        ('fresh', 'repeated')
    """
    if epochs is None:
        return None
    return "fresh" if epochs <= 1 else "repeated"


def data_regime(study: Study) -> list[str]:
    """At how many tokens per parameter a study's baseline was trained, and whether its data repeat."""
    sentences = []
    for cell in study.cells:
        if cell.arm != study.file.study.baseline or not cell.runs:
            continue
        summary = cell_summary(study, cell)
        ratio, epochs = summary["tokens_per_parameter"], summary["epochs"]
        if ratio is not None and epochs is not None:
            sentences.append(
                f"{cell.label}: {ratio:.1f} tokens per parameter, {epochs:.2f} epochs of {summary['data_seen']} data."
            )
    return sentences


def _mean_and_spread(losses: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(losses) if losses else None,
        "sd": statistics.stdev(losses) if len(losses) > 1 else None,
        "n": len(losses),
    }


def _bits_per_nat(runs: Iterable[StudyRun]) -> float | None:
    """Bits per byte of one nat per token: one number for a study, whose runs share text and tokenizer."""
    return next((run.bits_per_byte / run.loss_nats for run in runs if run.bits_per_byte), None)


def _bits(run: StudyRun, bits_per_nat: float | None) -> float | None:
    if run.bits_per_byte is not None or bits_per_nat is None:
        return run.bits_per_byte
    return run.loss_nats * bits_per_nat


def planned_tokens(cell: StudyCell) -> int | None:
    """Training tokens of one whole run of the cell."""
    return max((run.planned_tokens for run in cell.runs.values()), default=0) or None


def training_flops(cell: StudyCell) -> float | None:
    """Training FLOPs of one whole planned run, so that one that diverged early does not look cheap."""
    tokens = planned_tokens(cell)
    if tokens is None:
        return None
    # What was spent, as rounds drawn at random are not the plan's.
    made = next(run.training for run in cell.runs.values() if run.training["tokens"])
    return float(made["budget"]["training_flops"]) * tokens / int(made["tokens"])


def wall_seconds(cell: StudyCell) -> float | None:
    """Mean seconds of training of the cell's runs."""
    return statistics.fmean(run.training["wall_seconds"] for run in cell.runs.values()) if cell.runs else None


def flops_ratio(cell: StudyCell, reference: StudyCell | None) -> float | None:
    """Training FLOPs of a run of ``cell`` over those of a run of ``reference``."""
    return _over(training_flops(cell), training_flops(reference) if reference else None)


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def outcomes(study: Study, cells: Sequence[StudyCell]) -> dict[str, int]:
    """How many of the planned runs of ``cells`` ended how; those without a result are missing."""
    counted = Counter(run.outcome for cell in cells for run in cell.runs.values())
    planned = len(study.file.study.seeds) * len(cells)
    return {
        **{name: counted[name] for name in ("finished", "stuck", "diverged")},
        "missing": planned - counted.total(),
    }

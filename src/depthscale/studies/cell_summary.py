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
    epoch_tokens = _over(runs[0].training["tokens"], runs[0].training["data"]["epochs"]) if runs else None
    return {
        "arm": cell.arm,
        "rounds": cell.rounds,
        "lr": cell.lr,
        "lr_source": cell.lr_source,
        "outcomes": outcomes(study, [cell]),
        "runs": [
            {
                "seed": run.seed,
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
        "epochs": _over(tokens, epoch_tokens),
        "parameters": budget.get("parameters"),
        "training_flops": _training_flops(cell),
        "flops_ratio_to_r1": flops_ratio(cell, study.cell(cell.arm, 1)),
        "head_share": budget.get("head_share"),
        "wall_seconds": statistics.fmean(run.training["wall_seconds"] for run in runs) if runs else None,
        "peak_memory_bytes": max(
            (run.training["peak_memory_bytes"] for run in runs if run.training["peak_memory_bytes"]), default=None
        ),
    }


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


def _training_flops(cell: StudyCell) -> float | None:
    """FLOPs of one whole planned run, so that one that diverged early does not look cheap."""
    tokens = planned_tokens(cell)
    if tokens is None:
        return None
    per_token: float = next(iter(cell.runs.values())).training["budget"]["flops_per_token_training"]
    return per_token * tokens


def flops_ratio(cell: StudyCell, reference: StudyCell | None) -> float | None:
    """Training FLOPs of a run of ``cell`` over those of a run of ``reference``."""
    return _over(_training_flops(cell), _training_flops(reference) if reference else None)


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

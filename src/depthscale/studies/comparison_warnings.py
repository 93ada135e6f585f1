"""What a reader of a comparison must know before trusting it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from depthscale.runs.layout import RUNS, run_name
from depthscale.studies.named_comparisons import broken_terms
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT
from depthscale.studies.study_runs import Study
from depthscale.studies.unequal_tokens import unequal_tokens
from depthscale.studies.words import addition_words, count


def comparison_warnings(
    study: Study,
    pairs: Sequence[dict[str, Any]],
    named: Sequence[dict[str, Any]] = (),
    again: Sequence[dict[str, Any]] = (),
) -> list[str]:
    """Sentences, most serious first; empty when there is nothing to warn of."""
    return [
        *_later_additions(study),
        *_empty_cells(study),
        *_missing_runs(study),
        *_untrained_runs(study),
        *_unequal_tokens(study),
        *broken_terms(named),
        *_few_pairs([*pairs, *named, *again]),
        *_edge_rates(study),
        *_other_rates(study),
        *_untuned_rates(study),
        *_mixed_versions(study),
        *_unplanned_runs(study),
    ]


def _missing_runs(study: Study) -> Iterable[str]:
    seeds = study.file.study.seeds
    missing = [
        run_name(cell.arm, cell.rounds, seed, cell.budget)
        for cell in study.cells
        for seed in seeds
        if seed not in cell.runs
    ]
    if missing:
        shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        total = len(study.cells) * len(seeds)
        yield f"{len(missing)} of {total} planned runs have no result and are left out: {shown}."


def _later_additions(study: Study) -> Iterable[str]:
    for addition in study.additions:
        yield (
            f"Added on {addition['time'][:10]}, when {count(addition['results_before'], 'run')} had a result:"
            f" {addition_words(addition)}."
        )


def _empty_cells(study: Study) -> Iterable[str]:
    empty = [cell.label for cell in study.cells if not cell.runs]
    if empty:
        yield f"No run of a cell has a result, so nothing is said of it: {', '.join(empty)}."


def _unequal_tokens(study: Study) -> Iterable[str]:
    tokens = {
        cell.key: {run.planned_tokens for run in cell.runs.values() if run.planned_tokens} for cell in study.cells
    }
    return unequal_tokens(study.file, lambda cell: tokens.get(cell, ()))


def _few_pairs(pairs: Sequence[dict[str, Any]]) -> Iterable[str]:
    few = [pair for pair in pairs if len(pair["differences"]) < MIN_PAIRS_FOR_VERDICT]
    if few:
        smallest = min(len(pair["differences"]) for pair in few)
        yield (
            f"Fewer than {MIN_PAIRS_FOR_VERDICT} pairs, as few as {smallest}, stand behind {len(few)} of"
            f" {count(len(pairs), 'difference')}: not decided, whatever the interval."
        )


def _edge_rates(study: Study) -> Iterable[str]:
    rates = study.file.study.rates
    for what, at_edge in (
        ("learning rate", [rate for rate in rates if rate.at_edge]),
        ("weight decay", [rate for rate in rates if rate.weight_decay_at_edge]),
    ):
        if at_edge:
            cells = ", ".join(f"{rate.arm} at R = {rate.rounds}" for rate in at_edge)
            yield f"The best {what} lies at the edge of its grid, so a better one may exist: {cells}."


def _untuned_rates(study: Study) -> Iterable[str]:
    untuned = [cell.label for cell in study.cells if cell.lr_source == "base configuration"]
    if untuned and len({cell.arm for cell in study.cells}) > 1:
        yield (
            "No learning rate was chosen for these, so that the base run's may suit some of them better than others:"
            f" {', '.join(untuned)}."
        )


def _other_rates(study: Study) -> Iterable[str]:
    for cell in study.cells:
        used = {run.training["optimization"]["lr"] for run in cell.runs.values()}
        if used - {cell.lr}:
            rates = ", ".join(f"{rate:g}" for rate in sorted(used))
            yield f"{cell.label} ran at rate {rates}; the study planned {cell.lr:g}."


def _untrained_runs(study: Study) -> Iterable[str]:
    for outcome, meaning in (
        ("stuck", "never fell below the unigram floor and count at their loss"),
        ("diverged", "count at the larger of their last finite loss and the uniform loss ln V"),
    ):
        named = [
            f"{found} of {len(cell.runs)} of {cell.label}"
            for cell in study.cells
            if (found := sum(run.outcome == outcome for run in cell.runs.values()))
        ]
        if named:
            yield f"Runs that {outcome if outcome == 'diverged' else 'got stuck'} {meaning}: {'; '.join(named)}."


def _mixed_versions(study: Study) -> Iterable[str]:
    found: dict[str, set[str]] = {}
    for run in study.runs():
        for package, version in run.training["versions"].items():
            found.setdefault(package, set()).add(str(version))
        if device := run.training.get("device"):
            found.setdefault("device", set()).add(device)
    mixed = [f"{package} {' and '.join(sorted(seen))}" for package, seen in found.items() if len(seen) > 1]
    if mixed:
        yield f"The runs were made with different versions or devices: {'; '.join(mixed)}."


def _unplanned_runs(study: Study) -> Iterable[str]:
    seeds = study.file.study.seeds
    planned = {run_name(cell.arm, cell.rounds, seed, cell.budget) for cell in study.cells for seed in seeds}
    folder = study.directory / RUNS
    extra = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in planned)
    if extra:
        shown = ", ".join(extra[:6])
        yield f"Left out, as the study's plan does not name them: {count(len(extra), 'run')} in runs/ ({shown})."

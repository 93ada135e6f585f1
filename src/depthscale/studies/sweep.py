"""An exponent sweep from its file to its runs: the grid first, then what its first results ask for.

``study.json`` holds the grid and the rules by which runs are added, before the first run. Additions are written into
it, with their time and what they rest on, before their first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from depthscale.errors import ResultError
from depthscale.runs.layout import RUNS, STUDY_FILE
from depthscale.runs.presets import packaged_presets, read_preset_or_file
from depthscale.runs.study_json import require_no_run, timestamp, write_study_json
from depthscale.runs.sweep_config import SweepFile
from depthscale.studies.engine import Failure, run_jobs
from depthscale.studies.study import training_job
from depthscale.studies.sweep_runs import (
    LONGER,
    NEAR_EDGE,
    SWEEP_KIND,
    SWEEP_SCHEMA_VERSION,
    THRESHOLD,
    EndedRun,
    planned_runs,
    read_runs,
    read_sweep_document,
)

STOPPING_RULE = (
    "Every run of the grid is made once, to its last step or to its divergence. Then, at the main rate, the extra seeds"
    " are given once to the exponents near the edge: those where some but not all runs train, and both sides of a jump"
    " from none to all, nearest to one half first, at most max_near. The longer check is made once at the same"
    " exponents, or at the first, middle and last one where none is near an edge. Nothing else is added after results"
    " are seen but a threshold arm, which is marked."
)


def sweep_presets() -> dict[str, Path]:
    """The sweep files that come with the package, by name."""
    return packaged_presets("depthscale.studies", "sweep_presets")


def read_sweep_file(source: str, overrides: Sequence[str]) -> SweepFile:
    """A sweep file by preset name or path, with ``--set`` overrides laid over it.

    Raises:
        ConfigError: unknown preset (the nearest is suggested), missing file, or a fault in it.
    """
    return read_preset_or_file(SweepFile, source, sweep_presets(), overrides)


def write_sweep(directory: Path, file: SweepFile) -> dict[str, Any]:
    """Write ``study.json``, or check that the directory's own says the same.

    Raises:
        ResultError: the directory belongs to another study or sweep.
    """
    config = file.model_dump(mode="json", exclude_none=True)
    if (directory / STUDY_FILE).exists():
        document = read_sweep_document(directory)
        if document["config"] != config:
            raise ResultError(f"{directory} holds another sweep; choose another --out, or give that sweep's settings")
        return document
    require_no_run(directory)
    document = {
        "kind": SWEEP_KIND,
        "schema_version": SWEEP_SCHEMA_VERSION,
        "name": file.sweep.name,
        "created": timestamp(),
        "stopping_rule": STOPPING_RULE,
        "config": config,
        "later_additions": [],
    }
    write_study_json(directory, document)
    return document


def run_sweep(
    directory: Path, file: SweepFile, workers: int, console: Console, threshold: tuple[float, str] | None = None
) -> list[Failure]:
    """Make every run that is not made yet, stage by stage; return the jobs that failed.

    Args:
        threshold: exponent that was measured elsewhere, and by what: an arm of its own.

    Raises:
        ConfigError: the threshold is no exponent that the rule takes.
        ResultError: the directory belongs to another sweep, or has another threshold.
        RunInterruptedError: SIGINT or SIGTERM came; finished runs are kept.
    """
    document = write_sweep(directory, file)
    if threshold is not None:
        _check_threshold(directory, file, document, *threshold)
    failed = _make(directory, file, document, workers, console, "grid")
    if failed:
        # Additions rest on the whole grid; what failed is mended first.
        return failed
    sweep = file.sweep
    # The grid's own runs do not change, so that a sweep that ended between two additions finds the same exponents.
    near = near_edge(*_main_counts(directory, file), most=sweep.max_near)
    if near and sweep.extra_seeds and not _has(document, NEAR_EDGE):
        _add(directory, document, {"reason": NEAR_EDGE, "exponents": near, "seeds": list(sweep.extra_seeds)})
    if sweep.longer is not None and not _has(document, LONGER):
        checked = near or _spread(sweep.exponents)
        _add(directory, document, {"reason": LONGER, "exponents": checked, "step_factor": sweep.longer})
    if threshold is not None and not _has(document, THRESHOLD):
        p, source = threshold
        _add(directory, document, {"reason": THRESHOLD, "p": p, "source": source})
    return _make(directory, file, document, workers, console, "additions")


def near_edge(exponents: Sequence[float], trained: Sequence[int], runs: Sequence[int], most: int) -> list[float]:
    """The exponents to which seeds are added: mixed outcomes, and both sides of a jump, nearest to one half first.

    Example:
        >>> near_edge([0.3, 0.4, 0.5, 0.6], [0, 1, 4, 5], [5, 5, 5, 5], most=3)
        [0.4, 0.5]
        >>> near_edge([0.3, 0.4, 0.5, 0.6], [0, 0, 5, 5], [5, 5, 5, 5], most=3)
        [0.4, 0.5]
        >>> near_edge([0.3, 0.4], [0, 0], [5, 5], most=3)
        []
    """
    shares = [k / n for k, n in zip(trained, runs, strict=True)]
    chosen = {index for index, share in enumerate(shares) if 0 < share < 1}
    for index in range(len(shares) - 1):
        if abs(shares[index + 1] - shares[index]) == 1:
            chosen |= {index, index + 1}
    nearest = sorted(chosen, key=lambda index: (abs(shares[index] - 0.5), index))[:most]
    return [exponents[index] for index in sorted(nearest)]


def _main_counts(directory: Path, file: SweepFile) -> tuple[list[float], list[int], list[int]]:
    """Trained runs and all runs of each exponent at the main rate, over the first seeds."""
    ended = read_runs(directory, planned_runs(file, []))
    exponents = list(file.sweep.exponents)
    at: dict[float, list[EndedRun]] = {p: [] for p in exponents}
    for run in ended:
        if run.planned.p is not None and run.planned.lr == file.sweep.main_rate:
            at[run.planned.p].append(run)
    return exponents, [sum(run.trained for run in at[p]) for p in exponents], [len(at[p]) for p in exponents]


def _spread(exponents: Sequence[float]) -> list[float]:
    return sorted({exponents[0], exponents[len(exponents) // 2], exponents[-1]})


def _make(
    directory: Path, file: SweepFile, document: Mapping[str, Any], workers: int, console: Console, stage: str
) -> list[Failure]:
    runs = planned_runs(file, document["later_additions"])
    jobs = [training_job(directory / RUNS / run.name, run.config) for run in runs]
    return run_jobs(jobs, workers, console, f"{file.sweep.name}: {stage}")


def _check_threshold(directory: Path, file: SweepFile, document: Mapping[str, Any], p: float, source: str) -> None:
    """Before the first run: what is added after the last one must be a run, and the only one of its kind."""
    planned_runs(file, [{"reason": THRESHOLD, "p": p, "source": source}])
    earlier = next((a for a in document["later_additions"] if a["reason"] == THRESHOLD), None)
    if earlier is not None and earlier["p"] != p:
        raise ResultError(
            f"{directory} already has a threshold arm at p = {earlier['p']:g}, from {earlier['source']};"
            " a second one needs another --out"
        )


def _has(document: Mapping[str, Any], reason: str) -> bool:
    return any(addition["reason"] == reason for addition in document["later_additions"])


def _add(directory: Path, document: dict[str, Any], addition: Mapping[str, Any]) -> None:
    document["later_additions"].append({**addition, "added": timestamp()})
    write_study_json(directory, document)

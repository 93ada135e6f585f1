"""An alignment study from its file to its cells: each cell a job in its own process, and none made twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from depthscale.errors import ResultError
from depthscale.runs.alignment_config import AlignmentRun, AlignmentStudyFile
from depthscale.runs.config_file import keep_settings
from depthscale.runs.layout import CONFIG_FILE, run_name
from depthscale.runs.one_text import require_one_text
from depthscale.runs.presets import packaged_presets, read_preset_or_file
from depthscale.runs.results import read_result, result_path
from depthscale.studies.engine import Failure, Job, run_jobs

CELL_KIND = "alignment_cell"
CELLS = "cells"


def alignment_presets() -> dict[str, Path]:
    """The alignment studies that come with the package, by name."""
    return packaged_presets("depthscale.studies", "alignment_presets")


def read_alignment_study(source: str, overrides: list[str]) -> AlignmentStudyFile:
    """A study file by preset name or path, with ``--set`` overrides laid over it.

    Raises:
        ConfigError: unknown preset (the nearest is suggested), missing file, or a fault in it.
    """
    return read_preset_or_file(AlignmentStudyFile, source, alignment_presets(), overrides)


def run_alignment_study(directory: Path, file: AlignmentStudyFile, workers: int, console: Console) -> list[Failure]:
    """Measure every cell that is not measured yet; return the jobs that failed.

    Raises:
        ResultError: the directory belongs to another study, or a cell to other settings.
    """
    keep_settings(directory / CONFIG_FILE, file)
    return run_jobs([cell_job(directory, cell) for cell in file.cells()], workers, console, file.study.name)


def cell_job(study_directory: Path, cell: AlignmentRun) -> Job:
    """The job ``align`` of one cell, with its configuration written into its directory.

    Raises:
        ResultError: the directory holds a cell of other settings.
    """
    directory = cell_directory(study_directory, cell)
    path = directory / CONFIG_FILE
    keep_settings(path, cell)
    arguments = ("align", str(path), "--out", str(directory))
    return Job(arguments, directory, result=CELL_KIND, steps=cell.measure.steps[-1] + 20, cost_per_step=_cost(cell))


def cell_directory(study_directory: Path, cell: AlignmentRun) -> Path:
    """Where a cell lies."""
    return study_directory / CELLS / run_name(cell.arm, cell.plan.rounds, cell.train.seed)


def read_cells(directory: Path, file: AlignmentStudyFile) -> list[dict[str, Any]]:
    """The results of all cells that are measured, in the study's order.

    Raises:
        ResultError: none is, one is damaged, or cells read different text.
    """
    cells = {
        where: read_result(where, CELL_KIND)
        for cell in file.cells()
        if result_path(where := cell_directory(directory, cell), CELL_KIND).exists()
    }
    if not cells:
        raise ResultError(f"no cell under {directory / CELLS} is measured yet; run the study first")
    data = ((where, cell["data"]) for where, cell in cells.items())
    require_one_text(f"the cells of {directory}", data, "delete it and run the study again")
    return list(cells.values())


def _cost(cell: AlignmentRun) -> int:
    return cell.plan.build().unrolled_depth * max(1, cell.model.hidden_size // 32) ** 2

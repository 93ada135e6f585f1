"""What a report reads of a study: the comparison, and of each run its result and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscale.runs.layout import METRICS_FILE, RUNS
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result, result_path
from depthscale.studies.comparison import write_comparison
from depthscale.studies.study_runs import read_study_document, read_tuning


@dataclass(frozen=True)
class RunData:
    """One run of a cell: seed, training result, and all metrics records."""

    seed: int
    training: dict[str, Any]
    metrics: list[dict[str, Any]]


@dataclass(frozen=True)
class CellData:
    """One cell: its entry in the comparison, and those of its runs whose files are at hand."""

    summary: dict[str, Any]
    runs: tuple[RunData, ...]

    @property
    def arm(self) -> str:
        """Name of the arm."""
        return str(self.summary["arm"])

    @property
    def rounds(self) -> int:
        """R."""
        return int(self.summary["rounds"])

    @property
    def budget(self) -> int | None:
        """Steps of the base run at this budget; None where the study has one."""
        budget = self.summary.get("budget")
        return None if budget is None else int(budget)

    @property
    def label(self) -> str:
        """Such as "deeploop, R = 4"."""
        return f"{self.arm}, R = {self.rounds}" + (f", {self.budget:,} steps" if self.budget else "")


@dataclass(frozen=True)
class StudyData:
    """Everything a report of a study is made of.

    Attributes:
        study: ``study.json``.
        comparison: ``results/comparison.json``.
        tuning: ``results/tuning.json``, or None.
        cells: in the study's order.
    """

    study: dict[str, Any]
    comparison: dict[str, Any]
    tuning: dict[str, Any] | None
    cells: tuple[CellData, ...]

    @property
    def arms(self) -> list[str]:
        """Arms, the baseline first, which gets the neutral color; then in the study's order."""
        names = [self.comparison["baseline"], *(cell.arm for cell in self.cells)]
        return list(dict.fromkeys(names))

    @property
    def rounds(self) -> list[int]:
        """Every R of the study, ascending."""
        return sorted({cell.rounds for cell in self.cells})

    @property
    def by_rounds(self) -> list[CellData]:
        """The cells as tables list them: by R, the baseline first, each budget."""
        return sorted(self.cells, key=lambda c: (c.rounds, self.arms.index(c.arm), c.budget or 0))

    @property
    def longest(self) -> list[CellData]:
        """The cells at the largest budget, which are all where there is one."""
        budget = max((cell.budget for cell in self.cells if cell.budget), default=None)
        return [cell for cell in self.cells if cell.budget == budget]

    def at(self, rounds: int) -> list[CellData]:
        """The cells at that R and the largest budget, the baseline first."""
        return sorted((cell for cell in self.longest if cell.rounds == rounds), key=lambda c: self.arms.index(c.arm))


def read_study_data(study_directory: Path) -> StudyData:
    """Read a study for its report.

    The comparison is made anew from the runs where they are at hand. Without them (a study that was published
    without its run directories) the written comparison is all there is, and the report leaves out what only runs show.

    Raises:
        ResultError: the study, its comparison or a run is missing or damaged.
    """
    study = read_study_document(study_directory)
    if (study_directory / RUNS).is_dir():
        write_comparison(study_directory)
    comparison = read_result(study_directory, "comparison")
    cells = tuple(
        CellData(
            entry,
            tuple(
                read_run_data(study_directory / run["directory"])
                for run in entry["runs"]
                if result_path(study_directory / run["directory"], "training").exists()
            ),
        )
        for entry in comparison["cells"]
    )
    return StudyData(study, comparison, read_tuning(study_directory), cells)


def read_run_data(run_directory: Path) -> RunData:
    """A run's training result and metrics.

    Raises:
        ResultError: either is missing or damaged.
    """
    training = read_result(run_directory, "training")
    return RunData(training["seed"], training, read_metrics(run_directory / METRICS_FILE))

"""Several budgets of one cell: under ``wsd`` the shorter ones are decay branches of the longest run."""

from __future__ import annotations

from depthscale.runs.comparison_config import CellKey
from depthscale.runs.config import BranchConfig, RunConfig
from depthscale.runs.layout import run_name
from depthscale.runs.study_config import StudyFile


def planned_run(file: StudyFile, cell: CellKey, seed: int) -> RunConfig:
    """One run of a study: its configuration, with the points that others branch off, or the run it branches off."""
    config = file.cell_config(cell, seed)
    if cell.budget is None or config.train.schedule != "wsd":
        return config
    longest = max(file.study.budgets)
    if cell.budget < longest:
        trunk = run_name(cell.arm, cell.rounds, seed, longest)
        return config.model_copy(update={"branch": BranchConfig(run=f"../{trunk}")})
    shorter = [
        file.cell_config(cell._replace(budget=budget), seed) for budget in file.study.budgets if budget < longest
    ]
    points = tuple(sorted({other.train.stable_until for other in shorter}))
    return config.model_copy(update={"train": config.train.model_copy(update={"branch_at": points})})


def longest_first(file: StudyFile, cells: list[CellKey]) -> list[list[CellKey]]:
    """Cells in the order in which they can run: those that others branch off first."""
    longest = max(file.study.budgets, default=None)
    groups = [[c for c in cells if c.budget == longest], [c for c in cells if c.budget != longest]]
    return [group for group in groups if group]

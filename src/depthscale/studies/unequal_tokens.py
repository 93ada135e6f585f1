"""Arms that would train on another number of tokens than the rest, though nothing in the study gives them one."""

from __future__ import annotations

from collections.abc import Callable, Collection

from depthscale.runs.comparison_config import CellKey
from depthscale.runs.study_config import StudyFile
from depthscale.studies.run_cost import training_tokens
from depthscale.studies.words import cell_label


def unequal_tokens(file: StudyFile, tokens_of: Callable[[CellKey], Collection[int]]) -> list[str]:
    """A sentence for every budget at which cells differ in tokens.

    An arm that matches another's spending or has steps of its own is no surprise; any other is.

    Args:
        tokens_of: training tokens of a cell's runs, each number once.
    """
    base = file.train.get("steps")
    sentences = []
    for budget in file.study.budgets or (None,):
        found: dict[int, list[str]] = {}
        for cell in file.study.cells():
            arm = file.study.arm(cell.arm)
            if cell.budget == budget and not arm.match and arm.train.get("steps", base) == base:
                for tokens in tokens_of(cell):
                    found.setdefault(tokens, []).append(cell_label(cell))
        if len(found) > 1:
            listed = "; ".join(f"{tokens:,}: {', '.join(cells)}" for tokens, cells in sorted(found.items()))
            sentences.append(f"The runs were planned with different numbers of tokens ({listed}).")
    return sentences


def unequal_planned_tokens(file: StudyFile) -> list[str]:
    """:func:`unequal_tokens` of a study that has not run yet, from its configuration."""

    def planned(cell: CellKey) -> tuple[int]:
        return (training_tokens(file.cell_config(cell, file.study.seeds[0])),)

    return unequal_tokens(file, planned)

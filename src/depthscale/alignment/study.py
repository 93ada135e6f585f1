"""The result of an alignment study: every condition, what grows how, what it depends on, and p*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.results import DEFINITIONS
from depthscale.alignment.study_conditions import condition_record, points_by_condition
from depthscale.alignment.study_exponent import exponent_record
from depthscale.alignment.study_factors import factor_table
from depthscale.alignment.study_growth import effective_exponent, growth_records
from depthscale.alignment.study_reference import earlier_figures
from depthscale.runs.alignment_config import AlignmentStudyFile

Cell = Mapping[str, Any]

_DESCRIPTION = (
    "rule", "rule_arguments", "exponent", "norm_placement", "plan_kind", "num_blocks", "hidden_size",
    "num_attention_heads", "mlp", "optimizer", "tokens", "lr",
)  # fmt: skip


def study_result(
    file: AlignmentStudyFile, cells: Sequence[Cell], edge: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Put the cells of a study together, as plain data for a result file.

    Args:
        file: of the study.
        cells: results of those that are measured.
        edge: interval of the exponent at which half of the runs train, from a sweep of the same shape.

    Raises:
        AlignmentError: no cell has a measurement.
    """
    study = file.study
    arms = _arms(file, cells)
    points = points_by_condition(cells)
    if not points:
        raise AlignmentError(f"no cell of study '{study.name}' was measured; the first: {cells[0]['outcome']}")
    conditions = [condition_record(key, found, study.level) for key, found in points.items()]
    table_rows = [c for c in conditions if c["arm"] in {arm["name"] for arm in arms}]
    return {
        "name": study.name,
        "base": study.base,
        "level": study.level,
        "definitions": DEFINITIONS,
        "split": cells[0]["split"],
        "num_probes": next(iter(points.values()))[0].alignment.num_probes,
        "tokens_per_training_step": cells[0]["tokens_per_training_step"],
        "unigram_loss_nats": cells[0]["unigram_loss_nats"],
        "arms": arms,
        "conditions": conditions,
        "one_steps": growth_records(cells, points, conditions, study.level),
        "factors": factor_table(arms, study.base, table_rows, study.table_rounds),
        "self_consistent": exponent_record(arms, study.base, conditions, edge, study.level)
        if any(arm["name"] == study.base for arm in arms)
        else None,
        "earlier": earlier_figures(),
        "notes": _notes(file, cells),
        "data": cells[0]["data"],
        "config": file.model_dump(mode="json", exclude_none=True),
    }


def _arms(file: AlignmentStudyFile, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Descriptions of the arms that have a cell, in the study's order."""
    found = []
    for arm in file.study.arms:
        own = [cell for cell in cells if cell["arm"] == arm.name]
        if own:
            found.append(
                {
                    "name": arm.name,
                    "varies": arm.varies,
                    **{key: own[0][key] for key in _DESCRIPTION},
                    "effective_exponent": effective_exponent(own),
                    "rounds": sorted({cell["rounds"] for cell in own}),
                    "seeds": sorted({cell["seed"] for cell in own}),
                    "steps": sorted({point["step"] for cell in own for point in cell["points"]}),
                }
            )
    return found


def _notes(file: AlignmentStudyFile, cells: Sequence[Cell]) -> list[str]:
    """What a reader must know of cells that are missing or ended early."""
    measured = {(cell["arm"], cell["rounds"], cell["seed"]) for cell in cells}
    notes = [
        f"{cell.arm}, R = {cell.plan.rounds}, seed {cell.train.seed} is not measured"
        for cell in file.cells()
        if (cell.arm, cell.plan.rounds, cell.train.seed) not in measured
    ]
    return notes + [
        f"{cell['arm']}, R = {cell['rounds']}, seed {cell['seed']}: {cell['outcome']}"
        for cell in cells
        if cell["outcome"] != "finished"
    ]

"""What kappa depends on: one thing changed at a time, before and after training, at one number of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("kappa", "kappa_common", "map_part", "gradient_part", "relative_map_max", "relative_gradient_max")


def factor_table(
    arms: Sequence[Mapping[str, Any]], base: str, conditions: Sequence[Mapping[str, Any]], rounds: int
) -> dict[str, Any]:
    """The base arm and every arm that varies one thing, at the first step and at the last that all of them reached.

    Args:
        arms: descriptions; ``varies`` says what an arm changes.
        base: name of the arm that is varied.
        conditions: what was measured.
        rounds: R of the table.
    """
    varied = sorted((arm for arm in arms if arm["varies"] is not None), key=lambda arm: arm["name"] != base)
    batch_rows = min(c["batch_rows"] for c in conditions)
    measured = {
        (c["arm"], c["step"], c["gradient_of"]): (c, at)
        for c in conditions
        if c["batch_rows"] == batch_rows
        for at in c["by_rounds"]
        if at["rounds"] == rounds
    }
    steps = [{step for name, step, of in measured if name == arm["name"] and of == "loss"} for arm in varied]
    common = sorted(set.intersection(*steps)) if steps else []
    if not common:
        return {"rounds": rounds, "batch_rows": batch_rows, "steps": [], "rows": []}
    shown = list(dict.fromkeys([common[0], common[-1]]))
    return {
        "rounds": rounds,
        "batch_rows": batch_rows,
        "steps": shown,
        "rows": [
            {
                "arm": arm["name"],
                "varies": arm["varies"],
                "stages": [_stage(measured, arm["name"], step) for step in shown],
            }
            for arm in varied
        ],
    }


def _stage(measured: Mapping[tuple[str, int, str], Any], arm: str, step: int) -> dict[str, Any]:
    condition, at = measured[arm, step, "loss"]
    of_update = measured.get((arm, step, "adam"))
    return {
        "step": step,
        "num_seeds": at["num_seeds"],
        "loss_nats": at["loss_nats"],
        **{name: at[name] for name in COLUMNS},
        "kappa_of_update": of_update[1]["kappa"] if of_update else None,
        "gamma": condition["growth"]["kappa"],
    }

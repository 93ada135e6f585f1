"""Everything that is said of two arms under one law, as plain data for a result file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import DataError
from depthscale.laws.comparison import Comparison, compare
from depthscale.laws.interval_rows import interval_row
from depthscale.laws.joint import arm_parameter
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.nested_tests import NestedTest
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations
from depthscale.laws.profiling import profile
from depthscale.laws.quantities import Quantity
from depthscale.laws.spending import closed_budget

Array = NDArray[np.float64]

#: Budgets at which savings are given when none are named: the ends of what both arms spent, and their middle.
_NUM_COMPUTES = 3


def compare_rows(
    law: AdditiveLaw,
    reference: Observations,
    new: Observations,
    names: tuple[str, str],
    computes: Sequence[float],
    objective: Objective,
    num_replicates: int,
    seed: int,
    level: float,
) -> dict[str, Any]:
    """Fit both arms, and say which parameters differ and what that is worth.

    Args:
        law: the form of both.
        reference: rows of the arm that compute is saved against.
        new: rows of the other.
        names: of the two arms, reference first.
        computes: training FLOPs at which savings are given; none takes three within what both arms spent.
        objective: what is minimized.
        num_replicates: of the bootstrap.
        seed: of the draws.
        level: of every interval.

    Returns:
        Plain data: law, arms, rows, joint (fit), differences, tests, savings, crossings, no_frontier, bootstrap.

    Raises:
        FitError: the fit of an arm is not certified.
        DataError: the law has no frontier on which compute could be compared.
    """
    both = join_columns(reference, new)
    budget = closed_budget(law, both)
    if budget is None:
        raise DataError(
            f"law '{law.name}' says nothing of compute; compare laws that read sizes and tokens, each once, such as"
            " width_depth_tokens or chinchilla"
        )
    spent = [budget.spent(part.columns) for part in (reference, new)]
    shared = (max(float(part.min()) for part in spent), min(float(part.max()) for part in spent))
    if not computes:
        if shared[0] > shared[1]:
            raise DataError("the two arms have no budget in common; name one with --flops")
        computes = np.geomspace(*shared, _NUM_COMPUTES).tolist()
    found = compare(law, reference, new, budget, computes, objective, num_replicates, seed, level, names)
    return {
        "law": law.to_dict(),
        "arms": list(names),
        "level": level,
        "rows": {name: part.num_rows for name, part in zip(names, (reference, new), strict=True)},
        "shared_budgets": list(shared),
        "joint": found.joint.to_dict(),
        "parameters": _parameters(law, found),
        "differences": _differences(law, found, level),
        "bootstrap": {
            "kind": found.draws.kind,
            "num_replicates": num_replicates,
            "num_discarded": found.draws.num_discarded,
            "num_units": found.draws.num_units,
            "seed": seed,
        },
        "tests": [_test_data(test) for test in found.tests],
        "savings": [{**asdict(saving), "is_identified": saving.is_identified} for saving in found.savings],
        "crossings": list(found.crossings),
        "no_frontier": found.no_frontier,
    }


def join_columns(reference: Observations, new: Observations) -> Observations:
    """The rows of both, of which only the columns that both have are looked at."""
    shared = [name for name in reference.columns if name in new.columns]
    columns = {name: np.concatenate([reference.columns[name], new.columns[name]]) for name in shared}
    return Observations(columns, np.concatenate([reference.loss, new.loss]))


def difference_quantity(name: str) -> Quantity:
    """New minus reference of one parameter of the joint law."""
    first, second = arm_parameter(name, "reference"), arm_parameter(name, "new")
    return Quantity(f"{name}: new - reference", lambda p: p[second] - p[first])


def _parameters(law: AdditiveLaw, found: Comparison) -> list[dict[str, Any]]:
    values = found.joint.parameters
    return [
        {"name": name, **{arm: values[arm_parameter(name, arm)] for arm in ("reference", "new")}}
        for name in law.parameters
    ]


def _differences(law: AdditiveLaw, found: Comparison, level: float) -> list[dict[str, Any]]:
    """New minus reference of the floor and the exponents.

    A coefficient counts in units that its exponents set, so that a difference of coefficients means nothing.
    """
    names = [*([law.floor] if law.floor else []), *law.exponents]
    quantities = [difference_quantity(name) for name in names]
    usable = found.draws if found.draws.is_sound else None
    profiles = profile(found.joint, quantities, level)
    return [
        {**interval_row(quantity, interval, usable, level), "name": name}
        for name, quantity, interval in zip(names, quantities, profiles, strict=True)
    ]


def _test_data(test: NestedTest) -> dict[str, Any]:
    return {**asdict(test), "shared": list(test.shared), "is_rejected": test.is_rejected, "verdict": test.verdict}

"""Two laws compared: which parameter differs, what is saved at equal loss, where the curves cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from depthscale.errors import ConfigError
from depthscale.laws.certificate import FitError
from depthscale.laws.fitting import DEFAULT_OBJECTIVE, Fit, search
from depthscale.laws.frontier import Budget, compute_for_loss, optimal_loss
from depthscale.laws.identification import identifiability
from depthscale.laws.joint import ARM_COLUMN, JointLaw, arm_parameter, join_arms, of_arm
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.nested_tests import NestedTest, hypotheses, nested_test
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations
from depthscale.laws.profiling import profile
from depthscale.laws.quantities import Quantity
from depthscale.laws.resampling import Bootstrap, bootstrap

Array = NDArray[np.float64]
Values = NDArray[Any]

_ROUNDING = 1e-9  # of the loss: frontiers that lie closer than that are one


@dataclass(frozen=True)
class Saving:
    """Compute saved at equal loss, 1 - C_new / C_ref at the reference's frontier.

    Attributes:
        compute: the reference's budget.
        estimate: share saved; negative where the new arm costs more, nan where there is none.
        interval: from the profile likelihood of C_new / C_ref; -inf where the cost has no upper end, None where there
            is no estimate.
        bootstrap_interval: percentiles; None where the profile is open ("not identified") or more than a tenth of the
            replicates is not certified.
        bootstrap_kind: ``rows``, ``clusters``, or ``paired clusters`` where groups have rows in both arms.
        reason: why there is no estimate: an arm has no frontier, or the new one never reaches the loss.
    """

    compute: float
    estimate: float
    interval: tuple[float, float] | None
    bootstrap_interval: tuple[float, float] | None
    bootstrap_kind: str
    reason: str | None = None

    @property
    def is_identified(self) -> bool:
        """The profile closes on both sides, and the bootstrap is sound."""
        return self.bootstrap_interval is not None


@dataclass(frozen=True)
class Comparison:
    """Two arms under one form.

    Attributes:
        joint: the fit with no parameter shared.
        tests: of the floor, each exponent, each term's coefficient with its exponents, all exponents, everything.
        savings: one per budget.
        crossings: budgets at which the two frontiers meet, ascending.
        draws: the replicates behind the savings' intervals.
        no_frontier: which exponents are not positive, so that there are neither savings nor crossings; None else.
    """

    joint: Fit
    tests: tuple[NestedTest, ...]
    savings: tuple[Saving, ...]
    crossings: tuple[float, ...]
    draws: Bootstrap
    no_frontier: str | None = None


def compare(
    law: AdditiveLaw,
    reference: Observations,
    new: Observations,
    budget: Budget,
    computes: Sequence[float],
    objective: Objective = DEFAULT_OBJECTIVE,
    num_replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    names: tuple[str, str] = ("reference", "new"),
) -> Comparison:
    """Fit both arms jointly, test what differs and value it in compute.

    Args:
        law: the form of both.
        reference: rows of the arm that compute is saved against; groups pair it with ``new``.
        new: rows of the other arm.
        budget: what compute is and which columns it is spread over.
        computes: budgets at which savings are given; inside the data's range they are interpolation.
        objective: what is minimized.
        num_replicates: of the paired bootstrap.
        seed: of the draws.
        level: of the intervals.
        names: of the arms in words, reference first; parameters are named by their part all the same.

    Raises:
        FitError: the fit in which nothing is shared is not certified.
    """
    joint_law = JointLaw(law, ("reference", "new"))
    joint = _joint_fit(joint_law, (reference, new), objective, names)
    tests = tuple(nested_test(joint, joint_law, shared) for shared in hypotheses(law))
    draws = bootstrap(joint, num_replicates, seed, clusters=reference.groups is not None)
    reason = _no_frontier(joint, joint_law, budget, names)
    if reason is not None:
        kind = _bootstrap_kind(joint.data)
        nothing = tuple(Saving(compute, float("nan"), None, None, kind, reason) for compute in computes)
        return Comparison(joint, tests, nothing, (), draws, reason)
    never = f"{names[1]} never reaches the loss of {names[0]}"
    savings = tuple(_saving(joint, joint_law, budget, compute, draws, level, never) for compute in computes)
    meetings = crossings(joint, joint_law, budget, min(computes), max(computes))
    return Comparison(joint, tests, savings, meetings, draws)


def cost_quantity(law: JointLaw, budget: Budget, compute: float) -> Quantity:
    """C_new / C_ref, where C_new reaches the loss that the first arm reaches at ``compute``.

    Profiled on its log, since near the new arm's floor it grows without end.
    """
    reference, new = law.arms[:2]

    def function(p: Mapping[str, Values]) -> Values:
        loss = optimal_loss(law.base, of_arm(p, law.base, reference), budget, compute)
        result: Values = compute_for_loss(law.base, of_arm(p, law.base, new), budget, loss) / compute
        return result

    return Quantity(f"cost_at_{compute:.3g}", function, positive=True)


def compute_saved(
    law: AdditiveLaw,
    reference: Mapping[str, float],
    new: Mapping[str, float],
    budget: Budget,
    compute: float,
) -> float:
    """1 - C_new / C_ref from two sets of coefficients, at the loss the reference reaches with ``compute``.

    Example:
        >>> from depthscale.laws.frontier import smelt_flops
        >>> from depthscale.laws.library import SMELT, SMELT_PRINTED
        >>> printed = SMELT_PRINTED["baseline"], SMELT_PRINTED["smelt"]
        >>> round(compute_saved(SMELT, *printed, smelt_flops(active_share=0.03), 1e21), 3)
        0.141
    """
    loss = optimal_loss(law, _arrays(reference), budget, compute)
    return float(1 - compute_for_loss(law, _arrays(new), budget, loss) / compute)


def crossings(joint: Fit, law: JointLaw, budget: Budget, lowest: float, highest: float) -> tuple[float, ...]:
    """Budgets between ``lowest`` and ``highest`` (widened a hundredfold each way) where the frontiers meet."""
    if not 0 < lowest <= highest:
        raise ConfigError(f"budgets came as {lowest!r} to {highest!r}; expected positive and in order")
    parameters = _arrays(joint.parameters)

    def gap(log_compute: float) -> float:
        """Of the losses, relative."""
        first, second = (
            optimal_loss(law.base, of_arm(parameters, law.base, arm), budget, float(np.exp(log_compute)))
            for arm in law.arms[:2]
        )
        return float(first / second - 1)

    grid = np.linspace(np.log(lowest / 100), np.log(highest * 100), 200)
    values = np.array([gap(x) for x in grid])
    # Arms that are the same to rounding would cross wherever rounding does.
    apart = np.abs(values) > _ROUNDING
    grid, values = grid[apart], values[apart]
    signs = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    return tuple(float(np.exp(brentq(gap, grid[i], grid[i + 1]))) for i in signs)


def _joint_fit(law: JointLaw, arms: tuple[Observations, ...], objective: Objective, names: Sequence[str]) -> Fit:
    """Nothing shared; refused with the arm and the parameters that the rows do not determine."""
    for name, part in zip(names, arms, strict=True):
        if part.num_weighted_rows <= len(law.base.parameters):
            raise FitError(
                f"arm '{name}' has {part.num_weighted_rows} rows for {len(law.base.parameters)} parameters of law"
                f" '{law.base.name}'; expected more rows than parameters"
            )
    joint = search(law, join_arms(arms, names), objective)
    if joint.certificate.holds:
        return joint
    for name, part in zip(names, arms, strict=True):
        alone = search(law.base, part, objective)
        if not alone.certificate.holds:
            reasons = "; ".join((*alone.certificate.reasons, *identifiability(alone).warnings))
            raise FitError(f"the fit of arm '{name}' is not certified: {reasons}")
    raise FitError(f"the fit of both arms at once is not certified: {'; '.join(joint.certificate.reasons)}")


def _no_frontier(joint: Fit, law: JointLaw, budget: Budget, names: Sequence[str]) -> str | None:
    """Arms whose loss does not fall in a column that compute is spread over, by exponent."""
    found = []
    for name, arm in zip(names, law.arms, strict=True):
        for column in budget.powers:
            exponent = law.base.factor_of(column)[1].exponent
            value = joint.parameters[arm_parameter(exponent, arm)]
            if value <= 0:
                found.append(f"exponent {exponent} of {name} is {value:.3g}, not positive")
    return f"no frontier: {', '.join(found)}" if found else None


def _saving(
    joint: Fit, law: JointLaw, budget: Budget, compute: float, draws: Bootstrap, level: float, never: str
) -> Saving:
    kind = _bootstrap_kind(joint.data)
    quantity = cost_quantity(law, budget, compute)
    cost = float(quantity.function(_arrays(joint.parameters)))
    if not np.isfinite(cost):
        return Saving(compute, float("nan"), None, None, kind, never)
    profiled = profile(joint, [quantity], level)[0]
    interval = (1 - profiled.upper, 1 - profiled.lower)
    # A resample whose new arm never reaches the loss costs without end.
    costs = np.nan_to_num(draws.values(quantity), nan=np.inf, posinf=np.inf)
    low, high = np.quantile(costs, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    closed = profiled.is_closed and np.isfinite(high) and draws.is_sound
    return Saving(compute, 1 - cost, interval, (float(1 - high), float(1 - low)) if closed else None, kind)


def _bootstrap_kind(rows: Observations) -> str:
    if rows.groups is None:
        return "rows"
    arms = rows.column(ARM_COLUMN)
    paired = len(np.unique(np.stack([rows.group_codes, arms]), axis=1).T) > rows.num_groups
    return "paired clusters" if paired else "clusters"


def _arrays(parameters: Mapping[str, float]) -> dict[str, Values]:
    return {name: np.asarray(value) for name, value in parameters.items()}

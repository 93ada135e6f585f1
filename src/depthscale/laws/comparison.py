"""Two laws compared: which parameter differs, what is saved at equal loss, where the curves cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import f as f_distribution

from depthscale.errors import ConfigError
from depthscale.laws.fitting import DEFAULT_OBJECTIVE, Fit, fit
from depthscale.laws.frontier import Budget, compute_for_loss, optimal_loss
from depthscale.laws.joint import ARM_COLUMN, JointLaw, join_arms, of_arm
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations
from depthscale.laws.profiling import deviance, profile
from depthscale.laws.quantities import Quantity
from depthscale.laws.resampling import Bootstrap, bootstrap
from depthscale.laws.wald import group_p_value

Array = NDArray[np.float64]
Values = NDArray[Any]

_LEVEL = 0.05  # of nested tests


@dataclass(frozen=True)
class NestedTest:
    """Does sharing these parameters between the arms cost more than chance?

    Attributes:
        shared: names that are made common.
        deviance: (SS_shared / SS_free - 1) (n - P); under Huber its robust counterpart.
        degrees: constraints.
        p_value: of F(degrees, n - P) at deviance / degrees; rows count as independent.
        group_p_value: of a Wald test in which groups count (:mod:`~depthscale.laws.wald`); None without groups, or with
            too few of them for that many constraints.
    """

    shared: tuple[str, ...]
    deviance: float
    degrees: int
    p_value: float
    group_p_value: float | None

    @property
    def is_rejected(self) -> bool:
        """The arms differ in these parameters at 5 %, by groups where rows have them."""
        return (self.p_value if self.group_p_value is None else self.group_p_value) < _LEVEL


@dataclass(frozen=True)
class Saving:
    """Compute saved at equal loss, 1 - C_new / C_ref at the reference's frontier.

    Attributes:
        compute: the reference's budget.
        estimate: share saved; negative where the new arm costs more, nan where it never reaches the loss.
        interval: from the profile likelihood of C_new / C_ref; -inf where the cost has no upper end, None where the
            new arm never reaches the loss.
        bootstrap_interval: percentiles; None where the profile is open ("not identified") or more than a tenth of the
            replicates is not certified.
        bootstrap_kind: ``rows``, ``clusters``, or ``paired clusters`` where groups have rows in both arms.
    """

    compute: float
    estimate: float
    interval: tuple[float, float] | None
    bootstrap_interval: tuple[float, float] | None
    bootstrap_kind: str

    @property
    def is_identified(self) -> bool:
        """The profile closes on both sides, and the bootstrap is sound."""
        return self.bootstrap_interval is not None


@dataclass(frozen=True)
class Comparison:
    """Two arms under one form.

    Attributes:
        joint: the fit with no parameter shared.
        tests: one per parameter, then all exponents, then everything.
        savings: one per budget.
        crossings: budgets at which the two frontiers meet, ascending.
        draws: the replicates behind the savings' intervals.
    """

    joint: Fit
    tests: tuple[NestedTest, ...]
    savings: tuple[Saving, ...]
    crossings: tuple[float, ...]
    draws: Bootstrap


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

    Raises:
        FitError: a fit is not certified.
    """
    joint_law = JointLaw(law, ("reference", "new"))
    joint = fit(joint_law, join_arms([reference, new]), objective)
    sets = [(name,) for name in law.parameters] + [law.exponents, law.parameters]
    tests = tuple(nested_test(joint, joint_law, names) for names in dict.fromkeys(sets))
    draws = bootstrap(joint, num_replicates, seed, clusters=reference.groups is not None)
    savings = tuple(_saving(joint, joint_law, budget, compute, draws, level) for compute in computes)
    meetings = crossings(joint, joint_law, budget, min(computes), max(computes))
    return Comparison(joint, tests, savings, meetings, draws)


def nested_test(joint: Fit, law: JointLaw, shared: Sequence[str]) -> NestedTest:
    """Refit with ``shared`` common to all arms and compare."""
    pairs = law.pairs(shared)
    restricted = fit(law, joint.data, joint.objective, shared=pairs)
    rise = float(deviance(joint, restricted.total))
    degrees = len(pairs)
    spare = max(joint.data.num_weighted_rows - joint.num_free, 1)
    alone = float(f_distribution.sf(rise / degrees, degrees, spare))
    return NestedTest(tuple(shared), rise, degrees, alone, group_p_value(joint, pairs))


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
        first, second = (
            optimal_loss(law.base, of_arm(parameters, law.base, arm), budget, float(np.exp(log_compute)))
            for arm in law.arms[:2]
        )
        return float(first - second)

    grid = np.linspace(np.log(lowest / 100), np.log(highest * 100), 200)
    values = np.array([gap(x) for x in grid])
    signs = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    return tuple(float(np.exp(brentq(gap, grid[i], grid[i + 1]))) for i in signs)


def _saving(joint: Fit, law: JointLaw, budget: Budget, compute: float, draws: Bootstrap, level: float) -> Saving:
    kind = _bootstrap_kind(joint.data)
    quantity = cost_quantity(law, budget, compute)
    cost = float(quantity.function(_arrays(joint.parameters)))
    if not np.isfinite(cost):
        return Saving(compute, float("nan"), None, None, kind)
    profiled = profile(joint, [quantity], level)[0]
    interval = (1 - profiled.upper, 1 - profiled.lower)
    # A resample whose new arm never reaches the loss costs without end.
    costs = np.nan_to_num(draws.values(quantity), nan=np.inf)
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

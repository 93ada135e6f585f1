"""Compute-optimal shapes in closed form, for laws whose terms each read one column to be chosen.

Minimize sum_j c_j x_j^-a_j under a budget C = multiplier * prod_j x_j^k_j:

    a_j c_j x_j^-a_j / k_j = mu for every j,       ln mu = (const - ln C) / sum_j k_j / a_j
    L - L_0 ~ C^-1/(sum_j k_j / a_j)

Width-depth-tokens under C = 72 m^2 l D, Chinchilla under C = 6 N D, and N = 12 m^2 l alone are of this kind.

Where a law reads a column less some units that cost as the others do (x = depth - 2 under C = 72 m^2 (x + 2) D), one
equation in ln x is left, whose root is taken by Newton's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.law import AdditiveLaw, Factor, Term
from depthscale.laws.quantities import Quantity

Values = NDArray[Any]


@dataclass(frozen=True)
class Budget:
    """C = multiplier * prod_j x_j^powers[j] over the columns that may be chosen.

    Attributes:
        powers: column to its power, positive.
        multiplier: constant in front.
        held: other columns of the law, at the values they stay at (SMELT's active share, rounds).
        held_powers: power of those held columns that cost something too (rounds).
        offsets: units that a chosen column leaves out and that cost as its others do (layers a depth does not count);
            at most one column.
    """

    powers: Mapping[str, float]
    multiplier: float = 1.0
    held: Mapping[str, float] = field(default_factory=dict)
    held_powers: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.powers or not all(power > 0 for power in self.powers.values()):
            raise ConfigError(f"budget powers came as {dict(self.powers)!r}; expected a positive power per column")
        if not self.multiplier > 0:
            raise ConfigError(f"budget multiplier came as {self.multiplier!r}; expected a positive number")
        free = [name for name in self.held_powers if name not in self.held]
        if free:
            raise ConfigError(f"{', '.join(free)} came with a power but no value in 'held'; expected both")
        if len(self.offsets) > 1 or not set(self.offsets) <= set(self.powers):
            raise ConfigError(f"offsets came as {dict(self.offsets)!r}; expected at most one, of a column with a power")

    @property
    def constant(self) -> float:
        """The multiplier with the held columns' cost."""
        return float(self.multiplier * math.prod(self.held[name] ** power for name, power in self.held_powers.items()))

    def spent(self, columns: Mapping[str, Values]) -> Values:
        """What points [n] cost; a held column counts by the point's own value where it has one."""
        powers = {**self.powers, **self.held_powers}
        total: Values = np.asarray(self.multiplier)
        for name, power in powers.items():
            values = columns.get(name, np.asarray(self.held.get(name, math.nan)))
            total = total * (values + self.offsets.get(name, 0.0)) ** power
        return total

    def as_built(self, column: str, values: Values) -> Values:
        """A column with what the law leaves out of it: a depth that counts every layer."""
        return values + self.offsets.get(column, 0.0)


_NEWTON_STEPS = 20

#: Parameters of a block over width squared: 4 of attention and 8 of the MLP.
BLOCK_PARAMETERS = 12.0


def block_parameters(width: Any, depth: Any) -> Any:
    """12 m^2 l, what closed forms count, of numbers or arrays; embeddings, norms and the exact MLP are left out."""
    return BLOCK_PARAMETERS * width**2 * depth


#: Training FLOPs 6 N D with N = 12 m^2 l, embeddings and attention left out: for closed forms only.
WIDTH_DEPTH_TOKENS_FLOPS = Budget({"width": 2.0, "depth": 1.0, "tokens": 1.0}, 6 * BLOCK_PARAMETERS)
#: Parameters 12 m^2 l alone, data unlimited.
WIDTH_DEPTH_PARAMETERS = Budget({"width": 2.0, "depth": 1.0}, BLOCK_PARAMETERS)
#: Training FLOPs 6 N D.
CHINCHILLA_FLOPS = Budget({"parameters": 1.0, "tokens": 1.0}, 6.0)


def smelt_flops(active_share: float) -> Budget:
    """C = F * D at a fixed active share 1 - S. Source: SMELT, arXiv 2609.01343."""
    return Budget({"flops_per_token": 1.0, "tokens": 1.0}, 1.0, {"active_share": active_share})


def optimal_shape(
    law: AdditiveLaw, parameters: Mapping[str, Values], budget: Budget, compute: Values | float
) -> dict[str, Values]:
    """The chosen columns, as the law reads them, at the optimum of each budget.

    Everything broadcasts, complex steps pass through.

    Example:
        >>> from depthscale.laws.library import CHINCHILLA
        >>> p = dict(E=np.array(1.8), A=np.array(480.0), B=np.array(2100.0), alpha=np.array(0.35), beta=np.array(0.35))
        >>> shape = optimal_shape(CHINCHILLA, p, CHINCHILLA_FLOPS, 6e20)
        >>> bool(np.isclose(shape["parameters"] * shape["tokens"], 1e20))
        True
    """
    logs, rate = _log_slopes(law, parameters, budget)
    total = sum(budget.powers[c] / parameters[f.exponent] * logs[c] for c, (_, f) in _chosen(law, budget).items())
    log_price = (total + np.log(budget.constant) - np.log(compute)) / rate
    exponents = {column: parameters[factor.exponent] for column, (_, factor) in _chosen(law, budget).items()}
    found: dict[str, Values] = {}
    for column, offset in budget.offsets.items():
        exponent = exponents[column]
        log_value = (logs[column] - log_price) / exponent
        log_value = _with_offset(log_value, offset, exponent, rate, budget.powers[column])
        # The optimum's condition for this column: a c x^-a (1 + offset / x) / k = price.
        log_price = logs[column] - exponent * log_value + np.log(1 + offset * np.exp(-log_value))
        found[column] = np.exp(log_value)
    for column, exponent in exponents.items():
        if column not in found:
            found[column] = np.exp((logs[column] - log_price) / exponent)
    return {column: found[column] for column in exponents}


def optimal_loss(law: AdditiveLaw, parameters: Mapping[str, Values], budget: Budget, compute: Values | float) -> Values:
    """Loss on the frontier; terms outside the budget (unlimited data) count as zero."""
    shape = optimal_shape(law, parameters, budget, compute)
    floor: Values = np.asarray(parameters[law.floor] if law.floor else 0.0)
    for column, (term, factor) in _chosen(law, budget).items():
        floor = floor + _coefficient(parameters, budget, term) * shape[column] ** -parameters[factor.exponent]
    return floor


def compute_for_loss(
    law: AdditiveLaw, parameters: Mapping[str, Values], budget: Budget, loss: Values | float
) -> Values:
    """The smallest budget that reaches ``loss``: the frontier the other way round.

    Not above the floor gives nan. L - L_0 = reference * C^-exponent exactly, so one point fixes the curve.

    Raises:
        ConfigError: the budget has an offset, under which the frontier is no single power.
    """
    if budget.offsets:
        raise ConfigError(f"the budget counts {', '.join(budget.offsets)} with an offset; expected one without")
    exponent = frontier_exponent(law, parameters, budget)
    floor = parameters[law.floor] if law.floor else 0.0
    reference = optimal_loss(law, parameters, budget, 1.0) - floor
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        result: Values = np.exp((np.log(reference) - np.log(loss - floor)) / exponent)
    return result


def frontier_exponent(law: AdditiveLaw, parameters: Mapping[str, Values], budget: Budget) -> Values:
    """e in L - L_0 ~ C^-e on the frontier: 1 / sum_j (k_j / a_j).

    a c / (a + c) for two columns; alpha_m alpha_l / (2 alpha_l + alpha_m) for width and depth in N = 12 m^2 l.
    Under a budget with an offset it is the limit of large budgets.
    """
    rate: Values = 1 / _log_slopes(law, parameters, budget)[1]
    return rate


def frontier_exponent_quantity(law: AdditiveLaw, budget: Budget) -> Quantity:
    """The frontier exponent, to be profiled."""
    return Quantity("frontier_exponent", lambda p: frontier_exponent(law, p, budget))


def optimal_size_quantity(law: AdditiveLaw, budget: Budget, column: str, compute: float) -> Quantity:
    """One column's optimum at one budget, as built, to be profiled."""

    def function(p: Mapping[str, Values]) -> Values:
        return budget.as_built(column, optimal_shape(law, p, budget, compute)[column])

    return Quantity(f"optimal_{column}", function, positive=True)


def optimal_ratio_quantity(law: AdditiveLaw, budget: Budget, first: str, second: str, compute: float) -> Quantity:
    """first / second at the optimum of one budget (width over depth), to be profiled."""

    def function(p: Mapping[str, Values]) -> Values:
        shape = optimal_shape(law, p, budget, compute)
        result: Values = budget.as_built(first, shape[first]) / budget.as_built(second, shape[second])
        return result

    return Quantity(f"optimal_{first}/{second}", function, positive=True)


def _chosen(law: AdditiveLaw, budget: Budget) -> dict[str, tuple[Term, Factor]]:
    """Each budget column with its term and factor; two in one term have no interior optimum."""
    chosen = {column: law.factor_of(column) for column in budget.powers}
    terms = [term.coefficient for term, _ in chosen.values()]
    if len(set(terms)) != len(terms) or any(factor.kind != "inverse_power" for _, factor in chosen.values()):
        raise ConfigError(
            f"law '{law.name}' has no closed frontier over {', '.join(chosen)}; expected one inverse power per term"
        )
    for term, _ in chosen.values():
        for factor in term.factors:
            if factor.column not in budget.powers and factor.column not in budget.held:
                raise ConfigError(f"column '{factor.column}' is neither chosen nor held; give its value in 'held'")
    return chosen


def _with_offset(start: Values, offset: float, exponent: Values, rate: Values, power: float) -> Values:
    """ln x at the optimum under C ~ (x + offset)^power ..., from its value without the offset.

    With s = offset / x, what the budget leaves of the stationarity conditions is

        power * ln(1 + s) - (rate - power / exponent) * ln(1 + s) + rate * exponent * (ln x - start) = 0

    whose left side rises in ln x and bends one way only, so that Newton's method converges from anywhere.
    """
    others = rate - power / exponent
    value = start
    for _ in range(_NEWTON_STEPS):
        share = offset * np.exp(-value)
        missed = (power - others) * np.log(1 + share) + rate * exponent * (value - start)
        value = value - missed / (rate * exponent - (power - others) * share / (1 + share))
    return value


def _coefficient(parameters: Mapping[str, Values], budget: Budget, term: Term) -> Values:
    """c times the term's held factors."""
    value: Values = np.asarray(parameters[term.coefficient])
    for factor in term.factors:
        if factor.column in budget.held:
            regressor = factor.regressor(np.asarray(budget.held[factor.column], dtype=np.float64))
            value = value * np.exp(parameters[factor.exponent] * regressor)
    return value


def _log_slopes(law: AdditiveLaw, parameters: Mapping[str, Values], budget: Budget) -> tuple[dict[str, Values], Values]:
    """ln(a c / k) per column, and sum_j k_j / a_j."""
    logs: dict[str, Values] = {}
    rate: Values = np.asarray(0.0)
    for column, (term, factor) in _chosen(law, budget).items():
        exponent, power = parameters[factor.exponent], budget.powers[column]
        logs[column] = np.log(exponent * _coefficient(parameters, budget, term) / power)
        rate = rate + power / exponent
    return logs, rate

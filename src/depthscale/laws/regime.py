"""Is depth spent on averaging (exponent 1) or on integrating (exponent 3)?

Ensemble averaging makes the depth term fall as 1/l; a first-order solver of a smooth flow as 1/l^3. The test fits the
exponent, profiles it, and asks whether the rows could tell at all.

Source: arXiv 2602.05970 (regimes); the test is ours.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from depthscale.errors import ConfigError
from depthscale.laws.fitting import DEFAULT_OBJECTIVE, Fit, fit, search
from depthscale.laws.law import AdditiveLaw, Factor
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations
from depthscale.laws.profiling import ProfileInterval, deviance, profile
from depthscale.laws.quantities import parameter
from depthscale.laws.standard_errors import hessian_covariance, robust_covariance

Array = NDArray[np.float64]

#: Fewer depths, or a smaller range, and no exponent is a finding about a regime.
FEWEST_DEPTHS = 6
SMALLEST_RANGE = 8.0
REGIME_EXPONENTS = {"ensemble_averaging": 1.0, "procedural_assembly": 3.0}


@dataclass(frozen=True)
class HeldExponent:
    """The fit with the depth exponent held at a regime's value.

    Attributes:
        exponent: value held.
        deviance: against the free fit; None where the held fit is not certified.
        p_value: F(1, n - P); rows count as independent. None as above.
        group_p_value: of the deviance over the design effect, F(1, G - 1); None where the rows have no groups, or as
            above.
        refused: why the held fit is not certified; empty where it is.
    """

    exponent: float
    deviance: float | None
    p_value: float | None
    group_p_value: float | None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalSlope:
    """The depth exponent of one window of depths, everything else held at the full fit.

    Attributes:
        lowest, highest: depths of the window.
        num_rows: rows in it.
        exponent, error: estimate and standard error (conditional on the other terms); None where not certified.
    """

    lowest: float
    highest: float
    num_rows: int
    exponent: float | None
    error: float | None


@dataclass(frozen=True)
class Regime:
    """The answer and what it rests on.

    Attributes:
        verdict: ``not identifiable``, ``ensemble_averaging``, ``procedural_assembly``, ``both allowed`` or
            ``neither``.
        reasons: why it is not identifiable; empty otherwise.
        num_depths, depth_range: distinct depths and largest over smallest, layers counted as built.
        design_effect: variance of the exponent by groups over that of independent rows; None without groups.
        exponent: profile interval.
        held: per regime.
        slopes: by window of depth, shallow to deep.
        interaction_p_value: of a depth coefficient that depends on width, by groups where the rows have them; None
            where no width was named.
    """

    verdict: str
    reasons: tuple[str, ...]
    num_depths: int
    depth_range: float
    design_effect: float | None
    exponent: ProfileInterval
    held: dict[str, HeldExponent]
    slopes: tuple[LocalSlope, ...]
    interaction_p_value: float | None


def regime_test(
    law: AdditiveLaw,
    data: Observations,
    depth: str = "depth",
    width: str | None = "width",
    objective: Objective = DEFAULT_OBJECTIVE,
    num_windows: int = 3,
    level: float = 0.95,
    depth_offset: float = 0.0,
) -> Regime:
    """Test the exponent of ``depth`` against the regimes.

    Args:
        law: reads ``depth`` in exactly one factor, as an inverse power.
        data: the rows.
        depth: column of the depth.
        width: column that the depth's coefficient may depend on; None leaves that test out.
        objective: what is minimized.
        num_windows: windows of depth with about equally many rows.
        level: of the profile interval and the verdict.
        depth_offset: layers that the column leaves out; the range is that of the models as built.

    Raises:
        FitError: the free fit is not certified.
    """
    _, factor = law.factor_of(depth)
    if factor.kind != "inverse_power":
        raise ConfigError(f"column '{depth}' is read as {factor.kind}; expected an inverse power")
    free = fit(law, data, objective)
    interval = profile(free, [parameter(free, factor.exponent)], level)[0]
    effect = _design_effect(free, factor.exponent)
    held = {name: _held(free, factor.exponent, value, effect) for name, value in REGIME_EXPONENTS.items()}
    depths = np.unique(free.data.column(depth)) + depth_offset
    reasons = []
    if len(depths) < FEWEST_DEPTHS:
        reasons.append(f"{len(depths)} distinct depths, at least {FEWEST_DEPTHS} are needed")
    if depths[-1] / depths[0] < SMALLEST_RANGE:
        reasons.append(f"depths span a factor {depths[-1] / depths[0]:.2f}, at least {SMALLEST_RANGE:g} is needed")
    reasons += [
        f"with {factor.exponent} held at {test.exponent:g} the fit is not certified ({test.refused[0]})"
        for test in held.values()
        if test.refused
    ]
    p_values = {name: test.p_value if test.group_p_value is None else test.group_p_value for name, test in held.items()}
    allowed = [name for name, p_value in p_values.items() if p_value is not None and p_value > 1 - level]
    verdict = {0: "neither", 1: allowed[0] if allowed else "", 2: "both allowed"}[len(allowed)]
    return Regime(
        "not identifiable" if reasons else verdict,
        tuple(reasons),
        len(depths),
        float(depths[-1] / depths[0]),
        effect,
        interval,
        held,
        local_slopes(free, depth, num_windows),
        None if width is None else interaction_p_value(free, depth, width),
    )


def local_slopes(free: Fit, depth: str, num_windows: int) -> tuple[LocalSlope, ...]:
    """The depth term's exponent in windows of depth; the other terms stay as the full fit has them."""
    law, data = free.law, free.data
    if not isinstance(law, AdditiveLaw):
        raise ConfigError("local slopes need a single additive law")
    term, factor = law.factor_of(depth)
    others = {name: value for name, value in free.parameters.items() if name not in (term.coefficient, factor.exponent)}
    values = data.column(depth)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, num_windows + 1)))
    slopes = []
    for low, high in itertools.pairwise(edges):
        rows = (values >= low) & ((values < high) | (high == edges[-1]))
        if len(np.unique(values[rows])) < 2:
            slopes.append(LocalSlope(float(low), float(high), int(rows.sum()), None, None))
            continue
        local = search(law, data.take(rows), free.objective, fixed=others)
        good = local.certificate.holds
        slopes.append(
            LocalSlope(
                float(values[rows].min()),
                float(values[rows].max()),
                int(rows.sum()),
                local.parameters[factor.exponent] if good else None,
                hessian_covariance(local).errors[factor.exponent] if good else None,
            )
        )
    return tuple(slopes)


def interaction_p_value(free: Fit, depth: str, width: str) -> float:
    """Score test of c_l -> c_l * width^-kappa against kappa = 0: does depth buy the same at every width?

    What the law's own Jacobian leaves of kappa's column is multiplied by the residuals' influence and summed, within
    groups first where the rows have them. Only the fit without kappa is needed, so the answer is about its
    neighborhood and not about a far minimum where the terms change roles.
    """
    law = free.law
    if not isinstance(law, AdditiveLaw):
        raise ConfigError("the interaction test needs a single additive law")
    term, _ = law.factor_of(depth)
    widened = replace(term, factors=(*term.factors, Factor(width, "kappa_width")))
    terms = tuple(widened if t is term else t for t in law.terms)
    richer = replace(law, name=f"{law.name}_interaction", terms=terms)
    bound = richer.bind(free.data.columns, free.data.loss)
    values = np.array([{**free.parameters, "kappa_width": 0.0}[name] for name in richer.parameters])
    working = np.where(bound.coefficient_mask, np.log(np.where(bound.coefficient_mask, values, 1.0)), values)
    u = np.asarray(np.linalg.solve(bound.transform, working - bound.offset), dtype=np.float64)[None]
    jacobian = bound.jacobian(u)[0]
    if free.objective.is_log:
        jacobian = jacobian / bound.predict(u)[0][:, None]
    root = np.sqrt(free.data.row_weights)
    weighed = root[:, None] * jacobian
    column = richer.parameters.index("kappa_width")
    own = np.delete(weighed, column, axis=1)
    apart = weighed[:, column] - own @ np.linalg.lstsq(own, weighed[:, column], rcond=None)[0]
    parts = apart * root * free.objective.influence(free.residuals)
    if free.data.groups is not None:
        parts = np.bincount(free.data.group_codes, parts)
        units, spare = len(parts), len(parts) - 1
    else:
        units = free.data.num_weighted_rows
        spare = max(units - len(values), 1)
    # The sum's variance under the hypothesis, from the parts themselves: residuals need not have one spread.
    statistic = float(parts.sum() ** 2 / (parts @ parts)) * spare / units
    return float(f_distribution.sf(statistic, 1, max(spare, 1)))


def _design_effect(free: Fit, exponent: str) -> float | None:
    """How much more the exponent varies where rows of one group err together; at least 1."""
    if free.data.groups is None:
        return None
    clustered, alone = robust_covariance(free).errors[exponent], hessian_covariance(free).errors[exponent]
    return max((clustered / alone) ** 2, 1.0) if alone > 0 else 1.0


def _held(free: Fit, exponent: str, value: float, effect: float | None) -> HeldExponent:
    restricted = search(free.law, free.data, free.objective, fixed={exponent: value})
    if not restricted.certificate.holds:
        return HeldExponent(value, None, None, None, restricted.certificate.reasons)
    rise = float(deviance(free, restricted.total))
    spare = max(free.data.num_weighted_rows - free.num_free, 1)
    grouped = None if effect is None else float(f_distribution.sf(rise / effect, 1, max(free.data.num_groups - 1, 1)))
    return HeldExponent(value, rise, float(f_distribution.sf(rise, 1, spare)), grouped)

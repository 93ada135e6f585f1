"""Everything that is said of one fit, as plain data for a result file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, DataError
from depthscale.laws.card import DataCard, best_over_rates
from depthscale.laws.certificate import FitError
from depthscale.laws.conventions import audit, standard_conventions
from depthscale.laws.fitting import DEFAULT_OBJECTIVE, Fit, search
from depthscale.laws.frontier import Budget
from depthscale.laws.identification import identifiability
from depthscale.laws.interval_rows import interval_kind, interval_row, parameter_rows, profile_data
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations
from depthscale.laws.preparation import Prepared
from depthscale.laws.profiling import critical_deviance, profile
from depthscale.laws.quantities import parameter
from depthscale.laws.regime import regime_test
from depthscale.laws.resampling import Bootstrap, bootstrap
from depthscale.laws.spending import (
    closed_budget,
    closed_map,
    derived_quantities,
    frontier_table,
    isoflop_curves,
    open_exponents,
)
from depthscale.laws.validation import HeldOut, validate_extrapolation, validate_groups, validate_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """What is asked beside the parameters.

    Attributes:
        objective: what is minimized.
        level: of every interval.
        num_replicates: of the bootstrap; 0 leaves it out, and profiles are printed.
        seed: of the draws.
        validate: hold rows, architectures and the largest budgets out.
        context: T of the rows' models, for the FLOPs convention; None where it is not known.
    """

    objective: Objective = DEFAULT_OBJECTIVE
    level: float = 0.95
    num_replicates: int = 1000
    seed: int = 0
    validate: bool = True
    context: int | None = None


def fit_or_explain(law: AdditiveLaw, data: Observations, objective: Objective = DEFAULT_OBJECTIVE) -> Fit:
    """A certified fit; a refusal names what the design cannot tell apart.

    Raises:
        FitError: the minimum is not certified.
    """
    found = search(law, data, objective)
    if not found.certificate.holds:
        reasons = [*found.certificate.reasons, *identifiability(found).warnings]
        raise FitError(f"the fit of '{law.name}' is not certified: {'; '.join(reasons)}")
    return found


def analyze(law: AdditiveLaw, rows: Prepared, card: DataCard, question: Question) -> tuple[Fit, dict[str, Any]]:
    """Fit and ask everything.

    Returns:
        The fit, and plain data: fit, card, rows, parameters, derived, profiles, bootstrap, identifiability, audit,
        regime, validation, envelope, budget, frontier, isoflop, warnings.

    Raises:
        FitError: the fit is not certified.
    """
    found = fit_or_explain(law, rows.base, question.objective)
    draws = None
    if question.num_replicates:
        clusters = rows.base.groups is not None
        draws = bootstrap(found, question.num_replicates, question.seed, clusters=clusters)
    budget, uncounted = _budget(law, rows)
    negative = [] if budget is None else open_exponents(found, budget)
    costs = budget
    budget = None if negative else budget
    usable = draws if draws is not None and draws.is_sound else None
    compute = float(budget.spent(rows.base.columns).max()) if budget else 0.0
    quantities = [parameter(found, name) for name in law.parameters]
    derived = derived_quantities(law, budget, compute)
    profiles = profile(found, [*quantities, *derived], question.level)
    identified = identifiability(found)
    regime = _attempt(lambda: _regime(law, rows, question))
    result = {
        "fit": found.to_dict(),
        "card": {**asdict(card), "unanswered": list(card.unanswered)},
        "level": question.level,
        "rows": {
            "read": rows.num_read,
            "fitted": rows.base.num_rows,
            "ranges": {n: [float(v.min()), float(v.max())] for n, v in rows.base.columns.items()},
            "distinct": {n: len(np.unique(v)) for n, v in rows.base.columns.items()},
            "loss": [float(rows.base.loss.min()), float(rows.base.loss.max())],
        },
        "findings": [asdict(finding) for finding in rows.findings],
        "notes": list(rows.notes),
        "interval_kind": interval_kind(usable),
        "bootstrap": _bootstrap_facts(draws, question),
        "parameters": parameter_rows(found, quantities, profiles, usable, question.level),
        "derived": [
            interval_row(quantity, interval, usable, question.level)
            for quantity, interval in zip(derived, profiles[len(quantities) :], strict=True)
        ],
        "critical_deviance": critical_deviance(found, question.level),
        "profiles": [profile_data(interval) for interval in profiles],
        "identifiability": {
            "column_correlations": [
                {"columns": list(pair), "correlation": value} for pair, value in identified.column_correlations.items()
            ],
            "names": list(identified.parameters),
            "correlations": identified.correlations.tolist(),
            "condition_number": identified.condition_number,
            "inseparable": [list(names) for names in identified.inseparable],
            "weak": list(identified.weak),
        },
        "audit": _audit(law, rows, card, question),
        "regime": regime,
        "validation": _validation(found, costs, question) if question.validate else [],
        "envelope": _envelope(law, rows.base, question.objective),
        "budget": None if budget is None else {**asdict(budget), "largest": compute},
        "frontier": [] if budget is None else frontier_table(found, usable, budget, question.level),
        "isoflop": [] if budget is None else isoflop_curves(found, budget),
        "map": None if budget is None else closed_map(found, budget, compute),
    }
    open_ = [f"loss does not fall in {', '.join(negative)}: no frontier is given"] if negative else []
    result["warnings"] = [*card.warnings, *identified.warnings, *uncounted, *open_, *_warnings(result)]
    return found, result


def _budget(law: AdditiveLaw, rows: Prepared) -> tuple[Budget | None, list[str]]:
    """What the rows cost, or why no frontier is given."""
    try:
        budget = closed_budget(law, rows.base, rows.depth_offset)
    except DataError as error:
        return None, [str(error)]
    if budget is None and "tokens" in law.columns:
        return None, [
            f"law '{law.name}' has no closed frontier, so none is given: that needs sizes and tokens in a term of their"
            " own each, as inverse powers, such as width, depth and tokens"
        ]
    return budget, []


def _bootstrap_facts(draws: Bootstrap | None, question: Question) -> dict[str, Any] | None:
    if draws is None:
        return None
    return {
        "kind": draws.kind,
        "num_replicates": question.num_replicates,
        "num_discarded": draws.num_discarded,
        "num_units": draws.num_units,
        "is_sound": draws.is_sound,
        "seed": question.seed,
    }


def _audit(law: AdditiveLaw, rows: Prepared, card: DataCard, question: Question) -> dict[str, Any]:
    conventions = standard_conventions(
        rows.everything,
        rows.base,
        "depth" if "depth" in law.columns else None,
        card.vocab_size if card.embeddings_counted else None,
        question.context,
        rows.depth_offset,
        rows.tokens_derived,
    )
    same = [n for n, d in conventions.items() if isinstance(d, Observations) and d.digest == rows.base.digest]
    for name in same:
        del conventions[name]
    found = audit(law, rows.base, conventions, question.objective)
    return {
        "rows": [asdict(row) for row in found.rows],
        "errors": found.errors,
        "spread": {name: found.spread(name) for name in law.parameters},
    }


def _regime(law: AdditiveLaw, rows: Prepared, question: Question) -> dict[str, Any] | None:
    depth = next((name for name in ("depth", "blocks") if name in law.columns), None)
    if depth is None:
        return None
    width = "width" if "width" in law.columns else None
    offset = rows.depth_offset if depth == "depth" else 0.0
    found = regime_test(law, rows.base, depth, width, question.objective, level=question.level, depth_offset=offset)
    return {**asdict(found), "exponent": profile_data(found.exponent)}


def _validation(fit: Fit, budget: Budget | None, question: Question) -> list[dict[str, Any]]:
    tests: list[tuple[str, Callable[[], HeldOut]]] = [
        ("rows", lambda: validate_rows(fit, seed=question.seed, level=question.level))
    ]
    if fit.data.groups is not None:
        tests.append(("groups", lambda: validate_groups(fit, seed=question.seed, level=question.level)))
    ranked, by = fit, None
    if "flops" in fit.data.columns:
        by = "flops"
    elif budget is not None:
        ranked, by = replace(fit, data=fit.data.with_column("flops", budget.spent(fit.data.columns))), "flops"
    elif "tokens" in fit.data.columns:
        by = "tokens"
    if by is not None:
        column = by
        tests.append(("extrapolation", lambda: validate_extrapolation(ranked, column, level=question.level)))
    return [{"kind": kind, **(_attempt(partial(_as_data, test)) or {})} for kind, test in tests]


def _as_data(test: Callable[[], HeldOut]) -> dict[str, Any]:
    return asdict(test())


def _envelope(law: AdditiveLaw, data: Observations, objective: Objective) -> dict[str, Any] | None:
    """The fit of the best rate of each setting, where several rates were run; repeats of a rate count by their mean."""
    if "rate" not in data.columns:
        return None
    means = _means_of_repeats(data, [*law.columns, "rate"])
    best = best_over_rates(means, list(law.columns))
    if best.num_rows == means.num_rows:
        return None
    found = search(law, best, objective)
    holds = found.certificate.holds
    return {
        "num_rows": best.num_rows,
        "parameters": found.parameters if holds else None,
        "reasons": list(found.certificate.reasons),
    }


def _means_of_repeats(data: Observations, names: list[str]) -> Observations:
    """Rows that agree in ``names`` (seeds of one run) as one row with their mean loss: the least of them is luck."""
    codes = data.grouped_by(names).group_codes
    first = np.unique(codes, return_index=True)[1]
    counts = np.bincount(codes, data.row_weights).astype(np.float64)
    means = np.bincount(codes, data.row_weights * data.loss) / counts
    return replace(data.take(first), loss=means, weights=None if data.weights is None else counts)


def _attempt(work: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """A secondary question that these rows cannot answer says why instead of ending the fit."""
    try:
        return work()
    except (FitError, ConfigError, DataError) as error:
        return {"failed": str(error)}


def _warnings(result: dict[str, Any]) -> list[str]:
    lines = []
    exponents = {factor["exponent"] for term in result["fit"]["law"]["terms"] for factor in term["factors"]}
    discarded = result["bootstrap"]["num_discarded"] if result["bootstrap"] else 0
    if discarded:
        lines.append(f"{discarded} of {result['bootstrap']['num_replicates']} replicates were not certified")
        if not result["bootstrap"]["is_sound"]:
            lines[-1] += ": too many for a bootstrap interval, profiles are printed instead"
    for row in result["parameters"]:
        if row["name"] not in exponents:
            continue
        spread, error = result["audit"]["spread"][row["name"]], result["audit"]["errors"][row["name"]]
        if spread > 2 * error > 0:
            lines.append(
                f"{row['name']} moves by {spread:.3g} over conventions, {spread / error:.1f} times its standard error"
            )
        if not all(map(math.isfinite, row["profile"])):
            lines.append(f"the profile of {row['name']} is open: these rows do not bound it on both sides")
    refused = [row for row in result["audit"]["rows"] if row["parameters"] is None]
    lines += [f"'{row['name']}' cannot be tried: {row['reasons'][0]}" for row in refused if not row["num_rows"]]
    failed = [row["name"] for row in refused if row["num_rows"]]
    if failed:
        lines.append(f"not certified under: {', '.join(failed)}")
    return lines

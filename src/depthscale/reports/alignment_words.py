"""What an alignment study says, in sentences: each made from its numbers, none of them from an expectation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from depthscale.reports.alignment_data import AlignmentData
from depthscale.reports.page import significant
from depthscale.studies.words import decimal

#: Names of the statistics in tables.
QUANTITY_WORDS: Mapping[str, str] = {
    "kappa": "κ",
    "kappa_common": "κ common",
    "map_part": "U part",
    "gradient_part": "G part",
}


def sentences(data: AlignmentData) -> list[tuple[str, str]]:
    """Lead and rest of each finding."""
    found = [_stages(data), _threshold(data)]
    found += _steps(data)
    found += [_self_consistent(data)]
    return [sentence for sentence in found if sentence is not None]


def interval(fit: Mapping[str, Any]) -> str:
    """An exponent with its interval; a dash where there is none."""
    if "reason" in fit:
        return "—"
    return f"{decimal(fit['exponent'], 2)} [{_end(fit['lower'])}, {_end(fit['upper'])}]"


def bend(fit: Mapping[str, Any]) -> str:
    """How much the local exponent changes over the rounds, give or take; a dash where it cannot be seen."""
    if "reason" in fit or fit["bend"] is None:
        return "—"
    return f"{decimal(fit['bend'], 2, signed=True)} ± {decimal(fit['bend_error'], 2)}"


def statistic(value: Mapping[str, Any]) -> str:
    """Mean and standard error over seeds."""
    mean, error = value["mean"], value["standard_error"]
    return significant(mean, 3) if error is None else f"{significant(mean, 3)} ± {significant(error, 2)}"


def threshold(condition: Mapping[str, Any]) -> str:
    """The stability threshold with its interval, or that there is none."""
    found = condition["threshold"]
    if found.get("value") is None:
        return "none"
    return f"{decimal(found['value'], 3)} [{decimal(found['lower'], 3)}, {decimal(found['upper'], 3)}]"


def solved(record: Mapping[str, Any], name: str) -> str:
    """One end of p*; in words where it lies outside the measured exponents."""
    value = record[name]
    return f"{record[f'{name}_outside']} those measured" if value is None else decimal(value, 3)


def gamma_words(gammas: Mapping[str, Any]) -> str:
    """One earlier figure."""
    when = f", step {gammas['step']}" if "step" in gammas else ""
    return f"{gammas['of']}{when}"


def _stages(data: AlignmentData) -> tuple[str, str] | None:
    parts = []
    for arm in data.rules:
        fits = [
            (step, condition["growth"]["kappa"])
            for step in data.stages
            if (condition := data.condition(arm["name"], step)) is not None
        ]
        known = [f"{decimal(fit['exponent'], 2)} at step {step}" for step, fit in fits if "reason" not in fit]
        if known:
            parts.append(f"{arm['name']} {', '.join(known)}")
    if not parts:
        return None
    trivial = "visits of a near-identity stack are aligned trivially"
    if len(data.stages) > 1:
        tail = f" At initialization {trivial}, so the later figure is the one that training meets."
    elif data.stages == [0]:
        tail = f" Only initialization was measured in every arm, where {trivial}."
    else:
        tail = f" Step {data.stages[0]} alone was measured in every arm." if data.stages else ""
    return "Growth of alignment", f"γ of κ ~ R^γ: {'; '.join(parts)}.{tail}"


def _threshold(data: AlignmentData) -> tuple[str, str]:
    conditions = [c for c in data.of_loss() if "reason" not in c["threshold"]]
    given = [c for c in conditions if c["threshold"]["value"] is not None]
    lead = "Stability threshold"
    if not conditions:
        return lead, "none: no condition has the points to look for one."
    if not given:
        where = f"in each of {len(conditions)} conditions one of its assumptions fails or cannot be seen"
        return lead, f"none: {where}; the list under the table says which."
    listed = "; ".join(
        f"{c['arm']} at step {c['step']}, {c['batch_rows']} rows: {decimal(c['threshold']['value'], 3)}"
        for c in given[:6]
    )
    more = f" and {len(given) - 6} more" if len(given) > 6 else ""
    return (
        lead,
        f"(1 + γ)/4 is given in {len(given)} of {len(conditions)} conditions: {listed}{more}. In the others one of its"
        " assumptions fails.",
    )


def _steps(data: AlignmentData) -> list[tuple[str, str] | None]:
    found: list[tuple[str, str] | None] = []
    for optimizer, formula, name in (("sgd", "1 + γ − 4p", "SGD"), ("adamw", "γ_U − 2p", "AdamW")):
        records = [
            r
            for r in data.result["one_steps"]
            if r["optimizer"] == optimizer and r["expected"] and "reason" not in r["growth"]["actual"]
        ]
        if records:
            parts = [
                f"{r['arm']} at step {r['step']} {decimal(r['growth']['actual']['exponent'], 2)} against"
                f" {decimal(r['expected']['exponent'], 2)}"
                for r in records
            ]
            broken = [r for r in records if not r["bound_holds"]]
            bound = (
                "The bound holds in every step."
                if not broken
                else f"The bound is broken in {len(broken)} of {len(records)} groups."
            )
            found.append((f"One {name} step", f"grows with R as, against {formula}: {'; '.join(parts)}. {bound}"))
    return found


def _self_consistent(data: AlignmentData) -> tuple[str, str] | None:
    record = data.result["self_consistent"]
    if record is None:
        return None
    solution = record["kappa_common"]["solution"]
    if "reason" in solution:
        return "Exponent that agrees with itself", f"none: {solution['reason']}."
    text = (
        f"p* = (1 + γ(p*))/4 is {solved(solution, 'estimate')}, {solved(solution, 'lower')} to"
        f" {solved(solution, 'upper')} over {len(solution['crossings'])} conditions."
    )
    if solution["missing"]:
        text += f" {'; '.join(solution['missing'])}."
    failed = [entry for entry in record["assumptions"] if entry["failed"]]
    if failed:
        text += (
            f" The assumptions behind (1 + γ)/4 fail in {len(failed)} of {len(record['assumptions'])} of its"
            " conditions, so it solves an equation whose terms were measured and is no threshold there."
        )
    if solution["is_recommendation"]:
        text += " It meets the sweep's edge: a recommendation."
    elif record["edge"] is None:
        text += " No edge of a sweep was given, so it is no recommendation."
    else:
        low, high = (decimal(end, 3) for end in record["edge"])
        why = "too little was measured, so p*" if solution["missing"] else "p* does not predict it and"
        text += f" The sweep's edge is {low} to {high}; {why} is no recommendation."
    return "Exponent that agrees with itself", text


def _end(value: float | None) -> str:
    return "open" if value is None else decimal(value, 2)

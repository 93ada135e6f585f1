"""Sentences of a sweep. They are made from its counts and intervals alone and say no more than those do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from depthscale.studies.words import count, decimal

#: With so few runs an exponent, "all" and "none" say little: Clopper and Pearson's interval of 0 of 4 reaches 0.60.
MIN_RUNS = 5


def verdict(result: Mapping[str, Any]) -> list[str]:
    """What the sweep says, the edge at the main rate first."""
    main = result["setting"]["main_rate"]
    edges = sorted(result["edges"], key=lambda edge: edge["lr"] != main)
    sentences = [
        f"Edge at rate {edge['lr']:g}{' (main)' if edge['lr'] == main else ''}: {edge_words(edge)}" for edge in edges
    ]
    sentences.append(f"The paper's counts under the same fit: {edge_words(result['paper']['edge'])}")
    sentences += [longer_words(result["longer"])] if result["longer"] else []
    sentences += [time_words(result)]
    sentences += [loss_words(result)]
    others = [cell for cell in result["cells"] if not cell["in_grid"] and cell["share"]]
    sentences += [arm_words(others)] if others else []
    if result["threshold"] is not None:
        sentences.append(threshold_words(result["threshold"]))
    return sentences


def edge_words(edge: Mapping[str, Any]) -> str:
    """One sentence for one edge.

    Example:
        >>> edge_words({"kind": "all_stuck", "lower": 0.6, "upper": float("inf"), "confidence": 0.95})
        'no edge in this grid, no run trains at any exponent; 95 % interval of p50 0.600 and above, open.'
    """
    kind = edge["kind"]
    if kind == "missing":
        return "not decided, fewer than two exponents have runs."
    level = f"{100 * edge['confidence']:g} %"
    if kind == "crossing":
        step = " (a step: one exponent has both outcomes)" if _is_open(edge["slope"]) else ""
        return f"half of the runs train at p = {edge['p50']:.3f}, {level} interval {interval_words(edge)}{step}."
    if kind == "separated":
        low, high = edge["between"]
        return (
            f"between p = {low:g}, where no run trains, and p = {high:g}, where every run does; the slope is not"
            f" determined, {level} interval of p50 {interval_words(edge)}."
        )
    if kind == "outside":
        return f"no edge in this grid, the fitted crossing lies outside it; {level} interval {interval_words(edge)}."
    if kind == "falling":
        return "no edge of the kind asked for: the share of runs that train falls as p rises."
    if kind == "flat":
        return (
            f"no edge in this grid, some runs train but the share does not change with p beyond chance"
            f" (p-value {edge['trend_p_value']:.2g}); {level} interval of p50 {interval_words(edge)}."
        )
    which = "no run trains" if kind == "all_stuck" else "every run trains"
    return f"no edge in this grid, {which} at any exponent; {level} interval of p50 {interval_words(edge)}."


def interval_words(edge: Mapping[str, Any]) -> str:
    """Ends of an interval of p50.

    Example:
        >>> interval_words({"lower": 0.4, "upper": float("inf")})
        '0.400 and above, open'
    """
    low, high = edge["lower"], edge["upper"]
    if _is_open(low) and _is_open(high):
        return "open on both sides"
    if _is_open(high):
        return f"{low:.3f} and above, open"
    if _is_open(low):
        return f"{high:.3f} and below, open"
    return f"{low:.3f} to {high:.3f}"


def longer_words(longer: Sequence[Mapping[str, Any]]) -> str:
    """What more steps changed, exponent by exponent."""
    parts = []
    for cell in longer:
        change = f"{cell['trained_before']} of {cell['num_pairs']} became {cell['trained_after']}"
        lost = f", {cell['lost']} that had trained did not" if cell["lost"] else ""
        parts.append(f"p = {cell['p']:g}: {change}{lost}")
    gained = sum(cell["gained"] for cell in longer)
    lead = f"With {longer[0]['steps']:,} steps, same seeds, runs that train"
    return f"{lead}: {'; '.join(parts)}; {count(gained, 'run')} that had not trained did."


def time_words(result: Mapping[str, Any]) -> str:
    """Median times at the main rate, and the log-rank tests."""
    main, resolution = result["setting"]["main_rate"], result["setting"]["resolution_steps"]
    medians = [
        f"p = {cell['p']:g} {_steps(cell['escape']['median'])}"
        for cell in result["cells"]
        if cell["in_grid"] and cell["lr"] == main and cell["escape"]
    ]
    tests = []
    for found in result["times"]:
        low, high = found["exponents"]
        if found["test"] is None:
            tests.append(f"at rate {found['lr']:g} no run of p = {low:g} or {high:g} passed, or all at one step")
            continue
        first = low if found["test"]["statistic"] > 0 else high
        p_value = found["test"]["p_value"]
        decided = f"p = {first:g} passes earlier" if p_value < 1 - result["setting"]["confidence"] else "not decided"
        tests.append(f"at rate {found['lr']:g} {decided} (p-value {p_value:.2g})")
    every = f", seen every {resolution} steps" if resolution else ""
    return (
        f"Time to pass below the floor: median steps at the main rate{every}: {', '.join(medians) or 'none'}."
        f" Log-rank, p = 1/4 against 1/2 or the grid's ends: {'; '.join(tests) or 'none'}."
    )


def loss_words(result: Mapping[str, Any]) -> str:
    """Whether a smaller exponent is better among the runs that train."""
    lead = "Loss of the runs that train, main rate"
    trend = result["loss_trend"]
    if trend is None:
        return f"{lead}: not decided, too few seeds train at several exponents."
    low, high = trend["interval"]
    found = (
        f"{decimal(trend['nats_per_tenth'], signed=True)} nats for 0.1 more of p"
        f" ({100 * result['setting']['confidence']:g} % interval {decimal(low, signed=True)} to"
        f" {decimal(high, signed=True)},"
        f" {count(trend['num_runs'], 'run')}, each beside others of its seed)"
    )
    if low <= 0 <= high:
        return f"{lead}: no trend in p is shown, {found}."
    better = "smaller" if low > 0 else "larger"
    return f"{lead}: a {better} exponent is better, {found}; runs that did not train are left out."


def arm_words(cells: Sequence[Mapping[str, Any]]) -> str:
    """Shares and losses of the other arms."""
    parts = [
        f"{cell['arm']} at rate {cell['lr']:g}: {cell['share']['num_trained']} of {cell['share']['num_runs']} train"
        + (f", mean loss {decimal(cell['loss']['mean'])} nats" if cell["loss"]["mean"] is not None else "")
        for cell in cells
    ]
    return f"Other arms: {'; '.join(parts)}."


def threshold_words(threshold: Mapping[str, Any]) -> str:
    """Whether the threshold that was measured elsewhere is where the edge is."""
    lead = f"Measured threshold p = {threshold['p']:.3f} ({threshold['source']})"
    if threshold["agrees"] is None:
        return f"{lead}: cannot be checked, the main rate shows no edge in this grid; it is no recommendation."
    if threshold["agrees"]:
        return f"{lead}: within the interval of the edge at the main rate."
    return f"{lead}: outside the interval of the edge at the main rate; it is no recommendation."


def warnings_of(result: Mapping[str, Any]) -> list[str]:
    """What a reader should know before the verdict is trusted."""
    cells = [cell for cell in result["cells"] if cell["in_grid"]]
    found = []
    missing = sum(cell["outcomes"]["missing"] for cell in [*result["cells"], *result["longer"]])
    if missing:
        found.append(f"{count(missing, 'run')} of the plan have no result; shares are over those that have.")
    fewest = min((cell["first_seeds"]["runs"] for cell in cells), default=0)
    if fewest < MIN_RUNS:
        found.append(
            f"An exponent has {count(fewest, 'run')} only; with fewer than {MIN_RUNS} none and all say little."
        )
    baseline = [cell for cell in result["cells"] if cell["arm"] == "pre" and cell["share"]]
    for cell in baseline:
        if cell["share"]["num_trained"] < cell["share"]["num_runs"]:
            share = cell["share"]
            found.append(
                f"The pre-norm arm trains in {share['num_trained']} of {count(share['num_runs'], 'run')} at rate"
                f" {cell['lr']:g}: there the steps or the rate, not only the rule, keep runs at the floor."
            )
    if any(run["added"] == "near_edge" for cell in cells for run in cell["runs"]):
        found.append(
            "Seeds were added where the first ones showed an edge, by the rule in study.json; both counts are shown."
        )
    return found


def _steps(median: float | None) -> str:
    return "not reached" if median is None else f"{median:.0f}"


def _is_open(value: float | None) -> bool:
    # A result that was read back has null where a number was not finite.
    return value is None or math.isinf(value)

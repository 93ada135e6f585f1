"""The table: accuracies of every arm by level, and paired differences from the first arm."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import finite, versions
from depthscale.studies.paired import MIN_PAIRS_FOR_VERDICT, paired_interval

from .cells import Settings
from .puzzles import LEVELS

TABLE_KIND = "hierarchical_reasoner"
MEASURES = ("cell_accuracy", "board_accuracy", "loss_nats")

Cell = Mapping[str, Any]


def write_table(
    directory: Path,
    settings: Settings,
    tuning: Sequence[Cell],
    cells: Sequence[Cell],
    puzzles: Sequence[Mapping[str, Any]],
    puzzles_sha256: str,
) -> dict[str, Any]:
    """Write ``results/hierarchical_reasoner.json`` and return what it holds."""
    baseline = settings.rules[0]
    levels = list(cells[0]["levels"])
    table: dict[str, Any] = {
        "kind": TABLE_KIND,
        "schema_version": 1,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "settings": asdict(settings),
        "levels": {level: LEVELS[level] for level in levels},
        "puzzles": list(puzzles),
        "puzzles_sha256": puzzles_sha256,
        "num_parameters": cells[0]["num_parameters"],
        "visits": cells[0]["visits"],
        "num_gradient_sublayer_visits": cells[0]["num_gradient_sublayer_visits"],
        "processor_seconds": sum(cell["processor_seconds"] for cell in [*tuning, *cells]),
        "tuning": [
            {
                "rule": cell["rule"],
                "lr": cell["training"]["lr"],
                "steps": cell["training"]["steps"],
                "outcome": cell["outcome"],
                "loss_nats": {level: found["loss_nats"] for level, found in cell["levels"].items()},
            }
            for cell in tuning
        ],
        "arms": [
            _arm([c for c in cells if c["rule"] == rule], [c for c in tuning if c["rule"] == rule], levels)
            for rule in settings.rules
        ],
        "pairs": [
            pair
            for rule in settings.rules[1:]
            for level in levels
            for measure in MEASURES
            if (pair := _pair(cells, baseline, rule, level, measure))
        ],
        "seconds_per_cell": statistics.fmean(cell["processor_seconds"] for cell in cells),
    }
    table["verdict"] = sentences(table)
    text = json.dumps(finite(table), indent=1, ensure_ascii=False, allow_nan=False)
    atomic_write_text(directory / "results" / f"{TABLE_KIND}.json", text + "\n")
    return table


def sentences(table: Mapping[str, Any]) -> list[str]:
    """One sentence for each level and arm: the paired difference of board accuracy, and whether it decides anything."""
    said = []
    baseline = table["settings"]["rules"][0]
    arms = {arm["rule"]: arm for arm in table["arms"]}
    for pair in table["pairs"]:
        if pair["measure"] != "board_accuracy":
            continue
        both = " against ".join(
            f"{100 * arms[rule]['levels'][pair['level']]['board_accuracy']['mean']:.1f} %"
            for rule in (pair["rule"], baseline)
        )
        interval = pair["interval"]
        if interval is None:
            found = "one seed, so there is no interval; not decided"
        else:
            ends = " to ".join(f"{100 * interval[end]:+.1f}" for end in ("low", "high"))
            enough = pair["num_pairs"] >= MIN_PAIRS_FOR_VERDICT and not interval["low"] <= 0 <= interval["high"]
            verdict = ("higher" if interval["mean"] > 0 else "lower") if enough else "not decided"
            found = f"{verdict}, difference {100 * interval['mean']:+.1f} points ({ends}, {pair['num_pairs']} pairs)"
        said.append(f"Boards solved, {pair['level']}, {pair['rule']} against {baseline}: {both}; {found}.")
    return said


def _arm(cells: Sequence[Cell], tuning: Sequence[Cell], levels: Sequence[str]) -> dict[str, Any]:
    rates = [cell["training"]["lr"] for cell in tuning]
    at_edge = cells[0]["training"]["lr"] in (min(rates), max(rates))
    return {
        "rule": cells[0]["rule"],
        "lr": cells[0]["training"]["lr"],
        "at_edge": at_edge,
        "scales": cells[0]["scales"],
        "seeds": [cell["training"]["seed"] for cell in cells],
        "outcomes": [cell["outcome"] for cell in cells],
        "levels": {
            level: {measure: found for measure in MEASURES if (found := _over_seeds(cells, level, measure))}
            for level in levels
        },
        "curves": {str(cell["training"]["seed"]): cell["curve"] for cell in cells},
    }


def _over_seeds(cells: Sequence[Cell], level: str, measure: str) -> dict[str, Any] | None:
    values = [cell["levels"][level][measure] for cell in cells]
    return None if None in values else {"mean": statistics.fmean(values), "by_seed": values}


def _pair(cells: Sequence[Cell], baseline: str, rule: str, level: str, measure: str) -> dict[str, Any] | None:
    at = {(cell["rule"], cell["training"]["seed"]): cell["levels"][level][measure] for cell in cells}
    seeds = [seed for name, seed in at if name == rule and None not in (at[rule, seed], at[baseline, seed])]
    if not seeds:
        return None
    differences = [at[rule, seed] - at[baseline, seed] for seed in seeds]
    interval = paired_interval(differences)
    return {
        "rule": rule,
        "level": level,
        "measure": measure,
        "num_pairs": len(seeds),
        "mean": statistics.fmean(differences),
        "interval": asdict(interval) if interval else None,
    }

"""The report of a study: one HTML file, readable at a glance first and in depth below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from depthscale.reports import charts, curve_charts, detail_charts, difference_charts, spending_frontier
from depthscale.reports.alignment_curve_charts import alignment_curve_charts
from depthscale.reports.page import write_report
from depthscale.reports.study_data import CellData, StudyData, read_study_data
from depthscale.reports.tuning_charts import tuning_charts, tuning_rows
from depthscale.studies.named_comparisons import TERMS
from depthscale.studies.study_runs import later_additions
from depthscale.studies.words import addition_words

VERDICT_WORDS: Mapping[str, str] = {
    "a_better": "lower",
    "b_better": "higher",
    "not_decided": "not decided",
    "equivalent": "equivalent",
    "different_beyond_margin": "beyond margin",
}


def build_report(study_directory: Path) -> Path:
    """Write ``report.html`` and ``figures/`` of a study and return the path of the page.

    Only result files are read; the comparison is made anew wherever the run directories are at hand.

    Raises:
        ResultError: the study, its comparison or a run is missing or damaged.
    """
    data = read_study_data(study_directory)
    figures = _figures(data)
    return write_report(
        study_directory,
        "comparison.html.j2",
        f"{data.comparison['name']}: comparison",
        (chart for group in figures.values() for chart in group),
        {
            "named": data.comparison.get("named", []),
            "again": data.comparison.get("again", []),
            "matched": data.study.get("matched_steps", []),
            "terms": TERMS,
            "study": data.study,
            "additions": later_additions(data.study),
            "addition_words": addition_words,
            "comparison": data.comparison,
            "verdict": [_lead_and_rest(sentence) for sentence in data.comparison["verdict"]],
            "verdict_words": VERDICT_WORDS,
            "rows": [_main_row(data, cell) for cell in data.by_rounds],
            "figures": figures,
            "series_colors": charts.SERIES_COLORS,
            "tuning": tuning_rows(data.tuning) if data.tuning else [],
            "groups": [row for cell in data.by_rounds if (row := _group_row(cell))],
            "scales": [row for cell in data.by_rounds if (row := _scales_row(cell))],
            "corpus": _first(run.training["data"] for cell in data.cells for run in cell.runs),
            "versions": _versions(data),
            "base": {key: data.study["config"][key] for key in ("plan", "model", "data", "train")},
            "arms": data.study["config"]["study"]["arms"],
            "arm_names": data.arms,
            "rounds": data.rounds,
        },
    )


def _figures(data: StudyData) -> dict[str, list[charts.Chart]]:
    differences = (
        difference_charts.final_loss_chart(data),
        difference_charts.looping_chart(data),
        difference_charts.rule_chart(data),
    )
    control = difference_charts.control_chart(data)
    named = difference_charts.named_chart(data)
    spending = spending_frontier.flops_chart(data)
    outcomes = [detail_charts.outcome_chart(data)]
    if any(cell.summary["outcomes"][name] for cell in data.cells for name in ("stuck", "diverged")):
        outcomes.append(difference_charts.final_loss_chart(data, trained_only=True))
    return {
        "curves": curve_charts.loss_curve_charts(data),
        "differences": [chart for chart in differences if chart],
        "control": [control] if control else [],
        "named": [named] if named else [],
        "spending": [spending] if spending else [],
        "outcomes": outcomes,
        "visits": detail_charts.visit_charts(data),
        "alignment": alignment_curve_charts(data),
        "tuning": tuning_charts(data),
    }


def _lead_and_rest(sentence: str) -> tuple[str, str]:
    lead, _, rest = sentence.partition(": ")
    return lead, rest


def _main_row(data: StudyData, cell: CellData) -> dict[str, Any]:
    """A cell with the two differences that are asked of it."""
    found: dict[str, Any] = {"looping": None, "rule": None}
    for pair in data.comparison["pairs"]:
        if (pair["a"]["arm"], pair["a"]["rounds"], pair["a"].get("budget")) == (cell.arm, cell.rounds, cell.budget):
            found[pair["question"]] = pair
    return {
        "cell": cell.summary,
        "series": data.arms.index(cell.arm) % len(charts.SERIES_COLORS),
        "is_baseline": cell.arm == data.comparison["baseline"],
        **found,
    }


def _group_row(cell: CellData) -> dict[str, Any] | None:
    """Share of clipped steps and distance from initialization by role, averaged over the runs that know them."""
    measured = [run.training["groups"]["groups"] for run in cell.runs if run.training["groups"]]
    if not measured:
        return None
    clipped = [run.training["optimization"]["share_clipped"] for run in cell.runs]
    return {
        "arm": cell.arm,
        "rounds": cell.rounds,
        "budget": cell.budget,
        "num_runs": len(measured),
        "share_clipped": _mean(clipped),
        "distance": {
            role: _mean(groups[role]["distance_from_init"] for groups in measured if role in groups)
            for role in measured[0]
        },
    }


def _scales_row(cell: CellData) -> dict[str, Any] | None:
    if not cell.runs:
        return None
    training = cell.runs[0].training
    told_apart = {"arm": cell.arm, "rounds": cell.rounds, "budget": cell.budget}
    return {**told_apart, "model": training["model"], "plan": training["plan"]}


def _versions(data: StudyData) -> dict[str, str]:
    """Each version the runs were made with, all of them where they differ."""
    found: dict[str, list[str]] = {}
    for cell in data.cells:
        for run in cell.runs:
            for package, version in run.training["versions"].items():
                if version not in found.setdefault(package, []):
                    found[package].append(version)
    return {package: ", ".join(versions) for package, versions in found.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _first(values: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    return next(iter(values), None)

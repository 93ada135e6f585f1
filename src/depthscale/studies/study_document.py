"""``study.json``: written before the first run, and changed afterwards only by what is recorded in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate
from depthscale.runs.layout import CONFIG_FILE, RUNS, STUDY_FILE, run_name
from depthscale.runs.results import result_path
from depthscale.runs.study_config import CellRate, StudyFile
from depthscale.runs.study_json import require_no_run, timestamp, write_study_json
from depthscale.studies.study_runs import STUDY_SCHEMA_VERSION, planned_file, read_study_document

STOPPING_RULE = (
    "Every run of the listed cells and seeds is made once, to its last step or to its divergence. No run is added,"
    " repeated or left out after results are seen; what is added later stands under later_additions, with its time."
)

#: What a study may be given more of after it began; anything else makes it another study.
_MAY_GROW = ("arms", "seeds", "rounds", "comparisons")


def planned_study(directory: Path, asked: StudyFile) -> tuple[StudyFile, dict[str, Any]] | None:
    """The study that ``study.json`` of the directory plans, if there is one, as resolved when it was written.

    Raises:
        ResultError: the directory belongs to a run, to another study, or to this one with less in it.
    """
    if not (directory / STUDY_FILE).exists():
        require_no_run(directory)
        return None
    document = read_study_document(directory)
    before = _as_asked(directory, document)
    if not _same(directory, document, before, asked):
        grown = _grown(before, asked)
        if not grown:
            raise ResultError(f"{directory} holds another study; choose another --out, or give that study's settings")
        raise ResultError(
            f"{directory} holds this study without {_listed(grown)}; give --add to record them as a later addition,"
            " or choose another --out"
        )
    return planned_file(directory, document), document


def write_study(
    directory: Path, file: StudyFile, asked: StudyFile | None = None, matched: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Write ``study.json`` of a new study; one that is there already and plans the same is left as it is.

    Args:
        file: the study as it will run.
        asked: the study as it was given, before matched steps were computed; default ``file``.
        matched: how the matched steps came about.

    Raises:
        ResultError: the directory belongs to another study.
    """
    planned = planned_study(directory, asked or file)
    if planned is not None:
        return planned[1]
    document = {
        "kind": "study",
        "schema_version": STUDY_SCHEMA_VERSION,
        "name": file.study.name,
        "created": timestamp(),
        "stopping_rule": STOPPING_RULE,
        "asked": _plain(asked or file),
        "config": _plain(file),
        "cells": cell_entries(file),
        "matched_steps": list(matched),
        "later_additions": [],
    }
    write_study_json(directory, document)
    return document


def add_to_study(
    directory: Path, file: StudyFile, asked: StudyFile, matched: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Record what ``asked`` has more than the study in the directory, with the time and the number of results seen.

    What is there already is not added again, so that the same call goes on after an interruption.

    Raises:
        ResultError: there is no study, or ``asked`` differs in more than additions.
    """
    document = read_study_document(directory)
    before = _as_asked(directory, document)
    if _same(directory, document, before, asked):
        return document
    if not _grown(before, asked):
        raise ResultError(
            f"{directory} holds another study; --add takes the study's own settings with more {', '.join(_MAY_GROW)}"
        )
    known = {_key(entry) for entry in document["cells"]}
    cells = cell_entries(file)
    seen = sum(result_path(path, "training").exists() for path in (directory / RUNS).glob("*"))
    addition = {
        "time": timestamp(),
        "results_before": seen,
        "tuned_apart": True,
        "seeds": [seed for seed in asked.study.seeds if seed not in before.study.seeds],
        "cells": [list(_key(entry)) for entry in cells if _key(entry) not in known],
        "comparisons": [
            comparison.model_dump(mode="json", exclude_none=True)
            for comparison in asked.study.comparisons
            if comparison not in before.study.comparisons
        ],
    }
    document |= {
        "asked": _plain(asked),
        "config": _plain(file),
        "cells": cells,
        "matched_steps": [*document.get("matched_steps", []), *matched],
        "later_additions": [*document.get("later_additions", []), addition],
    }
    write_study_json(directory, document)
    return document


def with_what_is_settled(directory: Path, asked: StudyFile) -> StudyFile:
    """``asked`` with what the directory's study has settled: steps of its matched arms, and the rates of its cells."""
    settled = planned_file(directory, read_study_document(directory)).study
    matched = {arm.name: arm for arm in settled.arms if arm.match}
    arms = tuple(matched.get(arm.name, arm) for arm in asked.study.arms)
    cells = {(rate.arm, rate.rounds) for rate in settled.rates}
    rates = settled.rates + tuple(rate for rate in asked.study.rates if (rate.arm, rate.rounds) not in cells)
    return asked.with_study(arms=arms, rates=rates)


def cells_tuned_apart(directory: Path) -> list[set[tuple[str, int]]]:
    """(arm, rounds) of the cells that each later addition brought; the first version tuned them with all others."""
    additions = read_study_document(directory).get("later_additions", [])
    return [
        {(arm, rounds) for arm, rounds, *_ in addition.get("cells", [])}
        for addition in additions
        if addition.get("tuned_apart")
    ]


def set_rates(directory: Path, file: StudyFile, rates: Sequence[CellRate]) -> StudyFile:
    """The study with the rates that tuning chose, in ``study.json`` as well.

    Raises:
        ResultError: a run was begun at another rate; nothing is changed then.
    """
    tuned = file.with_study(rates=tuple(rates))
    if begun := _begun_at_another_rate(directory, tuned):
        raise ResultError(
            f"{directory} holds runs at rates that tuning did not choose ({', '.join(begun[:6])}"
            f"{' and more' if len(begun) > 6 else ''}); delete their folders in runs/ and give the same command again,"
            " tuning runs are kept"
        )
    document = read_study_document(directory)
    if planned_file(directory, document) != tuned:
        chosen = {"config": _plain(tuned), "cells": cell_entries(tuned), "rates_chosen": timestamp()}
        write_study_json(directory, document | chosen)
    return tuned


def cell_entries(file: StudyFile) -> list[dict[str, Any]]:
    """One entry a cell: what it is, how long it trains, its rate and where that came from."""
    entries = []
    for cell in file.study.cells():
        chosen = file.cell_rate(cell.arm, cell.rounds)
        train = file.cell_config(cell, seed=file.study.seeds[0]).train
        entries.append(
            {
                **cell._asdict(),
                "steps": train.steps,
                "lr": train.lr,
                "weight_decay": train.weight_decay,
                "lr_source": chosen.source if chosen else "base configuration",
            }
        )
    return entries


def _begun_at_another_rate(directory: Path, file: StudyFile) -> list[str]:
    begun = []
    for cell in file.study.cells():
        for seed in file.study.seeds:
            name = run_name(cell.arm, cell.rounds, seed, cell.budget)
            path, planned = directory / RUNS / name / CONFIG_FILE, file.cell_config(cell, seed).train
            if path.exists():
                found = validate(RunConfig, read_toml(path), str(path)).train
                if (found.lr, found.weight_decay) != (planned.lr, planned.weight_decay):
                    begun.append(name)
    return begun


def _grown(before: StudyFile, after: StudyFile) -> dict[str, list[Any]]:
    """What ``after`` has more than ``before``; empty where they differ in anything else, or not at all."""
    arms = [arm for arm in after.study.arms if arm.name in {known.name for known in before.study.arms}]
    cells = {(cell.arm, cell.rounds) for cell in before.study.cells()}
    rates = tuple(rate for rate in after.study.rates if (rate.arm, rate.rounds) in cells)
    known = {name: getattr(before.study, name) for name in _MAY_GROW if name != "arms"}
    if _unsourced(after.with_study(**known, arms=tuple(arms), rates=rates)) != _unsourced(before):
        return {}
    more = {
        name: [item for item in getattr(after.study, name) if item not in getattr(before.study, name)]
        for name in _MAY_GROW
    }
    kept = all(set(getattr(before.study, name)) <= set(getattr(after.study, name)) for name in ("seeds", "rounds"))
    kept &= all(comparison in after.study.comparisons for comparison in before.study.comparisons)
    return {name: items for name, items in more.items() if items} if kept else {}


def _listed(grown: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(
        f"{name} {[getattr(item, 'name', item) for item in items]}" if name != "comparisons" else "comparisons"
        for name, items in grown.items()
    )


def _as_asked(directory: Path, document: Mapping[str, Any]) -> StudyFile:
    return validate(StudyFile, document.get("asked", document["config"]), str(directory / STUDY_FILE))


def _same(directory: Path, document: Mapping[str, Any], before: StudyFile, asked: StudyFile) -> bool:
    if _unsourced(before) == _unsourced(asked):
        return True
    # A study of an earlier version that was tuned kept the chosen rates only, not those it was given.
    tuned = "asked" not in document and result_path(directory, "tuning").exists()
    return tuned and before.with_study(rates=()) == asked.with_study(rates=())


def _unsourced(file: StudyFile) -> StudyFile:
    """The study without words on where its rates came from, which make it no other study."""
    rates = [rate.model_copy(update={"source": "", "at_edge": False}) for rate in file.study.rates]
    return file.with_study(rates=tuple(rates))


def _key(entry: Mapping[str, Any]) -> CellKey:
    return CellKey(entry["arm"], entry["rounds"], entry.get("budget"))


def _plain(file: StudyFile) -> dict[str, Any]:
    return file.model_dump(mode="json", exclude_none=True)

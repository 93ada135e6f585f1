"""A study directory as plain data: its plan in ``study.json`` and the runs that have a result.

A study is refused where its runs cannot be compared at all (mixed corpora or tokenizers, a result that belongs
to another seed); everything else that a reader should know becomes a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.config_file import validate
from depthscale.runs.layout import METRICS_FILE, RUNS, STUDY_FILE, run_name
from depthscale.runs.metrics import read_metrics
from depthscale.runs.one_text import require_one_text
from depthscale.runs.results import read_result, result_path
from depthscale.runs.study_config import StudyFile
from depthscale.runs.study_json import read_study_json
from depthscale.studies.words import cell_label

#: Version 2 has budgets, matched steps and arms with rounds of their own; version 1 is read as it is.
STUDY_SCHEMA_VERSION = 2

#: The split that results are reported on; learning rates are chosen on another.
REPORT_SPLIT = "report"


@dataclass(frozen=True)
class StudyRun:
    """One run that has a result.

    Attributes:
        seed: of initial weights and data order; runs of two arms with one seed are a pair.
        loss_nats: loss on the report split; finite, see ``imputed``.
        imputed: the run diverged, and ``loss_nats`` is the larger of its last finite loss and the uniform loss ln V:
            weights that happen to be left from before it broke are no achievement.
        bits_per_byte: of the same loss, None where it is not known.
        training: the run's training result as read.
        directory: relative to the study.
    """

    seed: int
    loss_nats: float
    imputed: bool
    bits_per_byte: float | None
    training: dict[str, Any]
    directory: str

    @property
    def outcome(self) -> str:
        """``finished``, ``stuck`` or ``diverged``."""
        return str(self.training["outcome"])

    @property
    def planned_tokens(self) -> int:
        """Tokens of the whole run, also where it diverged before its end."""
        if not self.training["step"]:
            return 0
        return int(self.training["tokens"]) * int(self.training["steps_planned"]) // int(self.training["step"])


@dataclass(frozen=True)
class StudyCell:
    """One arm at one number of rounds, and one budget where there are several: its rate, and its runs by seed.

    Attributes:
        added_later: the cell is no part of the study as it was first planned.
        weight_seed_shift: what its runs' seed of initial weights is ahead of the seed of the data order.
    """

    key: CellKey
    lr: float
    lr_source: str
    runs: dict[int, StudyRun]
    added_later: bool = False
    weight_seed_shift: int = 0

    @property
    def arm(self) -> str:
        """Name of the arm."""
        return self.key.arm

    @property
    def rounds(self) -> int:
        """R."""
        return self.key.rounds

    @property
    def budget(self) -> int | None:
        """Steps of the base run at this budget; None where the study has one."""
        return self.key.budget

    @property
    def label(self) -> str:
        """Such as "deeploop at R = 4"."""
        return cell_label(self.key)

    @property
    def names(self) -> dict[str, Any]:
        """What tells the cell in a result file."""
        return {"arm": self.arm, "rounds": self.rounds} | ({"budget": self.budget} if self.budget else {})


@dataclass(frozen=True)
class Study:
    """A study's plan and its cells, in the order of ``study.json``."""

    directory: Path
    document: dict[str, Any]
    file: StudyFile
    cells: tuple[StudyCell, ...]

    def cell(self, arm: str, rounds: int, budget: int | None = None) -> StudyCell | None:
        """The cell of that arm, number of rounds and budget, if the study has it."""
        return next((cell for cell in self.cells if cell.key == (arm, rounds, budget)), None)

    @property
    def budgets(self) -> tuple[int | None, ...]:
        """Its budgets in steps of the base run, ascending; None alone where it has one."""
        return tuple(sorted(self.file.study.budgets)) or (None,)

    @property
    def additions(self) -> list[dict[str, Any]]:
        """What was added after the study was first planned; see :func:`later_additions`."""
        return later_additions(self.document)

    @property
    def seeds_added_later(self) -> list[int]:
        """Seeds that are no part of the study as it was first planned."""
        return [seed for addition in self.additions for seed in addition.get("seeds", [])]

    def runs(self) -> Iterator[StudyRun]:
        """Every run that has a result, cell by cell."""
        for cell in self.cells:
            yield from cell.runs.values()


def read_study_document(directory: Path) -> dict[str, Any]:
    """``study.json`` of a study directory.

    Raises:
        ResultError: the file is missing, damaged, of another kind, or newer than this version of depthscale.
    """
    document = read_study_json(directory, "study", "compare", STUDY_SCHEMA_VERSION)
    missing = [key for key in ("name", "config", "cells") if key not in document]
    if missing:
        raise ResultError(f"{directory / STUDY_FILE} lacks {', '.join(missing)}; run the study again")
    return document


def later_additions(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was added to a study: of each addition ``time``, ``results_before``, ``seeds``, ``cells``, ``comparisons``.

    The first version counted the comparisons instead of keeping them; they are the last of the study's.
    """
    known = list(document["config"]["study"].get("comparisons", []))
    additions = []
    for addition in reversed(document.get("later_additions", [])):
        added = addition.get("comparisons", [])
        number = added if isinstance(added, int) else len(added)
        own = known[len(known) - number :] if isinstance(added, int) else added
        additions.append({**addition, "comparisons": own})
        known = known[: len(known) - number]
    return additions[::-1]


def planned_file(directory: Path, document: dict[str, Any]) -> StudyFile:
    """The study as ``study.json`` says that it runs.

    Raises:
        ResultError: somebody wrote into it: its parts contradict one another.
    """
    path = directory / STUDY_FILE
    file = validate(StudyFile, document["config"], str(path))
    asked = validate(StudyFile, document.get("asked", document["config"]), str(path))
    try:
        listed = [CellKey(entry["arm"], entry["rounds"], entry.get("budget")) for entry in document["cells"]]
        whole = all(isinstance(entry["lr"], float | int) and entry["lr_source"] for entry in document["cells"])
    except (AttributeError, KeyError, TypeError):
        listed, whole = [], False
    if not whole or set(listed) != set(file.study.cells()) or _as_given(file) != _as_given(asked):
        raise ResultError(
            f"{path} was changed by hand: its cells, its config and what was asked do not agree; put back the file as"
            " it was, and change a study with --add only"
        )
    return file


def _as_given(file: StudyFile) -> StudyFile:
    """The study without what is computed for it: rates that tuning chose, steps of matched arms."""
    arms = tuple(
        arm.model_copy(update={"train": {name: value for name, value in arm.train.items() if name != "steps"}})
        if arm.match
        else arm
        for arm in file.study.arms
    )
    return file.with_study(arms=arms, rates=())


def read_study(directory: Path) -> Study:
    """A study and every run of it that has a training result.

    Raises:
        ResultError: the study or a result is damaged, no run has a result, a result belongs to another seed, or
            the runs read different text or tokenizers.
    """
    document = read_study_document(directory)
    file = planned_file(directory, document)
    later = {tuple(cell) for addition in later_additions(document) for cell in addition.get("cells", [])}
    cells = tuple(_read_cell(directory, file, entry, later) for entry in document["cells"])
    study = Study(directory, document, file, cells)
    if not any(True for _ in study.runs()):
        raise ResultError(f"no run under {directory / 'runs'} has a result yet; run the study first")
    require_one_text(
        f"the runs of {directory}",
        ((run.directory, run.training["data"]) for run in study.runs()),
        "delete the odd ones and run the study again",
    )
    return study


def _read_cell(directory: Path, file: StudyFile, entry: dict[str, Any], later: set[tuple[Any, ...]]) -> StudyCell:
    key = CellKey(entry["arm"], entry["rounds"], entry.get("budget"))
    shift = file.study.arm(key.arm).weight_seed_shift
    found = {seed: _read_run(directory, run_name(key.arm, key.rounds, seed, key.budget), seed, shift)
             for seed in file.study.seeds}  # fmt: skip
    runs = {seed: run for seed, run in found.items() if run is not None}
    return StudyCell(key, entry["lr"], entry["lr_source"], runs, tuple(key) in later, shift)


def _read_run(study_directory: Path, name: str, seed: int, weight_seed_shift: int) -> StudyRun | None:
    directory = study_directory / RUNS / name
    if not result_path(directory, "training").exists():
        return None
    training = read_result(directory, "training")
    if training["seed"] != seed + weight_seed_shift or training["data_seed"] != seed:
        expected = f"{seed} for both" if not weight_seed_shift else f"{seed + weight_seed_shift} and {seed}"
        raise ResultError(
            f"{directory} holds seed {training['seed']} and data seed {training['data_seed']}, expected {expected};"
            " delete the folder and run the study again"
        )
    final = training["final"][REPORT_SPLIT]
    loss = final["loss_nats"]
    imputed = training["outcome"] == "diverged" or loss is None
    if imputed:
        loss = _loss_of_lost_run(directory, loss, training["uniform_loss_nats"])
    return StudyRun(
        seed, loss, imputed, None if imputed else final["bits_per_byte"], training, f"runs/{directory.name}"
    )


def _loss_of_lost_run(directory: Path, final_loss: float | None, uniform_loss_nats: float) -> float:
    """What a diverged run counts as: never better than a model that knows nothing."""
    last = final_loss
    if last is None:
        for record in read_metrics(directory / METRICS_FILE):
            if record.get("kind") == "evaluation" and record.get("loss_nats") is not None:
                last = record["loss_nats"]
    return uniform_loss_nats if last is None else max(last, uniform_loss_nats)


def read_tuning(study_directory: Path) -> dict[str, Any] | None:
    """``results/tuning.json``, or None where the rates were not tuned in this study.

    Raises:
        ResultError: the file is damaged.
    """
    if not result_path(study_directory, "tuning").exists():
        return None
    return read_result(study_directory, "tuning")

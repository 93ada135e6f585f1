"""Jobs: repeatable bit for bit, resumable, milestones that are whole runs, and what is recorded of odd students."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from depthscale.errors import CheckpointError, ConfigError, ResultError, RunInterruptedError
from depthscale.runs.config_file import validate
from depthscale.runs.interruption import Interruption
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result
from depthscale.toy.checkpoint import STATE_FILE
from depthscale.toy.config import ToyJob, ToyStudy, presets, read_study
from depthscale.toy.job import JobRunner

TINY: dict[str, Any] = {
    "name": "tiny",
    "teacher": {"rho": 1.0, "blocks": 6, "width": 16, "hidden": 32, "classes": 8, "seeds": [0, 1]},
    "loss": {"kind": "kl_own_head", "temperatures": [0.2, 1.0]},
    "train": {
        "steps": 20,
        "batch": 16,
        "rate": 1e-2,
        "rate_exponent": 0.5,
        "schedule": "flat_then_linear",
        "milestones": [5, 10],
        "test_batches": 2,
        "test_batch": 64,
    },
    "students": [
        {"name": "plain", "depths": [2, 4]},
        {"name": "second_order", "order": 2, "depths": [2]},
        {"name": "looped", "blocks": 1, "depths": [4], "rule": "smelt"},
    ],
}


def settings(**changes: Any) -> ToyJob:
    tables = {**TINY, **{key: value for key, value in changes.items() if key not in ("train", "loss", "teacher")}}
    for part in ("train", "loss", "teacher"):
        tables[part] = {**TINY[part], **changes.get(part, {})}
    return validate(ToyJob, tables, "test")


def run(job: ToyJob, directory: Path) -> dict[str, Any]:
    JobRunner(job, directory).run(Interruption(), lambda step, text: None)
    return read_result(directory, "toy_job")


def measured(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that is measured of students and teachers, without times."""
    return [*result["students"], *result["teachers"]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(settings(), tmp_path_factory.mktemp("whole"))


def test_a_rerun_is_bit_for_bit_the_same(whole: dict[str, Any], tmp_path: Path) -> None:
    assert measured(run(settings(), tmp_path)) == measured(whole)


def test_losses_fall_and_everything_is_recorded(whole: dict[str, Any], tmp_path: Path) -> None:
    assert len(whole["students"]) == 4 * 4
    for record in whole["students"]:
        assert record["outcome"] == "finished"
        assert record["losses"]["report"]["20"] < record["losses"]["report"]["5"] < record["loss_untrained"]
    looped = next(r for r in whole["students"] if r["family"] == "looped")
    plain = next(r for r in whole["students"] if r["family"] == "plain" and r["depth"] == 4)
    assert 4 * looped["num_parameters"] == plain["num_parameters"]
    # Visits of one block cannot be swapped with each other; plain neighbors can.
    assert looped["tolerance"]["swap"] is None
    assert plain["tolerance"]["swap"] > 0


def test_an_interrupted_job_goes_on_bit_for_bit(whole: dict[str, Any], tmp_path: Path) -> None:
    interruption = Interruption()

    def stop_at_seven(step: int, text: str) -> None:
        if step == 7:
            interruption.signal_number = signal.SIGTERM

    with pytest.raises(RunInterruptedError, match="interrupted at step 7"):
        JobRunner(settings(), tmp_path).run(interruption, stop_at_seven)
    assert (tmp_path / STATE_FILE).exists()
    assert measured(run(settings(), tmp_path)) == measured(whole)
    assert not (tmp_path / STATE_FILE).exists()
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 21))


def test_state_of_other_settings_or_damaged_is_refused(tmp_path: Path) -> None:
    interruption = Interruption()
    interruption.signal_number = signal.SIGINT
    with pytest.raises(RunInterruptedError):
        JobRunner(settings(), tmp_path).run(interruption, lambda step, text: None)
    with pytest.raises(CheckpointError, match="other settings"):
        run(settings(train={"rate": 2e-2}), tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"cut short")
    with pytest.raises(CheckpointError, match="damaged"):
        run(settings(), tmp_path)


def test_a_milestone_is_the_result_of_a_run_meant_to_end_there(whole: dict[str, Any], tmp_path: Path) -> None:
    short = run(settings(train={"steps": 10, "milestones": [5]}), tmp_path)
    for a, b in zip(short["students"], whole["students"], strict=True):
        assert a["losses"]["report"]["10"] == b["losses"]["report"]["10"]
        assert a["losses"]["report"]["5"] == b["losses"]["report"]["5"]
        assert a["losses"]["report"]["10"] != b["losses"]["report"]["20"]


def test_a_replicate_does_not_depend_on_the_job_it_is_in(whole: dict[str, Any], tmp_path: Path) -> None:
    students = [{"name": "plain", "depths": [4]}]
    alone = run(settings(teacher={"seeds": [1]}, loss={"temperatures": [1.0]}, students=students), tmp_path)
    (record,) = alone["students"]
    same = [
        r
        for r in whole["students"]
        if (r["family"], r["depth"], r["teacher_seed"], r["temperature"]) == ("plain", 4, 1, 1.0)
    ]
    assert [record] == same


def test_a_diverging_replicate_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    students = [{"name": "plain", "depths": [2], "rate_factors": [1.0, 1e40]}]
    result = run(settings(loss={"kind": "mse", "temperatures": [1.0]}, students=students), tmp_path)
    by_factor = {r["rate_factor"]: r for r in result["students"] if r["teacher_seed"] == 0}
    assert by_factor[1.0]["outcome"] == "finished"
    assert by_factor[1e40]["outcome"] == "diverged"
    assert by_factor[1e40]["diverged_at"] is not None
    assert by_factor[1e40]["signature"] is None


def test_students_deeper_than_the_teacher_are_allowed_and_said(tmp_path: Path) -> None:
    result = run(settings(students=[{"name": "plain", "depths": [4, 8]}]), tmp_path)
    assert {(r["depth"], r["deeper_than_teacher"]) for r in result["students"]} == {(4, False), (8, True)}


def test_close_milestones_leave_together_and_each_has_its_result(tmp_path: Path) -> None:
    # Runs of 4 and of 5 steps both lower their rate at step 3 for the first time.
    close = {"flat_share": 0.5, "steps": 10, "milestones": [4, 5]}
    both = run(settings(train=close), tmp_path / "both")
    for end in (4, 5):
        alone = run(settings(train={**close, "steps": end, "milestones": []}), tmp_path / str(end))
        for a, b in zip(alone["students"], both["students"], strict=True):
            assert a["losses"]["report"][str(end)] == b["losses"]["report"][str(end)]


def test_a_job_that_is_asked_to_end_amid_a_milestones_run_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = settings(train={"flat_share": 0.2})
    unbroken = run(job, tmp_path / "unbroken")
    interruption, update = Interruption(), JobRunner._update
    updates: list[tuple[int, int]] = []

    def asked_to_end(runner: JobRunner, step: int, end: int) -> Any:
        updates.append((step, end))
        if (step, end) == (5, 10):
            interruption.signal_number = signal.SIGTERM
        return update(runner, step, end)

    with monkeypatch.context() as patched:
        patched.setattr(JobRunner, "_update", asked_to_end)
        # The run of 10 steps leaves at step 3.
        with pytest.raises(RunInterruptedError, match="interrupted at step 3"):
            JobRunner(job, tmp_path / "broken").run(interruption, lambda step, text: None)
    assert updates[-1] == (5, 10)
    assert measured(run(job, tmp_path / "broken")) == measured(unbroken)


def test_students_that_hardly_move_have_not_diverged(tmp_path: Path) -> None:
    result = run(settings(train={"steps": 1, "milestones": [], "rate": 1e-30, "test_batches": 4}), tmp_path)
    assert {record["outcome"] for record in result["students"]} == {"finished"}


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="choose another --out"):
        run(settings(), tmp_path / "file" / "job")


def test_names_of_jobs_are_distinct() -> None:
    def case(name: str, family: str, depths: list[int]) -> dict[str, Any]:
        return {**TINY, "name": name, "students": [{"name": family, "depths": depths}]}

    cases = [case("x", "1", [2, 3, 4]), case("x-1", "2", [3, 4])]
    with pytest.raises(ConfigError, match="names of jobs"):
        validate(ToyStudy, {"name": "study", "depths_per_job": 3, "cases": cases}, "test")


@pytest.mark.parametrize("name", ["..", "../up", "a/b", "with[/markup]", ""])
def test_names_that_no_folder_or_page_should_have_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        settings(name=name)
    with pytest.raises(ConfigError, match="name"):
        validate(ToyStudy, {"name": name, "cases": [TINY]}, "test")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": {"temperatures": [0.0]}}, "temperature of 0"),
        ({"loss": {"temperatures": [-1.0, 1.0]}}, "temperature of -1"),
        ({"loss": {"kind": "mse"}}, "no meaning for kind 'mse'"),
        ({"loss": {"kind": "kl"}}, "kl_own_head"),
        ({"teacher": {"rho": 1.5}}, "teacher.rho = 1.5"),
        ({"teacher": {"seeds": [0, 0]}}, "each once"),
        ({"train": {"milestones": [20]}}, "expected steps below 20"),
        ({"train": {"step": 3}}, "did you mean 'train.steps'"),
        ({"train": {"rate": float("inf")}}, "finite number"),
        ({"train": {"rate_exponent": float("nan")}}, "finite number"),
        ({"loss": {"temperatures": [float("inf")]}}, "finite number"),
        ({"students": [{"name": "plain", "depths": [2], "rate_factors": [float("nan")]}]}, "finite number"),
        ({"students": [{"name": "plain", "depths": [0]}]}, "depth of 0"),
        ({"students": [{"name": "l", "depths": [5], "blocks": 2}]}, "no whole number of rounds"),
        ({"students": [{"name": "l", "depths": [4], "blocks": 2, "rule": "deeploop"}]}, "pre-norm"),
    ],
)
def test_bad_settings_are_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match="test: ") as caught:
        settings(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_presets_are_sound_and_paper_is_the_papers() -> None:
    assert list(presets()) == ["paper", "quick", "standard"]
    studies = {name: read_study(name, []) for name in presets()}
    paper = {case.name: case for case in studies["paper"].cases}
    grid = paper["kl_tied"]
    assert len(grid.loss.temperatures) == 16
    assert grid.loss.temperatures[0] == pytest.approx(0.01)
    assert grid.loss.temperatures[1] == pytest.approx(10 ** (-2 + 2 / 15))
    assert grid.loss.temperatures[-1] == 1.0
    assert grid.train.steps == 40_000
    assert grid.train.rate_at(39_999, 40_000) == 6e-4
    assert grid.students[0].depths == (6, 12, 16, 24, 32, 48)
    long = paper["kl_tied_long"]
    assert (long.train.steps, long.train.rate, long.train.rate_exponent) == (80_000, 2.4e-3, 0.5)
    assert long.train.rate_at(63_999, 80_000) == 2.4e-3
    assert long.train.rate_at(79_999, 80_000) == pytest.approx(2.4e-4, rel=1e-3)
    for case in paper.values():
        assert case.train.batch == 1024
        assert case.teacher.seeds == (0, 1, 2)
    # Six jobs a case, so that many machines can share them.
    assert len(studies["paper"].jobs()) == 6 * sum(len(case.students) for case in studies["paper"].cases)
    for name in ("quick", "standard"):
        kinds = {(case.teacher.rho, case.loss.kind) for case in studies[name].cases}
        assert {(0.0, "mse"), (1.0, "mse")} < kinds
        families = {family.name for case in studies[name].cases for family in case.students}
        assert families == {"plain", "second_order", "looped"}
        for case in studies[name].cases:
            for family in case.students:
                assert len(family.depths) >= 6
                assert family.depths[-1] >= 8 * family.depths[0]
            assert case.train.steps // 2 in case.train.milestones

"""From job results to curves, one summary and one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthscale.errors import ResultError
from depthscale.reports.toy_report import build_toy_report
from depthscale.runs.config_file import validate
from depthscale.runs.results import write_result
from depthscale.toy.config import ToyStudy
from depthscale.toy.curves import make_curves
from depthscale.toy.summary import JOBS, summarize

DEPTHS = (2, 3, 4, 6, 8, 16)


def study(**changes: Any) -> ToyStudy:
    case = {
        "name": "mse_tied",
        "teacher": {"rho": 1.0, "blocks": 128, "seeds": [0, 1]},
        "loss": {"kind": "mse"},
        "train": {"steps": 100, "rate": 1e-3, "milestones": [50]},
        "students": [{"name": "plain", "depths": DEPTHS}, {"name": "looped", "blocks": 1, "depths": DEPTHS}],
        **changes,
    }
    return validate(ToyStudy, {"name": "test", "cases": [case]}, "test")


def signature() -> dict[str, Any]:
    keys = ("norm_start", "norm_end", "step_norm", "turn", "update_angle", "whole_turn")
    profile = {"norm": [1.0, 1.0], "step_norm": [1.0], "turn": [0.1], "update_angle": [1.5, 1.6]}
    return {**dict.fromkeys(keys, 1.5), "profile": profile}


def result(file: ToyStudy, constants: dict[str, float], late: float = 0.95) -> dict[str, Any]:
    """Losses constants[family] / depth, a little apart between seeds, which fall by ``late`` over the second half."""
    job = file.cases[0]
    students = []
    for family in job.students:
        for depth in family.depths:
            for factor in family.rate_factors:
                for seed in job.teacher.seeds:
                    shape = family.shape(depth)
                    noise = 1 + 0.01 * np.sin(depth + seed)
                    loss = constants[family.name] / depth * noise * (1 + abs(np.log(factor)))
                    splits = ("report", "tuning") if len(family.rate_factors) > 1 else ("report",)
                    students.append(
                        {
                            "family": family.name,
                            "depth": depth,
                            "blocks": shape.blocks,
                            "rounds": shape.rounds,
                            "order": shape.order,
                            "rule": shape.rule,
                            "num_parameters": shape.num_parameters(32, 128),
                            "rate_factor": factor,
                            "teacher_seed": seed,
                            "temperature": None,
                            "seed": 0,
                            "outcome": "finished",
                            "losses": {split: {"50": loss / late, "100": loss} for split in splits},
                            "signature": signature(),
                            "tolerance": {"swap": 1.1, "removal": 2.0},
                        }
                    )
    return {
        "name": job.name,
        "job": job.model_dump(mode="json"),
        "ends": [50, 100],
        "signature_inputs": 64,
        "teachers": [{"seed": seed, **signature()} for seed in job.teacher.seeds],
        "students": students,
        "seconds": 1.0,
        "updates": 10,
    }


def written(directory: Path, file: ToyStudy, data: dict[str, Any]) -> dict[str, Any]:
    write_result(directory / JOBS / "mse_tied", "toy_job", data)
    summary = summarize(directory, file)
    write_result(directory, "toy", summary)
    return summary


def test_the_summary_fits_compares_and_draws(tmp_path: Path) -> None:
    file = study()
    summary = written(tmp_path, file, result(file, {"plain": 1.0, "looped": 0.5}))
    plain, looped = summary["lines"]
    for line in (plain, looped):
        assert line["converged"]
        assert line["exponents"][-1]["lower"] <= 1.0 <= line["exponents"][-1]["upper"]
        assert line["num_replicates"] == 2
    row = next(row for row in summary["looped"] if row["depth"] == 8)
    assert (row["blocks"], row["rounds"]) == (1, 8)
    assert row["plain_loss_at_depth"] == pytest.approx(2 * row["loss"])
    assert row["plain_depth_that_reaches_it"] == 16
    assert row["plain_parameters_that_reach_it"] == 16 * row["num_parameters"]
    page = build_toy_report(tmp_path).read_text()
    for words in (plain["case"].replace("_", " "), "as ensemble averaging", "Looped students", "1 × 8", "<svg"):
        assert words in page
    assert (tmp_path / "figures" / "toy-steps-tied.csv").exists()


def test_losses_that_still_fall_have_not_converged(tmp_path: Path) -> None:
    file = study()
    summary = written(tmp_path, file, result(file, {"plain": 1.0, "looped": 0.5}, late=0.8))
    assert not summary["lines"][0]["converged"]
    assert summary["lines"][0]["fall"][2] == pytest.approx(0.2)
    assert "not decided" in summary["verdict"][0]
    assert "Not converged" in summary["verdict"][0]


def test_a_diverged_replicate_is_left_out_by_name(tmp_path: Path) -> None:
    file = study()
    data = result(file, {"plain": 1.0, "looped": 0.5})
    lost = next(r for r in data["students"] if (r["family"], r["depth"], r["teacher_seed"]) == ("plain", 6, 1))
    lost.update(outcome="diverged", signature=None, tolerance=None)
    summary = written(tmp_path, file, data)
    assert [line["num_replicates"] for line in summary["lines"]] == [1, 2]
    assert summary["lines"][0]["notes"] == ["teacher 1, seed 0 is left out: diverged or missing at depth 6"]


def test_all_diverged_has_no_exponent_and_is_still_reported(tmp_path: Path) -> None:
    file = study()
    data = result(file, {"plain": 1.0, "looped": 0.5})
    for record in data["students"]:
        record.update(outcome="diverged", signature=None, tolerance=None)
    summary = written(tmp_path, file, data)
    assert all("no exponent" in said for said in summary["verdict"])
    assert "every replicate diverged" in build_toy_report(tmp_path).read_text()


def test_rates_are_chosen_on_the_tuning_split_and_edges_are_said() -> None:
    students = [{"name": "plain", "depths": DEPTHS, "rate_factors": [0.5, 1.0, 2.0]}]
    file = study(students=students)
    data = result(file, {"plain": 1.0})
    for record in data["students"]:
        if record["depth"] == 8 and record["rate_factor"] == 2.0:
            # Best on the tuning split alone: what is reported must still be its loss on the report split.
            record["losses"]["tuning"]["100"] *= 1e-3
    (curve,) = make_curves([data])
    assert curve.rates == {2: 1.0, 3: 1.0, 4: 1.0, 6: 1.0, 8: 2.0, 16: 1.0}
    assert curve.notes == ("at depth 8 the best rate, 2 times the base, is at the edge of the grid",)
    reported = next(r for r in data["students"] if (r["depth"], r["rate_factor"], r["teacher_seed"]) == (8, 2.0, 0))
    assert curve.losses[-1, 0, 4] == reported["losses"]["report"]["100"]


def test_rates_are_chosen_among_the_replicates_that_no_rate_loses() -> None:
    students = [{"name": "plain", "depths": DEPTHS, "rate_factors": [0.5, 1.0, 2.0]}]
    file = study(students=students)
    data = result(file, {"plain": 1.0})
    for record in data["students"]:
        if (record["depth"], record["teacher_seed"]) == (8, 1):
            record.update(outcome="diverged", losses={split: {"50": None, "100": None} for split in record["losses"]})
    (curve,) = make_curves([data])
    assert curve.rates == dict.fromkeys(DEPTHS, 1.0)
    assert curve.losses.shape == (2, 1, len(DEPTHS))


def test_looped_students_stand_beside_plain_ones_of_their_own_temperature(tmp_path: Path) -> None:
    loss = {"kind": "kl_own_head", "temperatures": [0.1, 1.0]}
    factors = [0.5, 1.0, 2.0]
    students = [
        {"name": "plain", "depths": DEPTHS},
        {"name": "looped", "blocks": 1, "depths": DEPTHS, "rate_factors": factors},
    ]
    file = study(loss=loss, students=students)
    cold, warm = (result(file, {"plain": 1.0, "looped": 0.5}) for _ in range(2))
    for data, temperature in ((cold, 0.1), (warm, 1.0)):
        for record in data["students"]:
            record["temperature"] = temperature
            for losses in record["losses"].values():
                losses.update({end: temperature * value for end, value in losses.items()})
    summary = written(tmp_path, file, {**cold, "students": cold["students"] + warm["students"]})
    assert {row["temperature"] for row in summary["looped"]} == {0.1, 1.0}
    for row in summary["looped"]:
        assert row["plain_loss_at_depth"] == pytest.approx(2 * row["loss"])
    page = build_toy_report(tmp_path).read_text()
    assert "mse tied, looped, T = 0.1" in page
    assert "chosen from several for" in page


def test_students_deeper_than_their_teacher_are_said(tmp_path: Path) -> None:
    file = study(teacher={"rho": 1.0, "blocks": 8, "seeds": [0, 1]})
    summary = written(tmp_path, file, result(file, {"plain": 1.0, "looped": 0.5}))
    for line in summary["lines"]:
        assert line["notes"] == ["deeper than the teacher of 8 blocks: students of depth 16"]
    assert "deeper than the teacher of 8 blocks" in build_toy_report(tmp_path).read_text()


def test_teachers_of_another_size_have_a_row_of_their_own(tmp_path: Path) -> None:
    first = study().cases[0]
    other = first.model_copy(update={"name": "small", "teacher": first.teacher.model_copy(update={"blocks": 32})})
    file = ToyStudy(name="test", cases=(first, other))
    for case in file.cases:
        data = result(ToyStudy(name="test", cases=(case,)), {"plain": 1.0, "looped": 0.5})
        write_result(tmp_path / JOBS / case.name, "toy_job", data)
    assert [row["blocks"] for row in summarize(tmp_path, file)["teachers"]] == [32, 128]


def test_a_study_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no job under"):
        summarize(tmp_path, study())

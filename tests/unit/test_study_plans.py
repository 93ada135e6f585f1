"""How a study plans before it runs: budgets and their branches, matched lengths, equal effort in tuning, prices."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic_study import write_synthetic_study
from tiny_run import write_corpus

from depthscale.cli.compare import compare
from depthscale.errors import ConfigError, ResultError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, write_toml
from depthscale.runs.metrics import append_metric
from depthscale.runs.results import read_result, write_result
from depthscale.runs.study_config import CellRate, StudyFile
from depthscale.studies import step_timing, tuning
from depthscale.studies.budgets import longest_first, planned_run
from depthscale.studies.comparison import compare_runs, write_comparison
from depthscale.studies.engine import Job
from depthscale.studies.matched_steps import with_matched_steps
from depthscale.studies.pricing import DEFAULT_SD_NATS, price
from depthscale.studies.run_cost import run_cost
from depthscale.studies.step_timing import StepTimes
from depthscale.studies.study import training_job
from depthscale.studies.study_document import (
    add_to_study,
    cells_tuned_apart,
    planned_study,
    set_rates,
    with_what_is_settled,
    write_study,
)
from depthscale.studies.study_runs import read_study
from depthscale.studies.unequal_tokens import unequal_planned_tokens

QUIET = Console(quiet=True)


def study(**changes: Any) -> StudyFile:
    tables: dict[str, Any] = {
        "plan": {"blocks": 2},
        "model": {"hidden_size": 32, "num_attention_heads": 2},
        "data": {"context_length": 64, "tokenizer": "bytes"},
        "train": {"steps": 100, "batch_rows": 4, "lr": 1e-3, "warmup_steps": 5, "eval_rows": 8},
        "study": {
            "name": "plans",
            "baseline": "pre",
            "rounds": [1, 4],
            "seeds": [1, 2, 3, 4, 5],
            "arms": [{"name": "pre"}],
        },
    }
    for part, values in changes.items():
        tables[part] = {**tables[part], **values}
    return validate(StudyFile, tables, "test")


LONGER = {"name": "longer", "rounds": [1], "match": {"spend": "flops", "arm": "pre", "rounds": 4}}
TIMED = {"name": "timed", "rounds": [1], "match": {"spend": "time", "arm": "pre", "rounds": 4}}


def test_a_matched_arm_spends_the_flops_of_its_rival_to_half_a_step() -> None:
    file, (note,) = with_matched_steps(study(study={"arms": [{"name": "pre"}, LONGER]}), vocab_size=257)
    long, looped = (
        run_cost(file.cell_config(CellKey(*key), 1), 257).training_flops for key in (("longer", 1), ("pre", 4))
    )
    step = note["per_step"]
    assert abs(long - looped) <= step / 2
    assert note["steps"] > 100
    assert file.cell_config(CellKey("longer", 1), 1).train.steps == note["steps"]


def test_rows_of_a_step_follow_from_the_global_batch() -> None:
    """A smaller forward pass is made more often: neither tokens nor matched steps know the difference."""
    train = {"batch_rows": 8, "global_batch_rows": 32}
    assert run_cost(study(train=train).cell_config(CellKey("pre", 1), 1), 257).tokens == 100 * 32 * 64
    steps = []
    for batch_rows in (8, 2):
        arm = {**LONGER, "train": {"batch_rows": batch_rows}}
        _, (note,) = with_matched_steps(study(train=train, study={"arms": [{"name": "pre"}, arm]}), 257)
        steps.append(note["steps"])
    assert steps[0] == steps[1]


def test_flops_of_random_rounds_are_not_matched_beforehand() -> None:
    drawn = {"rounds": {"distribution": "uniform", "maximum": 8}}
    with pytest.raises(ConfigError, match="those of rounds drawn at random are not known beforehand; match time"):
        with_matched_steps(study(train=drawn, study={"arms": [{"name": "pre"}, LONGER]}), 257)


def test_matched_time_follows_the_probe() -> None:
    asked = study(study={"arms": [{"name": "pre"}, TIMED]})
    file, _ = with_matched_steps(asked, 257, {CellKey("timed", 1): 0.02, CellKey("pre", 4): 0.07})
    assert file.cell_config(CellKey("timed", 1), 1).train.steps == 350
    with pytest.raises(ConfigError, match="not measured yet"):
        with_matched_steps(asked, 257)


def test_a_match_that_ends_within_the_warm_up_is_refused() -> None:
    arm = {**LONGER, "model": {"hidden_size": 512, "num_attention_heads": 8}}
    with pytest.raises(ConfigError, match=r"arm 'longer' may spend \d steps .* not beyond its warm-up of 5"):
        with_matched_steps(study(study={"arms": [{"name": "pre"}, arm]}), 257)


def test_shorter_budgets_branch_off_the_longest_run() -> None:
    file = study(train={"schedule": "wsd", "decay_fraction": 0.2}, study={"budgets": [50, 100]})
    trunk = planned_run(file, CellKey("pre", 4, 100), seed=3)
    branch = planned_run(file, CellKey("pre", 4, 50), seed=3)
    assert (trunk.train.steps, trunk.train.branch_at, trunk.branch) == (100, (40,), None)
    assert branch.train.steps == 50
    assert branch.train.stable_until == 40
    assert branch.branch is not None
    assert branch.branch.run == "../pre-r4-t100-s3"
    first, second = longest_first(file, file.study.cells())
    assert {cell.budget for cell in first} == {100}
    assert {cell.budget for cell in second} == {50}


def test_budgets_of_a_cosine_are_runs_of_their_own() -> None:
    file = study(study={"budgets": [50, 100]})
    assert all(planned_run(file, cell, 1).branch is None for cell in file.study.cells())
    assert [file.cell_config(CellKey("pre", 4, budget), 1).train.steps for budget in (50, 100)] == [50, 100]


@pytest.mark.parametrize(
    ("train", "budgets", "said"),
    [
        ({}, [4, 100], "budget 4: train: warmup_steps 5 is not below steps 4"),
        (
            {"schedule": "wsd", "decay_fraction": 0.5, "warmup_steps": 6},
            [10, 100],
            "budget 10: its decay would begin at step 5, within the warm-up of 6",
        ),
    ],
)
def test_a_budget_below_the_warm_up_is_one_line(train: dict[str, Any], budgets: list[int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study(train=train, study={"budgets": budgets})


# -- tuning ----------------------------------------------------------------------------------------------


def tuned(
    directory: Path,
    file: StudyFile,
    monkeypatch: pytest.MonkeyPatch,
    loss: Callable[[str, float, float], float],
    later: Sequence[set[tuple[str, int]]] = (),
) -> dict[str, Any]:
    """``tuning.json`` of a study whose runs lose ``loss(arm, lr, weight_decay)``, without training any."""

    def pretend(jobs: Sequence[Job], workers: int, console: Console, title: str) -> list[Any]:
        for job in jobs:
            config = validate(RunConfig, read_toml(job.directory / "config.toml"), "run")
            arm = job.directory.name.split("-")[0]
            value = loss(arm, config.train.lr, config.train.weight_decay)
            final = {"tuning": {"loss_nats": value if math.isfinite(value) else None}}
            outcome = "finished" if math.isfinite(value) else "diverged"
            write_result(job.directory, "training", {"final": final, "outcome": outcome})
        return []

    monkeypatch.setattr(tuning, "run_jobs", pretend)
    tuning.tune(directory, file, 1, QUIET, later)
    return read_result(directory, "tuning")


def distance(best: float, value: float) -> float:
    return abs(math.log(value / best))


def test_grids_are_extended_both_ways_with_equal_effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best rates lie below, within and above the grid; all arms get as many runs."""
    best = {"low": 2e-4, "inside": 2e-3, "high": 3e-2}
    arms = [{"name": name} for name in best]
    file = study(
        study={"arms": arms, "baseline": "low", "rounds": [1], "tuning": {"seeds": [9, 10], "grid": [1e-3, 2e-3, 4e-3]}}
    )
    result = tuned(tmp_path, file, monkeypatch, lambda arm, lr, _: 3 + distance(best[arm], lr))
    cells = {cell["arm"]: cell for cell in result["cells"]}
    assert cells["low"]["best_lr"] == pytest.approx(2.5e-4)
    assert cells["inside"]["best_lr"] == pytest.approx(2e-3)
    assert cells["high"]["best_lr"] == pytest.approx(3.2e-2)
    assert len({cell["num_runs"] for cell in cells.values()}) == 1
    # Three extensions allowed: the high arm still stands at its edge then, and it is said.
    assert {name: cell["at_edge"] for name, cell in cells.items()} == {"low": False, "inside": False, "high": True}


def test_weight_decay_is_chosen_at_the_best_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = study(
        study={
            "rounds": [1],
            "tuning": {"seeds": [9], "grid": [1e-3, 2e-3, 4e-3], "weight_decays": [0.0, 0.1], "max_extensions": 2},
        }
    )
    result = tuned(tmp_path, file, monkeypatch, lambda _, lr, decay: distance(2e-3, lr) + abs(decay - 0.2))
    (cell,) = result["cells"]
    assert (cell["best_lr"], cell["best_weight_decay"]) == (2e-3, pytest.approx(0.2))
    assert {point["lr"] for point in cell["weight_decay_points"]} == {2e-3}
    none = tuned(tmp_path / "none", file, monkeypatch, lambda _, lr, decay: distance(2e-3, lr) + decay)
    (cell,) = none["cells"]
    # Nothing lies below no decay.
    assert (cell["best_weight_decay"], cell["weight_decay_at_edge"]) == (0.0, False)
    more = tuned(tmp_path / "more", file, monkeypatch, lambda _, lr, decay: distance(2e-3, lr) - decay)
    (cell,) = more["cells"]
    assert (cell["at_edge"], cell["weight_decay_at_edge"]) == (False, True)


def test_weight_decays_are_a_choice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repeat; name each"):
        study(study={"tuning": {"seeds": [9], "grid": [1e-3, 2e-3], "weight_decays": [0.1, 0.1]}})
    # Said when it is tuned, so that a study of an earlier version can still be read.
    asked = study(study={"tuning": {"seeds": [9], "grid": [1e-3, 2e-3], "weight_decays": [0.1]}})
    with pytest.raises(ConfigError, match="leaves nothing to choose"):
        tuning.tune(tmp_path, asked, 1, QUIET)


def test_the_chosen_rate_and_decay_are_those_of_the_runs(tmp_path: Path) -> None:
    rates = [CellRate(arm="pre", rounds=r, lr=0.004 / r, weight_decay=0.2 * r, source="tuning") for r in (1, 4)]
    file = study()
    write_study(tmp_path, file)
    file = set_rates(tmp_path, file, rates)
    planned = [planned_run(file, CellKey("pre", rounds), 3).train for rounds in (1, 4)]
    assert [(train.lr, train.weight_decay) for train in planned] == [(0.004, 0.2), (0.001, 0.8)]


def test_cells_that_were_added_later_are_tuned_among_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The added arm stands at its edge and extends its grid; the first arm's choice and runs stay what they were."""

    def loss(arm: str, lr: float, _: float) -> float:
        # Between 2e-3 and 4e-3 there is a better rate, which an extension would have tried.
        return 3 + distance({"pre": 2.6e-3, "post": 3e-2, "third": 2.6e-3}[arm], lr)

    options: dict[str, Any] = {"rounds": [1], "tuning": {"seeds": [9], "grid": [1e-3, 2e-3, 4e-3]}}
    arms = [{"name": "pre"}, {"name": "post"}]
    third = [*arms, {"name": "third"}]
    before = tuned(tmp_path, study(study=options), monkeypatch, loss)
    after = tuned(tmp_path, study(study={**options, "arms": arms}), monkeypatch, loss, later=[{("post", 1)}])
    assert after["cells"][0] == before["cells"][0]
    assert after["cells"][1]["num_runs"] > before["cells"][0]["num_runs"]
    together = tuned(tmp_path / "together", study(study={**options, "arms": arms}), monkeypatch, loss)
    assert together["cells"][0]["best_lr"] != before["cells"][0]["best_lr"]
    twice = tuned(tmp_path, study(study={**options, "arms": third}), monkeypatch, loss, [{("post", 1)}, {("third", 1)}])
    assert twice["cells"][:2] == after["cells"]
    assert twice["cells"][2]["best_lr"] == before["cells"][0]["best_lr"]


def test_a_rate_at_which_a_run_diverges_is_never_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = study(study={"rounds": [1], "tuning": {"seeds": [9], "grid": [1e-3, 2e-3], "max_extensions": 1}})
    result = tuned(tmp_path, file, monkeypatch, lambda _, lr, __: math.inf if lr > 1e-3 else 2.0)
    assert result["cells"][0]["best_lr"] <= 1e-3


# -- the document and the price --------------------------------------------------------------------------


def test_a_study_grows_by_what_is_recorded_and_by_nothing_else(tmp_path: Path) -> None:
    before, after = study(), study(study={"seeds": [1, 2, 3, 4, 5, 6], "arms": [{"name": "pre"}, {"name": "post"}]})
    write_study(tmp_path, before)
    with pytest.raises(ResultError, match=r"without arms \['post'\], seeds \[6\]; give --add"):
        planned_study(tmp_path, after)
    for other in (study(train={"steps": 99}), study(study={"seeds": [1, 2]}), study(study={"seeds": [2, 3, 4, 5, 6]})):
        with pytest.raises(ResultError, match="another study"):
            planned_study(tmp_path, other)
        with pytest.raises(ResultError, match="another study"):
            add_to_study(tmp_path, other, other)
    document = add_to_study(tmp_path, after, after)
    (addition,) = document["later_additions"]
    assert addition["seeds"] == [6]
    assert addition["cells"] == [["post", 1, None], ["post", 4, None]]
    assert cells_tuned_apart(tmp_path) == [{("post", 1), ("post", 4)}]
    found = planned_study(tmp_path, after)
    assert found is not None
    assert found[0] == after
    # The same --add after an interruption adds nothing and goes on.
    assert add_to_study(tmp_path, after, after) == document
    grown = study(study={"seeds": [1, 2, 3, 4, 5, 6], "arms": [{"name": "pre"}, {"name": "post"}, {"name": "third"}]})
    add_to_study(tmp_path, grown, grown)
    assert cells_tuned_apart(tmp_path) == [{("post", 1), ("post", 4)}, {("third", 1), ("third", 4)}]
    document = json.loads((tmp_path / "study.json").read_text())
    # The first version tuned additions with all other cells.
    document["later_additions"] = [{**a, "tuned_apart": False} for a in document["later_additions"]]
    (tmp_path / "study.json").write_text(json.dumps(document))
    assert cells_tuned_apart(tmp_path) == []


def test_a_comparison_that_is_added_is_recorded_whole(tmp_path: Path) -> None:
    cells = {"a": [{"arm": "pre", "rounds": 4}], "b": [{"arm": "pre", "rounds": 1}]}
    before = study(study={"comparisons": [{"terms": "equal_tokens", **cells}]})
    after = study(study={"comparisons": [{"terms": "equal_tokens", **cells}, {"terms": "equal_time", **cells}]})
    write_study(tmp_path, before)
    (addition,) = add_to_study(tmp_path, after, after)["later_additions"]
    assert addition["comparisons"] == [{"terms": "equal_time", **cells}]
    assert (addition["seeds"], addition["cells"]) == ([], [])


def test_the_study_is_written_before_its_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds, cells and stopping rule stand in study.json when the first job, a tuning run, is handed over."""
    seen: list[dict[str, Any]] = []

    def look(jobs: Sequence[Job], workers: int, console: Console, title: str) -> list[Any]:
        seen.append(json.loads((tmp_path / "study.json").read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "run_jobs", look)
    path = tmp_path / "study.toml"
    write_toml(path, study(study={"tuning": {"seeds": [9], "grid": [1e-3, 2e-3]}}))
    text = f"data.corpus={write_corpus(tmp_path / 'corpus')}"
    with pytest.raises(KeyboardInterrupt):
        compare(study=path, out=tmp_path, set_=[text], tune=True, workers=1)
    (document,) = seen
    assert document["config"]["study"]["seeds"] == [1, 2, 3, 4, 5]
    assert [cell["arm"] for cell in document["cells"]] == ["pre", "pre"]
    assert "No run is added, repeated or left out after results are seen" in document["stopping_rule"]


RATES = [CellRate(arm="pre", rounds=rounds, lr=0.004, source="tuning on seeds [9]") for rounds in (1, 4)]


def test_what_is_added_keeps_the_rates_that_were_chosen(tmp_path: Path) -> None:
    before, after = study(), study(study={"seeds": [1, 2, 3, 4, 5, 6], "arms": [{"name": "pre"}, {"name": "post"}]})
    write_study(tmp_path, before)
    set_rates(tmp_path, before, RATES)
    document = add_to_study(tmp_path, with_what_is_settled(tmp_path, after), after)
    rates = {(cell["arm"], cell["rounds"]): (cell["lr"], cell["lr_source"]) for cell in document["cells"]}
    assert rates == {
        ("pre", 1): (0.004, "tuning on seeds [9]"),
        ("pre", 4): (0.004, "tuning on seeds [9]"),
        ("post", 1): (0.001, "base configuration"),
        ("post", 4): (0.001, "base configuration"),
    }


def test_rates_that_are_chosen_again_keep_their_date(tmp_path: Path) -> None:
    file = study()
    write_study(tmp_path, file)
    set_rates(tmp_path, file, RATES)
    path = tmp_path / "study.json"
    document = json.loads(path.read_text()) | {"rates_chosen": "2026-01-01T00:00:00+00:00"}
    for rate in document["config"]["study"]["rates"]:
        del rate["weight_decay_at_edge"]  # as an earlier version wrote it
    path.write_text(json.dumps(document))
    set_rates(tmp_path, file, RATES)
    assert json.loads(path.read_text()) == document


def test_words_on_where_rates_came_from_make_no_other_study(tmp_path: Path) -> None:
    rate = {"arm": "pre", "rounds": 1, "lr": 1e-3, "source": "docs, seeds 101 and 102"}
    write_study(tmp_path, study(study={"rates": [rate]}))
    assert planned_study(tmp_path, study(study={"rates": [{**rate, "source": "docs, 4 rates"}]})) is not None
    with pytest.raises(ResultError, match="another study"):
        planned_study(tmp_path, study(study={"rates": [{**rate, "lr": 2e-3}]}))


def test_rates_are_not_changed_under_runs_that_were_begun(tmp_path: Path) -> None:
    file = study()
    write_study(tmp_path, file)
    training_job(tmp_path / "runs" / "pre-r4-s1", file.run_config("pre", 4, 1))
    before = (tmp_path / "study.json").read_text()
    with pytest.raises(ResultError, match=r"did not choose \(pre-r4-s1\); delete their folders"):
        set_rates(tmp_path, file, RATES)
    assert (tmp_path / "study.json").read_text() == before


@pytest.mark.parametrize(
    "edit",
    [
        lambda document: document["cells"].pop(),
        lambda document: document["cells"][0].update(arm="nothing"),
        lambda document: document["cells"][0].pop("lr"),
        lambda document: document.update(cells=["pre"]),
        lambda document: document["config"]["study"].update(equivalence_margin=9.0),
        lambda document: document["config"]["train"].update(steps=101),
    ],
)
def test_a_study_that_was_changed_by_hand_is_refused_in_one_line(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    file = study()
    document = write_study(tmp_path, file)
    edit(document)
    (tmp_path / "study.json").write_text(json.dumps(document))
    for read in (lambda: read_study(tmp_path), lambda: planned_study(tmp_path, file)):
        with pytest.raises(ResultError, match="was changed by hand") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_probe_that_diverges_is_one_line_and_its_rate_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []

    def pretend(jobs: Sequence[Job], workers: int, console: Console, title: str) -> list[Any]:
        for job in jobs:
            rates.append(validate(RunConfig, read_toml(job.directory / "config.toml"), "run").train.lr)
            for step in range(1, 6):
                append_metric(job.directory / "metrics.jsonl", {"step": step, "kind": "train", "seconds": 0.1 * step})
        return []

    monkeypatch.setattr(step_timing, "run_jobs", pretend)
    with pytest.raises(ResultError, match="the probe of pre at R = 4 diverged after 5 of 24 steps"):
        step_timing.time_steps(study(train={"lr": 10.0}), [CellKey("pre", 4)], 1, QUIET)
    assert rates == [1e-8]


def probe_of(file: StudyFile) -> StepTimes:
    return StepTimes({CellKey(c.arm, c.rounds): 0.01 * c.rounds for c in file.study.cells()}, 2.0, workers=2)


def test_a_price_adds_up_and_a_branch_costs_its_decay() -> None:
    grid = {"seeds": [9], "grid": [1e-3, 2e-3, 4e-3], "max_extensions": 2}
    plain = study(train={"eval_rows": None}, study={"tuning": grid})
    found = price(plain, 257, tuned=True, probe=probe_of(plain))
    # R = 1: 100 steps of 0.01 s and 2 s beside them; R = 4: of 0.04 s. Five seeds and three rates, two more at most.
    assert found["hours"] == pytest.approx((3 + 6) * 8 / 3600)
    assert found["hours_at_most"] == pytest.approx((3 + 6) * 10 / 3600)
    assert found["unit"] == "core"
    # Two jobs that share one GPU each have half of it.
    on_gpu = dataclasses.replace(probe_of(plain), device="NVIDIA H200", share=0.5)
    shared = price(plain, 257, tuned=True, probe=on_gpu)
    assert (shared["unit"], shared["processes_per_unit"]) == ("GPU", 2)
    assert shared["hours"] == pytest.approx(found["hours"] / 2)
    assert (found["runs"], found["tuning_runs"], found["tuning_runs_at_most"]) == (10, 6, 10)
    # Five pairs at the default spread: noncentral t gives 1.68 standard deviations (test_paired).
    assert found["smallest_detectable_nats"] == pytest.approx(1.68 * found["sd_nats"], rel=0.01)
    assert "docs/results/demo" in found["sd_from"]

    wsd = study(train={"schedule": "wsd", "eval_rows": None}, study={"budgets": [50, 100]})
    cells = {(c["rounds"], c["budget"]): c for c in price(wsd, 257, tuned=False, probe=probe_of(wsd))["cells"]}
    assert cells[4, 50]["branch"]
    assert cells[4, 50]["hours"] == pytest.approx(0.2 * (50 * 0.04 + 2) * 5 / 3600)


def test_a_price_from_an_earlier_study_says_so(tmp_path: Path) -> None:
    earlier = write_synthetic_study(tmp_path / "earlier")
    with pytest.raises(ResultError, match="no comparison result"):
        price(study(), 257, tuned=False, earlier=earlier)
    write_comparison(earlier)
    found = price(study(), 257, tuned=False, earlier=earlier)
    assert str(earlier) in found["seconds_from"]
    assert str(earlier) in found["sd_from"]
    assert 0.001 < found["sd_nats"] < 0.05  # the generator's runs differ by 0.008 each
    assert price(study(study={"seeds": [1]}), 257, tuned=False, earlier=earlier)["smallest_detectable_nats"] is None


def test_the_demonstrations_spread_is_the_one_that_is_stated() -> None:
    pairs = json.loads((Path(__file__).parents[2] / "docs/results/demo/comparison.json").read_text())["pairs"]
    assert statistics.median(statistics.stdev(p["differences"]) for p in pairs) == pytest.approx(
        DEFAULT_SD_NATS, abs=1e-4
    )


def test_only_arms_without_a_length_of_their_own_must_agree_in_tokens() -> None:
    wide = {"name": "wide", "train": {"batch_rows": 8}}
    own = {"name": "own", "train": {"steps": 50}}
    file, _ = with_matched_steps(study(study={"arms": [{"name": "pre"}, LONGER, own]}), 257)
    assert unequal_planned_tokens(file) == []
    (sentence,) = unequal_planned_tokens(study(study={"arms": [{"name": "pre"}, wide], "rounds": [4]}))
    assert sentence.endswith("(25,600: pre at R = 4; 51,200: wide at R = 4).")


def test_a_weight_decay_at_its_edge_is_said(tmp_path: Path) -> None:
    rate = {"arm": "pre", "rounds": 4, "lr": 1e-3, "source": "tuning", "weight_decay_at_edge": True}
    comparison = compare_runs(write_synthetic_study(tmp_path, study={"rates": [rate]}))
    (said,) = [warning for warning in comparison["warnings"] if "edge of its grid" in warning]
    assert said.startswith("The best weight decay lies at the edge")
    assert said.endswith("may exist: pre at R = 4.")


def test_an_earlier_study_on_several_devices_prices_nothing(tmp_path: Path) -> None:
    directory = write_synthetic_study(tmp_path, training={("pre", 4, 1): {"device": "NVIDIA H200"}})
    write_comparison(directory)
    with pytest.raises(ResultError, match="were made on NVIDIA H200, cpu; price the study by a probe"):
        price(study(), 257, tuned=False, earlier=directory)

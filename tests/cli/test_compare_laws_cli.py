"""``compare-laws``: two arms under one law, and how bad input ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import one_line, run

from depthscale.laws import LAWS, JointLaw, fit, join_arms, read_table
from depthscale.laws.nested_tests import nested_test
from depthscale.laws.tables import ColumnMap

DEPTH = LAWS["width_depth_tokens"]
#: The arms differ in the depth term alone.
SHARED = {"L_0": 1.7, "c_m": 300.0, "c_D": 400.0, "alpha_m": 0.95, "alpha_D": 0.3}
TRUTH = {"stacked": {**SHARED, "c_l": 40.0, "alpha_l": 1.0}, "looped": {**SHARED, "c_l": 10.0, "alpha_l": 0.6}}


def write_arms(path: Path, truth: dict[str, dict[str, float]] = TRUTH, noise: float = 0.003) -> str:
    generator = np.random.default_rng(0)
    grid = (np.array([256.0, 512, 1024, 2048]), np.array([4.0, 8, 16, 32, 64]), np.array([1e9, 4e9, 16e9]))
    width, depth, tokens = (axis.ravel() for axis in np.meshgrid(*grid))
    lines = ["arm,width,depth,tokens,loss"]
    for arm, parameters in truth.items():
        losses = DEPTH.predict(parameters, {"width": width, "depth": depth, "tokens": tokens})
        losses = losses * np.exp(noise * generator.standard_normal(len(width)))
        lines += [
            f"{arm},{m:g},{l:g},{d:g},{loss:.8f}" for m, l, d, loss in zip(width, depth, tokens, losses, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


ARMS = ("--by", "arm", "--reference", "stacked", "--new", "looped")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("arms")
    table = write_arms(folder / "runs.csv")
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = ("--bootstrap", "100", "--flops", "1e17", "--flops", "1e19", "--out", str(folder / "out"))
        assert run(monkeypatch, "compare-laws", table, *ARMS, *arguments) == 0
    return json.loads((folder / "out" / "results" / "law_comparison.json").read_text())


def test_the_parameters_that_differ_are_found_and_the_others_are_not(found: dict[str, Any]) -> None:
    tests = {tuple(test["shared"]): test for test in found["tests"]}
    singles = {"L_0", "alpha_m", "alpha_l", "alpha_D"}
    terms = {("c_m", "alpha_m"), ("c_l", "alpha_l"), ("c_D", "alpha_D")}
    assert set(tests) == {(name,) for name in singles} | terms | {DEPTH.exponents, DEPTH.parameters}
    rejected = {names for names, test in tests.items() if test["is_rejected"]}
    assert rejected == {("alpha_l",), ("c_l", "alpha_l"), DEPTH.exponents, DEPTH.parameters}
    difference = {row["name"]: row for row in found["differences"]}
    assert set(difference) == {"L_0", "alpha_m", "alpha_l", "alpha_D"}
    for name, true in {"alpha_l": -0.4, "alpha_m": 0.0, "alpha_D": 0.0, "L_0": 0.0}.items():
        for kind in ("interval", "profile"):
            low, high = difference[name][kind]
            assert low < true < high, (name, kind)
    assert difference["alpha_l"]["profile"][1] < -0.3


def test_savings_follow_from_the_true_laws(found: dict[str, Any]) -> None:
    from depthscale.laws import WIDTH_DEPTH_TOKENS_FLOPS, compute_saved

    assert [saving["compute"] for saving in found["savings"]] == [1e17, 1e19]
    for saving in found["savings"]:
        true = compute_saved(DEPTH, TRUTH["stacked"], TRUTH["looped"], WIDTH_DEPTH_TOKENS_FLOPS, saving["compute"])
        assert saving["bootstrap_kind"] == "paired clusters"
        low, high = saving["interval"]
        assert low < true < high
    assert found["bootstrap"]["num_units"] == 20


def test_a_test_by_groups_does_not_count_copied_rows(tmp_path: Path) -> None:
    """Three copies of every row make p smaller where rows count as independent, and leave it where groups do."""
    columns = ColumnMap.parse("width=width,depth=depth,tokens=tokens,group=width+depth")
    both = read_table(Path(write_arms(tmp_path / "two.csv", noise=0.05)), columns)
    arms = [both.take(np.arange(60)), both.take(np.arange(60, 120))]
    law = JointLaw(DEPTH, ("reference", "new"))

    def p_values(copies: int) -> tuple[float, float | None]:
        rows = [arm.take(np.repeat(np.arange(60), copies)) for arm in arms]
        test = nested_test(fit(law, join_arms(rows)), law, ["alpha_m"])
        return test.p_value, test.group_p_value

    once, thrice = p_values(1), p_values(3)
    assert once[1] is not None
    assert thrice[1] == pytest.approx(once[1], rel=1e-3)
    assert thrice[0] < once[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "arm", "--reference", "stacked", "--new", "stacked"), "expected two arms"),
        (("--reference", "stacked", "--new", "looped"), "needs --by"),
        (("--by", "arm", "--reference", "stakced", "--new", "looped"), "stacked"),
        (("--by", "rule", "--reference", "stacked", "--new", "looped"), "rule"),
        ((*ARMS, "--flops", "-1"), "not positive"),
        ((*ARMS, "--law", "power_with_floor"), "reads"),
    ],
)
def test_bad_input_ends_in_one_line(
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = write_arms(tmp_path / "runs.csv")
    assert run(monkeypatch, "compare-laws", table, *arguments, "--out", str(tmp_path / "out")) == 2
    assert words in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_law_without_compute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_arms(tmp_path / "runs.csv")
    toml = tmp_path / "law.toml"
    toml.write_text(
        'name = "depth"\nfloor = "L_0"\n[[terms]]\ncoefficient = "c"\nfactors = [{column = "depth", exponent = "a"}]\n'
    )
    assert run(monkeypatch, "compare-laws", table, *ARMS, "--law", str(toml), "--independent-rows") == 2
    assert "says nothing of compute" in one_line(capsys.readouterr().err)


def test_depth_that_raises_the_loss_leaves_the_frontier_out_and_the_other_answers_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = {"stacked": TRUTH["stacked"], "looped": {**SHARED, "c_l": 0.05, "alpha_l": -0.5}}
    table = write_arms(tmp_path / "runs.csv", truth)
    arguments = ("--bootstrap", "100", "--flops", "1e19", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "compare-laws", table, *ARMS, *arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "At 1e+19 FLOPs: no frontier: exponent alpha_l of looped is -0." in said
    assert said.count("not positive.") == 2  # the budget, and the crossings
    assert "the fit in which the arms share alpha_l is not certified" in said
    result = json.loads((tmp_path / "out" / "results" / "law_comparison.json").read_text())
    (depth,) = [test for test in result["tests"] if test["shared"] == ["c_l", "alpha_l"]]
    assert depth["is_rejected"]

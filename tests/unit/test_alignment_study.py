"""An alignment study put together from cells that follow known powers of R."""

from __future__ import annotations

import math
from typing import Any

import pytest
from synthetic_alignment import cell_results, study_file

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.growth import growth_exponent
from depthscale.alignment.kappa import Alignment
from depthscale.alignment.seed_growth import at_one_level, growth_over_seeds
from depthscale.alignment.self_consistent import SelfConsistentExponent
from depthscale.alignment.study import study_result
from depthscale.alignment.study_conditions import alignment_from
from depthscale.alignment.study_exponent import exponent_record
from depthscale.alignment.study_growth import effective_exponent
from depthscale.errors import ConfigError


def condition(result: dict[str, Any], arm: str, step: int, rows: int = 4, of: str = "loss") -> dict[str, Any]:
    (found,) = (
        c
        for c in result["conditions"]
        if (c["arm"], c["step"], c["batch_rows"], c["gradient_of"]) == (arm, step, rows, of)
    )
    return found


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    file = study_file()
    return study_result(file, cell_results(file))


def test_every_cell_of_the_file(result: dict[str, Any]) -> None:
    file = study_file(last_step={"8": 50})
    cells = file.cells()
    assert len(cells) == 3 * 4 * 3
    assert {(c.plan.rounds, c.measure.steps) for c in cells} == {
        (1, (0, 200)), (2, (0, 200)), (4, (0, 200)), (8, (0,)),
    }  # fmt: skip
    assert {c.train.seed for c in cells} == {c.train.data_seed for c in cells} == {1, 2, 3}
    assert result["notes"] == []


def test_gamma_of_every_condition_with_its_threshold(result: dict[str, Any]) -> None:
    for arm, gamma in (("deeploop", 0.75), ("deepnorm", 1.0), ("untied", 0.0)):
        for step in (0, 200):
            found = condition(result, arm, step)
            fit = found["growth"]["kappa"]
            # The noise is half a percent in kappa.
            assert fit["exponent"] == pytest.approx(gamma, abs=0.005)
            assert fit["upper"] - fit["lower"] < 0.01
            assert found["seed_exponents"]["kappa"] == pytest.approx([gamma] * 3, abs=0.01)
            assert found["threshold"]["failed"] == ()
            assert found["threshold"]["value"] == pytest.approx((1 + gamma) / 4, abs=0.005)
            # U and G share the alignment: ||sum U|| / max ||U|| = sqrt(R^(1 + gamma)).
            assert found["growth"]["map_part"]["exponent"] == pytest.approx((1 + gamma) / 2, abs=0.005)
            assert found["adam_threshold"] == pytest.approx((1 + gamma) / 4, abs=0.005)
            assert set(found["sublayer_kappa"]) == {"block0.attention", "block0.mlp"}
    of_update = condition(result, "deeploop", 200, of="adam")
    assert of_update["growth"]["kappa"]["exponent"] == pytest.approx(0.75, abs=0.005)
    assert "does not shrink" in of_update["threshold"]["reason"]


def test_maxima_that_grow_leave_no_threshold() -> None:
    file = study_file()
    cells = [cell for cell in cell_results(file, map_growth=0.3) if cell["arm"] == "untied"]
    found = condition(study_result(file, cells), "untied", 0)
    assert found["threshold"]["value"] is None
    assert "max ||U|| in units of beta/alpha grows as R^0.3" in found["threshold"]["failed"][0]
    assert found["growth"]["relative_map_max"]["exponent"] == pytest.approx(0.3, abs=1e-3)


FAMILY = {"deepnorm": 0.25, "p0.35": 0.35, "deeploop": 0.5, "p0.6": 0.6}


def exponents(
    edge: tuple[float, float] | None = None, shift: float = 0.0, level: float = 0.95, **differs: Any
) -> dict[str, Any]:
    """gamma(p) = 1.25 - p + shift measured at four exponents, three steps and two batch sizes."""
    shared = {
        "norm_placement": "post", "plan_kind": "looped", "num_blocks": 1, "hidden_size": 32,
        "num_attention_heads": 2, "mlp": "gelu", "optimizer": "adamw", "tokens": "text", "lr": 1e-3,
    }  # fmt: skip
    arms = [{"name": name, "exponent": p, **shared} for name, p in FAMILY.items()]
    arms += [
        {"name": "wide", "exponent": 0.5, **shared, "hidden_size": 64},
        {"name": "pre", "exponent": None, **shared, "norm_placement": "pre"},
        {"name": "differs", "exponent": 0.5, **shared, **(differs or {"hidden_size": 64})},
    ]
    conditions = [
        {
            "arm": arm["name"],
            "step": step,
            "batch_rows": rows,
            "gradient_of": "loss",
            "growth": {
                name: {"exponent": gamma, "lower": gamma - 0.0196, "upper": gamma + 0.0196}
                for name in ("kappa", "kappa_common")
            },
            "threshold": {"value": None, "failed": ("max ||U|| grows",) if arm["name"] == "deeploop" else ()},
        }
        for arm in arms
        for step in (0, 50, 200)
        for rows in (4, 16)
        for gamma in [1.25 - (arm["exponent"] or 9.0) + shift]
    ]
    return exponent_record(arms, "deeploop", conditions, edge, level)


def test_the_exponent_that_agrees_with_itself() -> None:
    record = exponents(edge=(0.40, 0.50))
    assert record["arms"] == FAMILY
    for name in ("kappa", "kappa_common"):
        solution = record[name]["solution"]
        assert len(solution["crossings"]) == 3 * 2
        assert solution["missing"] == ()
        assert solution["estimate"] == pytest.approx(0.45, abs=1e-9)
        assert 0.43 < solution["lower"] < 0.45 < solution["upper"] < 0.47
        assert solution["is_recommendation"]
    assert sum(bool(entry["failed"]) for entry in record["assumptions"]) == 6
    assert all(p["standard_error"] == pytest.approx(0.01, abs=1e-6) for p in record["kappa"]["points"])


def test_it_is_a_recommendation_only_where_it_predicts_an_edge() -> None:
    assert not exponents(edge=None)["kappa"]["solution"]["is_recommendation"]
    assert not exponents(edge=(0.26, 0.30))["kappa"]["solution"]["is_recommendation"]


def test_an_exponent_outside_those_measured_says_on_which_side() -> None:
    above = exponents(edge=(0.1, 0.9), shift=1.0)["kappa"]["solution"]
    assert above["estimate_outside"] == above["upper_outside"] == "above"
    assert not above["is_recommendation"]
    below = exponents(shift=-2.0)["kappa"]["solution"]
    assert {below[f"{end}_outside"] for end in ("estimate", "lower", "upper")} == {"below"}
    assert {crossing["estimate_outside"] for crossing in below["crossings"]} == {"below"}


def test_an_arm_of_another_rate_or_mlp_is_no_point_of_the_family() -> None:
    for differs in ({"lr": 3e-3}, {"mlp": "swiglu"}):
        record = exponents(**differs)
        assert record["arms"] == FAMILY
        assert record["kappa"]["solution"]["estimate"] == pytest.approx(0.45, abs=1e-9)


def test_the_error_of_gamma_is_read_off_its_interval_at_the_studys_level() -> None:
    # Source: the normal quantile of a two-sided 80 % interval, 1.281552.
    points = exponents(level=0.8)["kappa"]["points"]
    assert all(p["standard_error"] == pytest.approx(0.0196 / 1.281552, rel=1e-6) for p in points)


def test_an_open_interval_meets_every_edge_and_recommends_nothing() -> None:
    solved = SelfConsistentExponent((), 0.4, 0.3, math.inf, ())
    assert not solved.is_recommendation((0.9, 0.95))


def test_seeds_that_disagree_widen_the_interval_of_gamma() -> None:
    keys = [(rounds, seed) for seed in (1, 2, 3) for rounds in (1, 2, 4, 8, 16)]
    values = [rounds ** (0.5, 0.7, 0.9)[seed - 1] for rounds, seed in keys]
    found = growth_over_seeds(keys, values, 0.95)
    # Source: Student's quantile at 2 degrees of freedom, 4.302653.
    half_width = 4.302653 * 0.2 / 3**0.5
    assert (found.exponent, found.lower, found.upper) == pytest.approx((0.7, 0.7 - half_width, 0.7 + half_width))
    plain = growth_exponent([float(rounds) for rounds, _ in keys], values)
    assert plain.upper - plain.lower < found.upper - found.lower
    # Seeds that agree leave the fit's own interval.
    alike = [rounds**0.7 * (1.01 if rounds == 4 else 1.0) for rounds, _ in keys]
    assert growth_over_seeds(keys, alike, 0.95) == growth_exponent([float(r) for r, _ in keys], alike)


def test_the_threshold_holds_the_spread_of_the_seeds() -> None:
    file = study_file()
    own = {1: -0.03, 2: 0.0, 3: 0.03}
    cells = cell_results(file, gamma=lambda cell, step: 0.5 + own[cell.train.seed])
    found = condition(study_result(file, [c for c in cells if c["arm"] == "deeploop"]), "deeploop", 0)
    assert found["threshold"]["value"] == pytest.approx(0.375, abs=0.005)
    assert found["threshold"]["upper"] - found["threshold"]["value"] == pytest.approx(
        4.303 * 0.03 / 3**0.5 / 4, rel=0.15
    )


def test_a_study_without_a_measurement_is_one_line() -> None:
    file = study_file()
    cells = cell_results(file)
    for cell in cells:
        cell |= {"points": [], "one_steps": [], "outcome": "could not be measured at step 0: no gradient"}
    with pytest.raises(AlignmentError, match="no cell of study 'synthetic' was measured; the first: could not be"):
        study_result(file, cells)


def test_a_real_step_over_rounds(result: dict[str, Any]) -> None:
    found = {(r["arm"], r["optimizer"]): r for r in result["one_steps"]}
    assert set(found) == {(arm, optimizer) for arm in ("deeploop", "deepnorm") for optimizer in ("sgd", "adamw")}
    for arm, p, gamma in (("deeploop", 0.5, 0.75), ("deepnorm", 0.25, 1.0)):
        sgd, adam = found[arm, "sgd"], found[arm, "adamw"]
        assert sgd["exponent"] == p
        for record, expected in ((sgd, 1 + gamma - 4 * p), (adam, (1 + gamma) / 2 - 2 * p)):
            assert record["growth"]["actual"]["exponent"] == pytest.approx(expected, abs=0.01)
            assert record["expected"]["exponent"] == pytest.approx(expected, abs=0.01)
            assert record["bound_holds"]
            for row in record["rows"]:
                assert row["predicted_in_full"] == pytest.approx(row["actual"], rel=1e-9)
        for row in sgd["rows"]:
            assert row["predicted"] == pytest.approx(row["actual"], rel=0.02)
        # M * R * (beta/alpha)^2 does not depend on R at p = 1/2 and grows as R at p = 1/4.
        assert sgd["growth"]["predicted_aligned"]["exponent"] == pytest.approx(2 - 4 * p, abs=1e-3)
        assert adam["rows"][0]["predicted"] is None


def test_a_broken_bound_is_said() -> None:
    file = study_file()
    cells = cell_results(file)
    for cell in cells:
        for step in cell["one_steps"]:
            if cell["rounds"] == 8 and step["optimizer"] == "sgd":
                step["first_order"] = 1.01 * step["bound"]
    cells = [cell for cell in cells if cell["arm"] == "deeploop"]
    found = study_result(file, cells)["one_steps"]
    assert {r["optimizer"]: r["bound_holds"] for r in found} == {"sgd": False, "adamw": True}


def test_one_thing_at_a_time_before_and_after(result: dict[str, Any]) -> None:
    table = result["factors"]
    assert (table["rounds"], table["steps"], table["batch_rows"]) == (4, [0, 200], 4)
    assert [row["varies"] for row in table["rows"]] == ["base: deeploop, post", "rule: deepnorm", "untied"]
    before, after = table["rows"][0]["stages"]
    assert before["kappa"]["mean"] == pytest.approx(4**0.75, rel=0.01)
    assert before["kappa_of_update"] is None
    assert after["kappa_of_update"]["mean"] == pytest.approx(4**0.75, rel=0.01)
    assert after["num_seeds"] == 3


def test_cells_that_are_missing_or_ended_early_are_named() -> None:
    file = study_file()
    cells = cell_results(file)
    cells[0]["outcome"] = "diverged at step 60"
    for cell in cells[1:-1]:
        cell["points"] = cell["one_steps"] = []
    notes = study_result(file, cells[:-1])["notes"]
    assert notes == ["untied, R = 8, seed 3 is not measured", "deeploop, R = 1, seed 1: diverged at step 60"]


def test_an_alignment_goes_through_a_file_unchanged() -> None:
    record = cell_results(study_file())[0]["points"][0]
    found = alignment_from(record)
    assert isinstance(found, Alignment)
    assert {key: record[key] for key in found.to_dict()} == found.to_dict()


def test_levels_of_seeds_are_taken_out_only_where_every_seed_has_every_rounds() -> None:
    keys = [(1, 0), (2, 0), (1, 1)]
    assert at_one_level(keys, [1.0, 2.0, 5.0]) == [1.0, 2.0, 5.0]
    keys.append((2, 1))
    assert at_one_level(keys, [1.0, 2.0, 5.0, 15.0]) == pytest.approx(
        [150**0.25 * 2**-0.5, 150**0.25 * 2**0.5, 150**0.25 * 3**-0.5, 150**0.25 * 3**0.5]
    )


def test_the_exponent_of_any_rule_is_read_off_its_numbers() -> None:
    def cells(*units: float) -> list[dict[str, Any]]:
        return [{"rounds": 2**i, "relative_branch": unit} for i, unit in enumerate(units)]

    assert effective_exponent(cells(1.0, 0.5, 0.25)) == 0.5
    assert effective_exponent(cells(1.0, 1.0)) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": "deeplop"}, "base 'deeplop' is not among the arms"),
        ({"seeds": [1, 1]}, "seeds [1, 1] repeat"),
        ({"last_step": {"many": 50}}, "expected numbers of rounds"),
        (
            {"arms": [{"name": "deeploop", "measure": {"steps": [0, 500]}}]},
            "measure.steps end at 500, after train.steps 200",
        ),
        (
            {"arms": [{"name": "deeploop", "measure": {"one_step": [7]}}]},
            "one_step [7] are not among steps [0, 200]",
        ),
        (
            {"arms": [{"name": "deeploop", "plan": {"kind": "stacked"}, "measure": {"one_step": [0]}}]},
            "measure.one_step needs shared blocks",
        ),
        ({"arms": [{"name": "deeploop", "measure": {"stps": [0]}}]}, "did you mean 'measure.steps'"),
    ],
)
def test_bad_files_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_file(**change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

"""What must hold of every fit: units, scales, perturbations, duplicates, designs that say nothing, bounds, files."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthscale.laws import (
    LAWS,
    FitError,
    Objective,
    Observations,
    bootstrap,
    fit,
    from_json,
    identifiability,
    parameter,
    profile,
    sandwich_covariance,
    search,
    to_json,
)
from depthscale.laws.fitting import Fit, starting_points, to_natural
from depthscale.laws.newton import minimize

CHINCHILLA = LAWS["chinchilla"]
DEPTH = LAWS["width_depth_tokens"]
TRUTH = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
OBJECTIVES = [Objective("log_squares"), Objective("log_huber"), Objective("raw_squares")]
IDS = [objective.kind for objective in OBJECTIVES]


def grid(noise: float = 0.005, seed: int = 0) -> Observations:
    sizes, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(2e9, 2e11, 8)))
    columns = {"parameters": sizes, "tokens": tokens}
    generator = np.random.default_rng(seed)
    loss = CHINCHILLA.predict(TRUTH, columns) * np.exp(noise * generator.standard_normal(len(sizes)))
    return Observations(columns, loss)


def depth_rows(depth_power: float, scatter: float, noise: float, seed: int = 0) -> Observations:
    """Depth = width^power with some scatter: the less of it, the less the two exponents can be told apart."""
    generator = np.random.default_rng(seed)
    width = np.repeat(np.geomspace(256, 4096, 12), 6)
    depth = 0.5 * width**depth_power * np.exp(scatter * generator.standard_normal(len(width)))
    tokens = np.tile(np.geomspace(1e9, 1e11, 6), 12)
    columns = {"width": width, "depth": depth, "tokens": tokens}
    truth = dict(zip(DEPTH.parameters, (1.75, 270.0, 6.7, 530.0, 0.95, 1.3, 0.3), strict=True))
    loss = DEPTH.predict(truth, columns) * np.exp(noise * generator.standard_normal(len(width)))
    return Observations(columns, loss)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
@given(exponent=st.integers(-9, 9), other=st.integers(-9, 9), loss_unit=st.sampled_from([1.0, 1 / np.log(2), 1e-3]))
@settings(max_examples=8)
def test_exponents_do_not_depend_on_units(objective: Objective, exponent: int, other: int, loss_unit: float) -> None:
    # gh/scipy/scipy/issues/8369: results that depend on units.
    data = grid()
    scaled = Observations(
        {
            "parameters": data.column("parameters") * 10.0**exponent,
            "tokens": data.column("tokens") * 10.0**other,
        },
        data.loss * loss_unit,
    )
    here, there = fit(CHINCHILLA, data, objective).parameters, fit(CHINCHILLA, scaled, objective).parameters
    for name in ("alpha", "beta"):
        assert there[name] == pytest.approx(here[name], rel=1e-8)
    assert there["E"] == pytest.approx(here["E"] * loss_unit, rel=1e-8)
    assert there["A"] == pytest.approx(here["A"] * loss_unit * 10.0 ** (exponent * here["alpha"]), rel=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_parameters_do_not_depend_on_the_objectives_scale(objective: Objective, scale: float) -> None:
    # arXiv 2404.10102: an averaged loss made L-BFGS stop early. Weights multiply the objective.
    data = grid()
    scaled = dataclasses.replace(data, weights=np.full(data.num_rows, scale))
    here, there = fit(CHINCHILLA, data, objective).parameters, fit(CHINCHILLA, scaled, objective).parameters
    assert there == pytest.approx(here, rel=1e-6)


def natural_after(found: Fit, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    solution = minimize(found.problem, z)
    return to_natural(found.problem, solution.z), solution.converged


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
@given(seed=st.integers(0, 2**16))
@settings(max_examples=5)
def test_a_perturbed_optimum_returns(objective: Objective, seed: int) -> None:
    # A start on the published answer would hide a fitter that does not move.
    found = fit(CHINCHILLA, grid(), objective)
    generator = np.random.default_rng(seed)
    moved = found.z * (1 + 0.1 * generator.choice([-1.0, 1.0], size=(8, len(found.z))))
    natural, converged = natural_after(found, moved)
    assert converged.all()
    expected = np.array([found.parameters[name] for name in CHINCHILLA.parameters])
    np.testing.assert_allclose(natural, np.broadcast_to(expected, natural.shape), rtol=1e-6)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=5)
def test_starts_do_not_know_the_answer(seed: int) -> None:
    data = grid(seed=seed)
    found = fit(CHINCHILLA, data)
    starts = starting_points(found.problem, data, 24)
    assert (np.abs(starts - found.z).max(axis=1) > 1e-3).all()
    assert found.certificate.agreeing_starts >= 12


@given(seed=st.integers(0, 2**16), copies=st.integers(2, 4))
@settings(max_examples=4)
def test_duplicated_rows_leave_cluster_errors_alone(seed: int, copies: int) -> None:
    generator = np.random.default_rng(seed)
    data = dataclasses.replace(grid(seed=seed % 100), groups=generator.integers(12, size=64))
    repeated = data.take(np.repeat(np.arange(64), copies))
    once, often = fit(CHINCHILLA, data), fit(CHINCHILLA, repeated)
    assert often.parameters == pytest.approx(once.parameters, rel=1e-7)
    few, many = (bootstrap(found, 200, seed=3, clusters=True) for found in (once, often))
    for name in CHINCHILLA.parameters:
        np.testing.assert_allclose(
            few.interval(parameter(once, name)), many.interval(parameter(often, name)), rtol=1e-6
        )
    assert sandwich_covariance(often, clustered=True).errors == pytest.approx(
        sandwich_covariance(once, clustered=True).errors, rel=1e-6
    )
    # Rows taken for independent would have shrunk theirs.
    shrunk = sandwich_covariance(often).errors["alpha"] / sandwich_covariance(once).errors["alpha"]
    assert shrunk < 0.95 / np.sqrt(copies) * 1.1


def test_a_design_that_cannot_separate_is_flagged_and_its_profile_widens() -> None:
    # gh/jingyaogong/minimind/issues/786: l ~ m^0.6 with little scatter.
    sound, poor = depth_rows(0.6, 0.5, 0.004), depth_rows(0.6, 0.1, 0.004)
    good, bad = fit(DEPTH, sound), search(DEPTH, poor)
    assert not identifiability(good).collinear_columns
    report = identifiability(bad)
    assert report.collinear_columns == (("width", "depth"),)
    assert any("width and depth move together" in line for line in report.warnings)
    wide, narrow = (profile(f, [parameter(f, "alpha_l")])[0] for f in (bad, good))
    assert wide.upper - wide.lower > 2 * (narrow.upper - narrow.lower)


def test_a_design_that_says_nothing_is_refused_or_left_open() -> None:
    data = depth_rows(0.6, 0.0, 0.004)
    tied = fit(DEPTH, data.with_column("depth", np.sqrt(data.column("width"))))
    assert identifiability(tied).collinear_columns == (("width", "depth"),)
    interval = profile(tied, [parameter(tied, "alpha_l")])[0]
    assert interval.lower_open or interval.upper_open
    constant = data.with_column("depth", np.full(data.num_rows, 12.0))
    with pytest.raises(FitError, match="do not determine every parameter"):
        fit(DEPTH, constant)
    # The exponent alone, and the depth term against the floor.
    flat = [set(names) for names in identifiability(search(DEPTH, constant)).inseparable]
    assert {"alpha_l"} in flat
    assert {"L_0", "c_l"} in flat


def test_a_profile_that_meets_a_bound_is_open_and_no_error() -> None:
    # gh/lmfit/lmfit-py/issues/91: losses far above the floor do not say where the floor is.
    sizes = np.geomspace(1.0, 30.0, 25)
    columns = {"x": sizes}
    law = LAWS["power_with_floor"]
    generator = np.random.default_rng(2)
    loss = law.predict({"L_0": 0.02, "c": 10.0, "a": 0.5}, columns) * np.exp(0.01 * generator.standard_normal(25))
    found = fit(law, Observations(columns, loss))
    floor, coefficient, exponent = profile(found, [parameter(found, name) for name in law.parameters])
    assert floor.lower_open
    assert floor.lower == -np.inf
    assert np.isfinite(floor.upper)
    assert floor.contains(0.02)
    assert exponent.contains(0.5)
    assert np.isfinite([exponent.lower, exponent.upper, coefficient.lower, coefficient.upper]).all()


def test_a_floor_on_its_bound_is_certified_and_named() -> None:
    # A pure power, with noise that would like a floor below zero.
    sizes = np.geomspace(1.0, 100.0, 30)
    loss = 5 * sizes**-0.5 * np.exp(-0.003 * np.log(sizes) ** 2)
    found = fit(LAWS["power_with_floor"], Observations({"x": sizes}, loss))
    assert found.certificate.at_bound == ("L_0",)
    assert found.parameters["L_0"] == 0.0
    assert sandwich_covariance(found).errors["L_0"] == 0.0


@given(
    floor=st.floats(0.5, 3.0),
    shares=st.tuples(st.floats(0.1, 2.0), st.floats(0.1, 2.0)),
    exponents=st.tuples(st.floats(0.2, 0.6), st.floats(0.2, 0.6)),
)
@settings(max_examples=15)
def test_exact_rows_give_their_parameters_back_and_files_keep_them(
    floor: float, shares: tuple[float, float], exponents: tuple[float, float]
) -> None:
    alpha, beta = exponents
    coefficients = {"A": shares[0] * 1e9**alpha, "B": shares[1] * 2e10**beta}
    parameters = {"E": floor, **coefficients, "alpha": alpha, "beta": beta}
    # gh/step-law/steplaw/issues/10: published coefficients that do not give the published curve.
    data = grid()
    data = data.with_loss(CHINCHILLA.predict(parameters, data.columns))
    found = fit(CHINCHILLA, data)
    assert found.parameters == pytest.approx(parameters, rel=1e-6)
    stored = from_json(to_json(found))
    assert stored.parameters == found.parameters
    np.testing.assert_array_equal(stored.predict(data.columns), CHINCHILLA.predict(found.parameters, data.columns))

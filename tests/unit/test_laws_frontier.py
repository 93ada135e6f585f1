"""Closed-form frontiers against numerical minimization, their limits, and the isoFLOP parabola."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from depthscale.errors import ConfigError, DataError
from depthscale.laws import (
    CHINCHILLA_FLOPS,
    LAWS,
    SMELT_PRINTED,
    WIDTH_DEPTH_PARAMETERS,
    WIDTH_DEPTH_TOKENS_FLOPS,
    Budget,
    compute_for_loss,
    fit_parabola,
    frontier_exponent,
    optimal_loss,
    optimal_shape,
    parabola_bias,
    smelt_flops,
)

DEPTH = LAWS["width_depth_tokens"]
FITTED = dict(zip(DEPTH.parameters, (1.7536, 274.72, 6.7212, 529.25, 0.94548, 1.32513, 0.29909), strict=True))
ARRAYS = {name: np.asarray(value) for name, value in FITTED.items()}
CHINCHILLA = {"E": 1.8172, "A": 477.83, "B": 2143.4, "alpha": 0.34731, "beta": 0.36717}


def test_optimum_is_a_minimum_under_the_budget() -> None:
    shape = optimal_shape(DEPTH, ARRAYS, WIDTH_DEPTH_TOKENS_FLOPS, 1e21)
    m, l, d = (float(shape[name]) for name in ("width", "depth", "tokens"))
    assert 72 * m**2 * l * d == pytest.approx(1e21)

    def loss(x: np.ndarray) -> float:
        width, depth = np.exp(x)
        tokens = 1e21 / (72 * width**2 * depth)
        columns = {"width": np.array([width]), "depth": np.array([depth]), "tokens": np.array([tokens])}
        return float(DEPTH.predict(FITTED, columns)[0])

    by_search = minimize(loss, np.log([1000.0, 20.0]), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-14})
    np.testing.assert_allclose(np.exp(by_search.x), [m, l], rtol=1e-4)
    assert float(optimal_loss(DEPTH, ARRAYS, WIDTH_DEPTH_TOKENS_FLOPS, 1e21)) == pytest.approx(by_search.fun)


def test_stationarity_condition_of_the_paper() -> None:
    # At the optimum alpha_m c_m m^-alpha_m = 2 alpha_l c_l l^-alpha_l; arXiv 2602.05970.
    shape = optimal_shape(DEPTH, ARRAYS, WIDTH_DEPTH_PARAMETERS, 1e9)
    p = FITTED
    left = p["alpha_m"] * p["c_m"] * float(shape["width"]) ** -p["alpha_m"]
    right = 2 * p["alpha_l"] * p["c_l"] * float(shape["depth"]) ** -p["alpha_l"]
    assert left == pytest.approx(right)


def test_exponents_in_parameters_alone() -> None:
    a_m, a_l = FITTED["alpha_m"], FITTED["alpha_l"]
    expected = a_m * a_l / (2 * a_l + a_m)
    assert float(frontier_exponent(DEPTH, ARRAYS, WIDTH_DEPTH_PARAMETERS)) == pytest.approx(expected)
    shapes = optimal_shape(DEPTH, ARRAYS, WIDTH_DEPTH_PARAMETERS, np.array([1e8, 1e9]))
    slope = np.diff(np.log(shapes["width"]))[0] / np.log(10)
    assert slope == pytest.approx(a_l / (2 * a_l + a_m))
    # Both exponents 1: width grows as depth and the loss falls as N^-1/3.
    ones = {**ARRAYS, "alpha_m": np.asarray(1.0), "alpha_l": np.asarray(1.0)}
    assert float(frontier_exponent(DEPTH, ones, WIDTH_DEPTH_PARAMETERS)) == pytest.approx(1 / 3)
    same = optimal_shape(DEPTH, ones, WIDTH_DEPTH_PARAMETERS, np.array([1e8, 1e10]))
    ratios = same["width"] / same["depth"]
    assert ratios[0] == pytest.approx(ratios[1])


def test_smelt_optimum_as_printed() -> None:
    # F* = (a A (1-S)^b C^c / (c K))^(1/(a+c)); SMELT, arXiv 2609.01343.
    p = SMELT_PRINTED["baseline"]
    shape = optimal_shape(LAWS["smelt"], {k: np.asarray(v) for k, v in p.items()}, smelt_flops(0.05), 1e21)
    top = p["a"] * p["A"] * 0.05 ** p["b"] * 1e21 ** p["c"]
    assert float(shape["flops_per_token"]) == pytest.approx((top / (p["c"] * p["K"])) ** (1 / (p["a"] + p["c"])))


def test_compute_for_loss_inverts_the_frontier() -> None:
    loss = optimal_loss(DEPTH, ARRAYS, WIDTH_DEPTH_TOKENS_FLOPS, 3e20)
    assert float(compute_for_loss(DEPTH, ARRAYS, WIDTH_DEPTH_TOKENS_FLOPS, loss)) == pytest.approx(3e20)
    assert np.isnan(compute_for_loss(DEPTH, ARRAYS, WIDTH_DEPTH_TOKENS_FLOPS, 1.0))


def test_budgets_that_have_no_closed_form_are_refused() -> None:
    with pytest.raises(ConfigError, match="neither chosen nor held"):
        optimal_shape(LAWS["smelt"], {}, Budget({"flops_per_token": 1, "tokens": 1}), 1e20)
    with pytest.raises(ConfigError, match="no closed frontier"):
        optimal_shape(LAWS["effective_depth"], {}, Budget({"blocks": 1, "rounds": 1}), 1e20)
    with pytest.raises(ConfigError, match="positive power"):
        Budget({"width": -1.0})


def test_parabola_finds_its_vertex() -> None:
    sizes = np.geomspace(1e8, 1e10, 9)
    found = fit_parabola(sizes, 2.5 + 0.1 * (np.log(sizes) - np.log(2e9)) ** 2)
    assert found.vertex == pytest.approx(2e9)
    assert found.verdict == "interior optimum"


@pytest.mark.parametrize("center", [1e7, 1e12])
def test_minimum_at_the_edge_is_no_optimum(center: float) -> None:
    sizes = np.geomspace(1e8, 1e10, 9)
    found = fit_parabola(sizes, 2.5 + 0.1 * (np.log(sizes) - np.log(center)) ** 2)
    assert found.vertex is None
    assert "no interior optimum" in found.verdict
    assert fit_parabola(sizes, 2.5 - 0.1 * (np.log(sizes) - np.log(1e9)) ** 2).vertex is None
    with pytest.raises(DataError, match="at least 4"):
        fit_parabola(sizes[:3], np.ones(3))


def test_parabola_is_biased_on_wide_and_off_center_grids() -> None:
    # arXiv 2603.22339.
    law = LAWS["chinchilla"]
    best = float(
        optimal_shape(law, {k: np.asarray(v) for k, v in CHINCHILLA.items()}, CHINCHILLA_FLOPS, 1e21)["parameters"]
    )
    bias = [
        parabola_bias(law, CHINCHILLA, CHINCHILLA_FLOPS, 1e21, "parameters", best * np.geomspace(low, high, 15))
        for low, high in ((0.7, 1.4), (0.1, 10), (0.03, 3))
    ]
    narrow, wide, off = (abs(b) for b in bias if b is not None)
    assert narrow < 0.005
    assert wide > narrow
    assert off > 0.02

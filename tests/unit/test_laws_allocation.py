"""Buildable shapes for a budget, and what is said about them."""

from __future__ import annotations

import numpy as np
import pytest

from depthscale.budget import count_parameters, flops_per_token
from depthscale.errors import ConfigError
from depthscale.laws import (
    LAWS,
    WIDTH_DEPTH_TOKENS_FLOPS,
    Form,
    Limits,
    Objective,
    Observations,
    ShapeTemplate,
    allocate,
    bootstrap,
    enumerate_candidates,
    fit,
    most_useful_run,
    optimal_shape,
)

DEPTH = LAWS["width_depth_tokens"]
TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
TEMPLATE = ShapeTemplate(vocab_size=1000, context_length=128, head_dim=64, mlp_ratio=4.0, gated=False)


def rows() -> Observations:
    width, depth, tokens = (
        a.ravel()
        for a in np.meshgrid(np.array([256.0, 512, 1024, 2048]), np.array([4.0, 8, 16, 32]), np.geomspace(1e9, 1e11, 4))
    )
    columns = {"width": width, "depth": depth, "tokens": tokens, "parameters": 12 * width**2 * depth}
    noise = np.exp(0.002 * np.random.default_rng(0).standard_normal(len(width)))
    return Observations(columns, DEPTH.predict(TRUTH, columns) * noise)


@pytest.fixture(scope="module")
def forms() -> list[Form]:
    data = rows()
    made = []
    for name, law, objective in (
        ("depth", DEPTH, Objective()),
        ("depth, Huber", DEPTH, Objective("log_huber")),
        ("parameters", LAWS["chinchilla"], Objective("log_huber")),
    ):
        found = fit(law, data, objective)
        made.append(Form(name, found, bootstrap(found, 200)))
    return made


def test_candidates_are_exact_and_within_limits() -> None:
    limits = Limits(flops=1e19, parameters=2e8, unique_tokens=2e10)
    found = enumerate_candidates(TEMPLATE, limits, range(64, 2048, 96), range(2, 30, 3), rounds=(1, 2))
    assert (found.width % 64 == 0).all()
    assert (found.flops <= 1e19 * (1 + 1e-9)).all()
    assert (found.parameters <= 2e8).all()
    assert (found.tokens <= 2e10).all()
    for i in (0, len(found.width) // 2, -1):
        shape = TEMPLATE.shape(int(found.width[i]), int(found.blocks[i]), int(found.rounds[i]))
        assert found.parameters[i] == count_parameters(shape).non_embedding
        assert found.training_flops[i] == flops_per_token(shape, 128).training


def test_allocation_is_near_the_closed_form(forms: list[Form]) -> None:
    candidates = enumerate_candidates(TEMPLATE, Limits(flops=3e20), range(256, 4096, 64), range(4, 80))
    found = allocate(candidates, forms)
    closed = optimal_shape(DEPTH, {k: np.asarray(v) for k, v in TRUTH.items()}, WIDTH_DEPTH_TOKENS_FLOPS, 3e20)
    # The closed form leaves head and attention out, and knows no steps of 64.
    for name in ("width", "depth", "tokens"):
        assert found.best[name] == pytest.approx(float(closed[name]), rel=0.15)
    low, high = found.intervals["width"]
    assert low <= found.best["width"] <= high
    assert found.prediction[0] < found.loss < found.prediction[1]
    assert set(found.form_losses) == {"depth", "depth, Huber", "parameters"}
    assert (found.near_optimum.width == found.best["width"]).any()
    assert not found.is_extrapolation
    assert found.beyond_data["depth"] == 1.0


def test_far_budgets_are_extrapolation(forms: list[Form]) -> None:
    candidates = enumerate_candidates(TEMPLATE, Limits(flops=1e25), range(8192, 32768, 1024), range(40, 400, 20))
    found = allocate(candidates, forms)
    assert found.is_extrapolation
    assert max(found.beyond_data.values()) > 10


def test_the_most_useful_run_does_help(forms: list[Form]) -> None:
    target = enumerate_candidates(TEMPLATE, Limits(flops=1e22), [4096], [48])
    runs = enumerate_candidates(TEMPLATE, Limits(flops=1e20), range(256, 2049, 256), range(4, 33, 4))
    best, share = most_useful_run(forms[0], target, runs)
    assert 0 < share < 1
    assert 0 <= best < len(runs.width)


def test_what_is_refused(forms: list[Form]) -> None:
    with pytest.raises(ConfigError, match="budget is open"):
        Limits(parameters=1e9)
    with pytest.raises(ConfigError, match="positive number"):
        Limits(flops=-1.0)
    with pytest.raises(ConfigError, match="no shape of the grid"):
        enumerate_candidates(TEMPLATE, Limits(flops=1e18, parameters=10.0), [64], [2])
    with pytest.raises(ConfigError, match="whole number of heads"):
        TEMPLATE.shape(100, 2)
    candidates = enumerate_candidates(TEMPLATE, Limits(flops=1e18), [256], [4])
    with pytest.raises(ConfigError, match="at least 3"):
        allocate(candidates, forms[:2])

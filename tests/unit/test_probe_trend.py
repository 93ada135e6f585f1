"""Slopes of layer means against depth over a family of models."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import linregress

from depthscale.probing.errors import ProbingError
from depthscale.probing.trend import ModelProfile, family_trends

DEPTHS = (4, 8, 16, 32)


def model(depth: int, middle: float, name: str = "") -> ModelProfile:
    """Ends turn by pi/2, the layers between by the same small angle."""
    angles = [np.pi / 2, *[middle] * (depth - 2), np.pi / 2]
    return ModelProfile(name or f"{depth} layers", {"angle": angles, "relative_update": [2 * a for a in angles]})


def test_the_slope_is_the_known_one_without_the_ends() -> None:
    with_ends, without = family_trends([model(depth, 3 / depth) for depth in DEPTHS])[:2]
    assert (with_ends.ends, without.ends) == (True, False)
    assert without.slope == pytest.approx(-1, abs=1e-6)
    assert without.coefficient == pytest.approx(3, rel=1e-6)
    assert with_ends.slope != pytest.approx(-1, abs=1e-2)


def test_slope_and_interval_are_those_of_a_straight_line_in_logs() -> None:
    draw = np.random.default_rng(0)
    models = [model(depth, 3 / depth * np.exp(0.1 * draw.normal()), f"{depth} {i}") for depth in DEPTHS for i in "ab"]
    found = family_trends(models)[1]
    line = linregress(np.log([p[1] for p in found.points]), np.log([p[2] for p in found.points]))
    # 2.4469 is the 97.5 % quantile of Student's t with 6 degrees of freedom (any table).
    assert found.slope == pytest.approx(line.slope, rel=1e-6)
    assert found.lower == pytest.approx(line.slope - 2.4469 * line.stderr, rel=1e-3)
    assert found.upper == pytest.approx(line.slope + 2.4469 * line.stderr, rel=1e-3)


def test_two_depths_give_no_slope_and_say_so() -> None:
    found = family_trends([model(4, 0.1), model(8, 0.1)])
    assert all(trend.slope is None for trend in found)
    assert all("3 different depths" in (trend.reason or "") for trend in found)


def test_a_model_without_middle_layers_is_left_out_of_their_trend() -> None:
    found = family_trends([model(2, 0.1), *(model(depth, 1 / depth) for depth in (4, 8, 16))])
    assert len(found[0].points) == 4
    assert len(found[1].points) == 3
    assert found[1].slope == pytest.approx(-1, abs=1e-6)


def test_different_quantities_are_refused() -> None:
    with pytest.raises(ProbingError, match="same quantities"):
        family_trends([model(4, 0.1), ModelProfile("other", {"angle": [1.0] * 8})])
    with pytest.raises(ProbingError, match="no model"):
        family_trends([])

"""Tests of constraints where rows of one group err together: how often they cry wolf, and what copies do to them."""

from __future__ import annotations

import numpy as np
import pytest

from depthscale.laws import LAWS, Observations, fit
from depthscale.laws.forms import make_forms
from depthscale.laws.regime import interaction_p_value
from depthscale.laws.wald import group_p_value

DEPTH, CHINCHILLA = LAWS["width_depth_tokens"], LAWS["chinchilla"]
TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
SEEDS = range(40)


def rows(seed: int, tokens: int = 3) -> Observations:
    """32 architectures that no interaction tells apart, each with an error of its own that its rows share."""
    axes = (
        np.array([256.0, 512, 1024, 2048]),
        np.array([2.0, 3, 4, 6, 8, 12, 16, 24]),
        np.geomspace(1e9, 1e11, tokens),
    )
    columns = dict(zip(DEPTH.columns, (axis.ravel() for axis in np.meshgrid(*axes)), strict=True))
    generator = np.random.default_rng(seed)
    data = Observations(columns, DEPTH.predict(TRUTH, columns)).grouped_by(["width", "depth"])
    shared = 0.003 * generator.standard_normal(data.num_groups)[data.group_codes]
    noise = np.exp(shared + 0.001 * generator.standard_normal(data.num_rows))
    return Observations(columns, data.loss * noise, groups=data.groups)


@pytest.fixture(scope="module")
def rejections() -> dict[str, int]:
    """How many of 40 true hypotheses are rejected at 5 %."""
    counts = dict.fromkeys(("interaction by rows", "interaction by groups", "exponent by groups"), 0)
    for seed in SEEDS:
        data = rows(seed)
        found = fit(DEPTH, data)
        alone = fit(DEPTH, Observations(data.columns, data.loss))
        p_values = (
            interaction_p_value(alone, "depth", "width"),
            interaction_p_value(found, "depth", "width"),
            group_p_value(found, fixed={"alpha_l": TRUTH["alpha_l"], "alpha_m": TRUTH["alpha_m"]}),
        )
        for name, p_value in zip(counts, p_values, strict=True):
            counts[name] += p_value < 0.05
    return counts


def test_true_hypotheses_are_rejected_about_as_often_as_stated(rejections: dict[str, int]) -> None:
    # Of Binomial(40, .05), 6 and more has a chance of 1.4 %.
    assert rejections["interaction by groups"] <= 6
    assert rejections["exponent by groups"] <= 6
    # What the groups are for: rows taken as independent cry wolf.
    assert rejections["interaction by rows"] >= 9


def test_copies_of_rows_are_no_news() -> None:
    data = rows(0)
    thrice = data.take(np.repeat(np.arange(data.num_rows), 3))
    once, copied = (fit(DEPTH, part) for part in (data, thrice))
    for test in (
        lambda found: interaction_p_value(found, "depth", "width"),
        lambda found: group_p_value(found, fixed={"alpha_l": 1.2}),
        lambda found: group_p_value(found, pairs=[("alpha_m", "alpha_l")]),
    ):
        assert test(copied) == pytest.approx(test(once), rel=1e-3)


def test_no_groups_no_answer_and_too_few_neither() -> None:
    data = rows(0)
    alone = fit(DEPTH, Observations(data.columns, data.loss))
    assert group_p_value(alone, fixed={"alpha_l": 1.0}) is None
    two = fit(DEPTH, Observations(data.columns, data.loss, groups=np.arange(data.num_rows) % 2))
    assert group_p_value(two, fixed={"alpha_l": 1.0, "alpha_m": 1.0}) is None


def test_a_special_case_that_only_copies_reject_is_kept() -> None:
    """Equal exponents are true here; 30 copies of each row reject them by rows, not by groups."""
    sizes, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e11, 6)))
    columns = {"parameters": sizes, "tokens": tokens}
    truth = {"E": 1.8, "A": 400.0, "B": 900.0, "alpha": 0.34, "beta": 0.34}
    noise = np.exp(0.004 * np.random.default_rng(5).standard_normal(36))
    data = Observations(columns, CHINCHILLA.predict(truth, columns) * noise, groups=np.arange(36))
    copies = data.take(np.repeat(np.arange(36), 30))
    names = [form.name for form in make_forms(fit(CHINCHILLA, copies), num_replicates=60)[0]]
    assert "both exponents equal" in names
    alone = Observations(copies.columns, copies.loss)
    left_out = make_forms(fit(CHINCHILLA, alone), num_replicates=60)[1]
    assert any(line.startswith("both exponents equal: rejected") for line in left_out)

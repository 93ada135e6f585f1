"""Weights, groups and what counts: rows of weight zero, few groups, pairing of arms, rows that err together."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from depthscale.errors import ConfigError, DataError
from depthscale.laws import (
    CHINCHILLA_FLOPS,
    LAWS,
    Bootstrap,
    ColumnMap,
    DataCard,
    Fit,
    Observations,
    ShapeTemplate,
    audit,
    bootstrap,
    compare,
    enumerate_candidates,
    fit,
    join_arms,
    parameter,
    profile,
    regime_test,
    sandwich_covariance,
)
from depthscale.laws import analysis as analysis_module
from depthscale.laws.allocation.allocate import Form, most_useful_run
from depthscale.laws.allocation.candidates import Limits
from depthscale.laws.analysis import Question, analyze
from depthscale.laws.preparation import RowRule, prepare
from depthscale.laws.rows_file import read_rows, write_rows
from depthscale.laws.tables import from_table
from depthscale.laws.validation import prediction_errors

CHINCHILLA, DEPTH = LAWS["chinchilla"], LAWS["width_depth_tokens"]
TRUTH = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
SHAPE_TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.0, 0.299), strict=True))


def grid(seed: int = 0, keep: slice = slice(None), shared_noise: float = 0.0) -> Observations:
    """7 x 7 sizes and tokens; ``shared_noise`` moves all rows of one size together."""
    sizes, tokens = (a.ravel()[keep] for a in np.meshgrid(np.geomspace(1e8, 1e10, 7), np.geomspace(2e9, 2e11, 7)))
    columns = {"parameters": sizes, "tokens": tokens}
    generator = np.random.default_rng(seed)
    noise = 0.003 * generator.standard_normal(49)[keep]
    _, codes = np.unique(sizes, return_inverse=True)
    noise = noise + shared_noise * generator.standard_normal(7)[codes]
    return Observations(columns, CHINCHILLA.predict(TRUTH, columns) * np.exp(noise))


def shapes(shared_noise: float = 0.004) -> Observations:
    """9 depths over a factor 8 at 4 widths; rows of one architecture err together."""
    width, depth, tokens = (
        a.ravel() for a in np.meshgrid(np.geomspace(256, 2048, 4), np.arange(4.0, 33, 3.5), np.geomspace(1e9, 1e11, 4))
    )
    columns = {"width": width, "depth": np.round(depth), "tokens": tokens}
    rows = Observations(columns, DEPTH.predict(SHAPE_TRUTH, columns)).grouped_by(["width", "depth"])
    generator = np.random.default_rng(3)
    noise = (
        0.001 * generator.standard_normal(len(width)) + shared_noise * generator.standard_normal(36)[rows.group_codes]
    )
    return rows.with_loss(rows.loss * np.exp(noise))


@pytest.fixture(scope="module")
def grouped() -> Fit:
    return fit(DEPTH, shapes())


def test_weights_and_units_of_the_loss_are_read_and_written(tmp_path) -> None:
    columns = ColumnMap.parse("x=a,loss=bits:0.6931471805599453,weight=w,group=run")
    data = from_table({"a": [1, 2, 4], "bits": [3, 2, 1], "w": [1, 0.5, 2], "run": ["p", "p", "q"]}, columns)
    np.testing.assert_allclose(data.loss, np.log(2) * np.array([3, 2, 1]))
    np.testing.assert_array_equal(data.row_weights, [1, 0.5, 2])
    write_rows(tmp_path / "rows.csv", data)
    back = read_rows(tmp_path / "rows.csv")
    assert back.digest == data.digest
    np.testing.assert_array_equal(back.row_weights, data.row_weights)
    np.testing.assert_array_equal(back.group_codes, data.group_codes)


def test_reserved_names_are_no_columns_of_a_law() -> None:
    with pytest.raises(ConfigError, match="'loss' came as a column of the law"):
        ColumnMap({"loss": ("a", 1.0)})
    with pytest.raises(ConfigError, match="a weight takes none"):
        ColumnMap.parse("weight=w:2")
    with pytest.raises(ConfigError, match="each name once"):
        ColumnMap.parse("loss=a,loss=b")


def test_a_weighted_fit_is_that_of_repeated_rows() -> None:
    data = grid()
    weights = np.where(np.arange(49) % 4 == 0, 2.0, 1.0)
    weighed = fit(CHINCHILLA, dataclasses.replace(data, weights=weights))
    repeated = fit(CHINCHILLA, data.take(np.repeat(np.arange(49), weights.astype(int))))
    assert weighed.parameters == pytest.approx(repeated.parameters, rel=1e-6)


def test_rows_of_weight_zero_count_nowhere() -> None:
    data = grid().grouped_by(["parameters", "tokens"])
    kept = np.arange(49) % 3 > 0
    weighed = fit(CHINCHILLA, dataclasses.replace(data, weights=kept.astype(float)))
    alone = fit(CHINCHILLA, data.take(kept))
    for clustered in (False, True):
        here, there = (sandwich_covariance(found, clustered).errors for found in (weighed, alone))
        assert here == pytest.approx(there, rel=1e-5)
    (here,), (there,) = (profile(found, [parameter(found, "alpha")]) for found in (weighed, alone))
    assert (here.lower, here.upper) == pytest.approx((there.lower, there.upper), rel=1e-5)
    assert bootstrap(weighed, 20, clusters=True).num_units == int(kept.sum())
    deep = shapes()
    few = dataclasses.replace(deep, weights=(deep.column("depth") < 12).astype(float))
    assert regime_test(DEPTH, few).num_depths == len(np.unique(deep.column("depth")[deep.column("depth") < 12]))
    prepared = prepare(dataclasses.replace(grid(), weights=kept.astype(float)), CHINCHILLA, RowRule(), DataCard(), None)
    assert prepared.base.num_rows == int(kept.sum())
    assert any("17 rows have no weight" in note for note in prepared.notes)


def test_few_groups_of_ones_own_are_refused() -> None:
    data = dataclasses.replace(grid(), groups=np.arange(49) % 5)
    with pytest.raises(DataError, match=r"5 groups came.*--independent-rows"):
        prepare(data, CHINCHILLA, RowRule(), DataCard(), None)
    assert prepare(data, CHINCHILLA, RowRule(independent=True), DataCard(), None).base.groups is None


def test_no_bootstrap_interval_where_many_replicates_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def mostly_refused(found: Fit, count: int, seed: int = 0, clusters: bool = False) -> Bootstrap:
        return dataclasses.replace(bootstrap(found, count, seed, clusters), num_discarded=count)

    rows = prepare(grid(), CHINCHILLA, RowRule(independent=True), DataCard(), None)
    question = Question(num_replicates=30, validate=False)
    assert analyze(CHINCHILLA, rows, DataCard(), question)[1]["interval_kind"].startswith("bootstrap")
    monkeypatch.setattr(analysis_module, "bootstrap", mostly_refused)
    result = analyze(CHINCHILLA, rows, DataCard(), question)[1]
    assert result["interval_kind"].startswith("profile likelihood")
    assert all(row["interval"] == row["profile"] for row in result["parameters"])
    assert any("too many for a bootstrap interval" in line for line in result["warnings"])


def test_arms_are_paired_by_what_the_groups_mean() -> None:
    # The second arm lacks the smallest size, so its own numbers of groups are shifted by one.
    first = grid().grouped_by(["parameters"])
    second = grid(1).take(grid(1).column("parameters") > 1.1e8).grouped_by(["parameters"])
    joined = join_arms([first, second])
    for code in np.unique(joined.group_codes):
        assert len(np.unique(joined.column("parameters")[joined.group_codes == code])) == 1
    assert joined.num_groups == 7
    found = compare(CHINCHILLA, first, second, CHINCHILLA_FLOPS, [1e20], num_replicates=50)
    assert found.savings[0].bootstrap_kind == "paired clusters"
    alone = compare(CHINCHILLA, grid(), grid(1), CHINCHILLA_FLOPS, [1e20], num_replicates=50)
    assert alone.savings[0].bootstrap_kind == "rows"


def test_the_gate_of_the_regime_counts_layers_as_built() -> None:
    data = shapes()
    built = regime_test(DEPTH, data)
    less = data.with_column("depth", data.column("depth") - 2)
    assert regime_test(DEPTH, less, depth_offset=2.0).depth_range == pytest.approx(built.depth_range)
    prepared = prepare(data, DEPTH, RowRule(depth_offset=2.0), DataCard(), None)
    result = analyze(DEPTH, prepared, DataCard(), Question(num_replicates=0, validate=False))[1]
    assert result["regime"]["depth_range"] == pytest.approx(built.depth_range)


def test_rows_that_err_together_are_counted_together(grouped: Fit) -> None:
    """Errors of conventions, predictions, proposed runs and the regime's verdict are by groups."""
    single = dataclasses.replace(grouped, data=dataclasses.replace(grouped.data, groups=None))
    together = sandwich_covariance(grouped, clustered=True).errors
    assert together["alpha_l"] > 1.2 * sandwich_covariance(grouped).errors["alpha_l"]
    assert audit(DEPTH, grouped.data, {}).errors == pytest.approx(together)
    assert (prediction_errors(grouped, grouped.data)[1] > prediction_errors(single, grouped.data)[1]).mean() > 0.5

    template = ShapeTemplate(vocab_size=1000, context_length=128)
    target = enumerate_candidates(template, Limits(flops=1e22), [4096], [48])
    runs = enumerate_candidates(template, Limits(flops=1e20), range(256, 2049, 256), range(4, 33, 4))
    draws = Bootstrap("clusters", DEPTH.parameters, np.ones((1, 7)), 0, 36)
    shares = [most_useful_run(Form("f", found, draws), target, runs)[1] for found in (grouped, single)]
    assert shares[0] != pytest.approx(shares[1], rel=1e-3)

    answer = regime_test(DEPTH, grouped.data)
    assert answer.design_effect > 1.4
    held = answer.held["procedural_assembly"]
    assert held.group_p_value > held.p_value
    assert regime_test(DEPTH, dataclasses.replace(grouped.data, groups=None)).design_effect is None

"""Rows of a fit: one numbering of groups over both arms, row numbers of the table, loops counted as loops, units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_study import write_synthetic_study

from depthscale.budget import ModelShape, count_parameters, flops_per_token
from depthscale.errors import ConfigError, DataError
from depthscale.laws import LAWS, AdditiveLaw, DataCard, Observations, inspect_rows
from depthscale.laws.preparation import RowRule, prepare, rows_from_table
from depthscale.laws.run_directories import read_runs, shared_runs
from depthscale.laws.tables import ColumnMap, from_table, rows_where
from depthscale.plan import DepthPlan
from depthscale.reports.spending_charts import map_chart

CHINCHILLA, DEPTH = LAWS["chinchilla"], LAWS["width_depth_tokens"]


def grid(**changes: np.ndarray) -> Observations:
    names = ("width", "depth", "tokens")
    axes = np.meshgrid(np.array([256.0, 512, 1024]), np.array([4.0, 8, 16]), np.array([1e9, 1e10]))
    columns = {**dict(zip(names, (axis.ravel() for axis in axes), strict=True)), **changes}
    return Observations(columns, 2 + np.linspace(0, 1, 18))


def test_a_label_has_one_number_in_both_arms() -> None:
    table = {"arm": list("aaabb"), "run": list("xyzzx"), "loss": [1, 2, 3, 4, 5], "x": [1, 2, 3, 4, 5]}
    columns = ColumnMap.parse("x=x,group=run")
    codes = {}
    for arm in "ab":
        groups = from_table(rows_where(table, "arm", arm), columns, table).groups
        assert groups is not None
        codes[arm] = groups.tolist()
    assert codes == {"a": [0, 1, 2], "b": [2, 0]}


def test_names_that_nothing_reads_are_refused() -> None:
    table = {"parameters": [1], "tokens": [1], "loss": [1], "run": [1]}
    for text, words in (
        ("gruop=run", "'gruop'; did you mean 'group'"),
        ("wieght=run", "did you mean 'weight'"),
        ("total_step=run", "did you mean 'total_steps'"),
    ):
        with pytest.raises(ConfigError, match=words):
            rows_from_table(table, CHINCHILLA, text)


@pytest.mark.parametrize("amount", [np.nan, 0.0, np.inf])
def test_amounts_that_are_none_are_refused(amount: float) -> None:
    sizes = {"parameters": np.full(18, 1e7), "flops": np.full(18, 6e16)}
    sizes["flops"][5] = amount
    data = grid(**sizes)
    for look in (lambda: inspect_rows(data), lambda: prepare(data, DEPTH, RowRule(), DataCard(), None)):
        with pytest.raises(DataError, match=r"column 'flops' has \S+ in row 5; expected positive finite"):
            look()


def test_rows_keep_their_numbers_when_others_are_cut() -> None:
    steps = {"step": np.where(np.arange(18) < 3, 5.0, 10.0), "total_steps": np.full(18, 10.0)}
    width = grid().columns["width"].copy()
    width[8] = 0
    with pytest.raises(DataError, match="column 'width' has 0 in row 8"):
        prepare(grid(width=width, **steps), DEPTH, RowRule(), DataCard(), None)
    # A row that is cut anyway refuses nothing.
    width = grid().columns["width"].copy()
    width[2] = 0
    assert prepare(grid(width=width, **steps), DEPTH, RowRule(), DataCard(), None).base.num_rows == 15
    shallow = grid().columns["depth"].copy()
    shallow[9] = 1
    with pytest.raises(DataError, match="depth - 2 is -1 in row 9"):
        prepare(grid(depth=shallow, **steps), DEPTH, RowRule(depth_offset=2), DataCard(), None)


def test_the_cut_says_that_rows_were_left_out_before_it() -> None:
    steps = {"step": np.where(np.arange(18) < 3, 5.0, 10.0), "total_steps": np.full(18, 10.0)}
    notes = prepare(grid(**steps), DEPTH, RowRule(), DataCard(), None).notes
    assert "15 of 18 rows are fitted: every row of the 15 that are not left out" in notes
    assert "18 of 18 rows are fitted: every row" in prepare(grid(), DEPTH, RowRule(), DataCard(), None).notes


def test_an_offset_is_said_of_laws_that_read_depth() -> None:
    sizes = {"parameters": 12 * grid().columns["width"] ** 2 * grid().columns["depth"]}
    notes = prepare(grid(**sizes), CHINCHILLA, RowRule(depth_offset=2), DataCard(), None).notes
    assert not any(note.startswith("depth counts layers") for note in notes)
    assert any("'chinchilla' reads no depth" in note for note in notes)
    columns = {name: grid(**sizes).columns[name] for name in ("parameters", "tokens")}
    with pytest.raises(ConfigError, match="no column depth"):
        prepare(Observations(columns, grid().loss), CHINCHILLA, RowRule(depth_offset=2), DataCard(), None)


@pytest.mark.parametrize(
    ("law", "sizes"),
    [
        ("effective_depth", {"width": "width", "blocks": "depth", "rounds": None}),
        ("looped_chinchilla", {"unrolled_parameters": "unrolled"}),
    ],
)
def test_tokens_in_millions_are_refused_under_looped_laws_too(law: str, sizes: dict[str, str | None]) -> None:
    rows = grid()
    known = {**rows.columns, "unrolled": 12 * rows.columns["width"] ** 2 * rows.columns["depth"]}
    columns = {name: np.tile([1.0, 2.0], 9) if source is None else known[source] for name, source in sizes.items()}
    good = Observations({**columns, "tokens": rows.columns["tokens"]}, rows.loss)
    assert prepare(good, LAWS[law], RowRule(independent=True), DataCard(), None).base.num_rows == 18
    with pytest.raises(DataError, match="give units, such as --columns tokens=COLUMN:1e6"):
        prepare(good.with_column("tokens", rows.columns["tokens"] / 1e6), LAWS[law], RowRule(), DataCard(), None)


def looped_rows() -> tuple[Observations, DataCard]:
    """Four blocks of which two are looped, gelu at a ratio that looks gated; counted by the budget room."""
    names = ("width", "depth", "blocks", "rounds", "tokens", "parameters", "flops")
    table = []
    for width in (64, 128, 256):
        for rounds in (1, 2, 4):
            plan = DepthPlan.looped(2, rounds, prelude=1, coda=1)
            shape = ModelShape(plan, 1000, width, 1, 1, width, 2 * width, mlp="gelu", norm_placement="pre")
            cost = float(flops_per_token(shape, 128).training) * 1e8
            size = float(count_parameters(shape).non_embedding)
            table.append((width, plan.unrolled_depth, 4, rounds, 1e8, size, cost))
    columns = dict(zip(names, np.array(table, dtype=float).T, strict=True))
    return Observations(columns, 2 + np.linspace(0, 1, 9)), DataCard(
        vocab_size=1000, mlp_ratio=2.0, embeddings_counted=False, mlp="gelu"
    )


def test_looped_rows_are_counted_as_loops() -> None:
    data, card = looped_rows()
    kinds = {finding.kind for finding in prepare(data, DEPTH, RowRule(), card, 128).findings}
    assert not kinds & {"parameters", "flops"}
    wrong = data.with_column("parameters", data.columns["parameters"] * np.where(np.arange(9) == 4, 1.1, 1.0))
    found = {finding.kind: finding.rows for finding in prepare(wrong, DEPTH, RowRule(), card, 128).findings}
    assert found["parameters"] == (4,)
    # As swiglu, which the ratio alone suggests, every row would be odd.
    kinds = {finding.kind for finding in prepare(data, DEPTH, RowRule(), replace(card, mlp=None), None).findings}
    assert "parameters" in kinds


def test_a_looped_study_raises_no_alarm_and_says_its_mlp_and_context(tmp_path: Path) -> None:
    losses = {("pre", rounds): 2.5 + 0.1 / rounds for rounds in range(1, 5)}
    study = write_synthetic_study(tmp_path / "study", losses=losses, seeds=(0, 1), with_tuning=False)
    found = read_runs([study], "pre")
    law = AdditiveLaw.from_dict(
        {
            "name": "by_rounds",
            "floor": "L",
            "terms": [{"coefficient": "Z", "factors": [{"column": "rounds", "exponent": "z"}]}],
        }
    )
    assert prepare(found.data, law, RowRule(), found.card, None).findings == ()
    assert (found.card.mlp, found.card.context_length) == ("swiglu", 128)
    assert found.card.unanswered == ("rate_tuned",)


def test_an_arm_is_asked_of_run_directories_too(tmp_path: Path) -> None:
    losses = {(arm, 1): 2.5 for arm in ("pre", "deeploop")}
    study = write_synthetic_study(tmp_path / "study", losses=losses, seeds=(0,), with_tuning=False)
    runs = sorted((study / "runs").iterdir())
    assert [run.name for run in shared_runs(runs, "pre", "*")] == ["pre-r1-s0"]
    assert read_runs(runs, "pre").data.num_rows == 1
    assert read_runs(runs).data.num_rows == 2
    with pytest.raises(DataError, match="none of the 2 runs is of arm 'nonsense'; their arms: deeploop, pre"):
        read_runs(runs, "nonsense")


def test_a_map_of_one_width_is_drawn_without_contours() -> None:
    data = {"widths": [64], "depths": [2, 4], "above_best": [[0.0], [0.02]]}
    chart = map_chart("allocation-chosen", "Shapes", data, (64.0, 2.0), None)
    assert chart.rows == ((64.0, 2.0, 0.0), (64.0, 4.0, 2.0))

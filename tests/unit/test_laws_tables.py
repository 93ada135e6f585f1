"""Tables, data cards and what is found wrong with rows before a fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from depthscale.errors import ConfigError, DataError, MissingExtraError
from depthscale.laws import (
    ColumnMap,
    DataCard,
    FitError,
    Observations,
    best_over_rates,
    finished_rows,
    from_json,
    inspect_rows,
    read_table,
)
from depthscale.laws.card import compare_with_budget

TABLE = "d_model,n_layers,D,run,val_loss\n512,8,10,a,3.0\n512,8,20,a,2.9\n1024,16,20,b,2.5\n"


def test_columns_units_and_groups(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(TABLE)
    columns = ColumnMap.parse("width=d_model, depth=n_layers, tokens=D:1e9, loss=val_loss, group=run")
    data = read_table(path, columns)
    np.testing.assert_array_equal(data.column("tokens"), [1e10, 2e10, 2e10])
    np.testing.assert_array_equal(data.loss, [3.0, 2.9, 2.5])
    np.testing.assert_array_equal(data.group_codes, [0, 0, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [("width", "name=column"), ("a=b,a=c", "each name once"), ("a=b:x", "no positive number"), ("a=b:-1", "positive")],
)
def test_column_maps_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ColumnMap.parse(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TABLE.replace("2.9", "n/a"), "'n/a' in row 1"),
        (TABLE.replace("2.9", "-2.9"), "row 1"),
        (TABLE.replace("2.9", "nan"), "row 1"),
        (TABLE.replace(",2.9", ""), "row 1 .* cells"),
        (TABLE.replace("val_loss", "val_los"), "did you mean 'val_los'"),
        ("d_model\n", "no rows"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_table(path, ColumnMap.parse("width=d_model,loss=val_loss"))


def test_files_that_are_refused(tmp_path: Path) -> None:
    columns = ColumnMap.parse("width=d_model")
    with pytest.raises(DataError, match="no table"):
        read_table(tmp_path / "absent.csv", columns)
    other = tmp_path / "runs.xlsx"
    other.write_bytes(b"x")
    with pytest.raises(DataError, match=r"expected \.csv or \.parquet"):
        read_table(other, columns)


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    columns = ColumnMap.parse("width=d_model")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        path.write_bytes(b"PAR1")
        with pytest.raises(MissingExtraError, match="pyarrow"):
            read_table(path, columns)
        return
    pyarrow.parquet.write_table(pyarrow.table({"d_model": [512, 1024], "loss": [3.0, 2.5]}), path)
    np.testing.assert_array_equal(read_table(path, columns).column("width"), [512.0, 1024.0])


def rows(**changes: np.ndarray) -> Observations:
    columns = {"parameters": np.array([1e8, 2e8, 4e8]), "tokens": np.array([1e9, 2e9, 4e9])}
    columns["flops"] = 6 * columns["parameters"] * columns["tokens"]
    return Observations({**columns, **changes}, np.array([3.2, 3.0, 2.8]))


def test_sound_rows_have_no_findings() -> None:
    assert inspect_rows(rows()) == ()


def test_units_off_by_a_million_are_found() -> None:
    (finding,) = inspect_rows(rows(tokens=np.array([1e3, 2e3, 4e3])))
    assert finding.kind == "units"
    assert finding.rows == (0, 1, 2)
    assert "1e6 times" in finding.message


def test_duplicates_constants_and_unfinished_rows_are_found() -> None:
    doubled = rows(step=np.array([5.0, 10, 10]), total_steps=np.array([10.0, 10, 10])).take(np.array([0, 1, 1, 2]))
    found = {finding.kind: finding.rows for finding in inspect_rows(doubled)}
    assert found["duplicates"] == (2,)
    assert found["mid_schedule"] == (0,)
    assert "constant" in found
    assert finished_rows(doubled).num_rows == 3
    with pytest.raises(DataError, match="no row reaches"):
        finished_rows(rows(step=np.ones(3), total_steps=np.full(3, 2.0)))
    assert finished_rows(rows()).num_rows == 3


def test_rows_that_differ_from_the_budget_are_listed() -> None:
    expected = np.array([100.0, 200.0, 400.0])
    assert compare_with_budget(np.array([101.0, 200.0, 396.0]), expected, "parameters") is None
    finding = compare_with_budget(np.array([103.0, 200.0, 300.0]), expected, "parameters")
    assert finding is not None
    assert finding.rows == (0, 2)
    assert "row 2" in finding.message


def test_envelope_over_learning_rates() -> None:
    data = Observations(
        {"width": np.array([64.0, 64, 128, 128]), "rate": np.array([1e-3, 1e-2, 1e-3, 1e-2])},
        np.array([3.0, 2.8, 2.5, 2.6]),
    )
    np.testing.assert_array_equal(best_over_rates(data, ["width"]).loss, [2.8, 2.5])


def test_card_says_what_is_not_known() -> None:
    card = DataCard(annealed=False, tokenizer="gpt2", rate_tuned=True)
    assert card.unanswered == ("vocab_size", "mlp_ratio", "embeddings_counted")
    assert len(card.warnings) == 1


def test_observations_that_are_refused() -> None:
    with pytest.raises(DataError, match="one entry per loss"):
        Observations({"x": np.ones(3)}, np.ones(2))
    with pytest.raises(DataError, match="weights"):
        Observations({"x": np.ones(2)}, np.ones(2), weights=np.array([-1.0, 1.0]))
    with pytest.raises(DataError, match="did you mean 'width'"):
        Observations({"width": np.ones(2)}, np.ones(2)).column("widht")


def test_stored_fits_without_a_certificate_are_refused() -> None:
    from depthscale.errors import ResultError

    with pytest.raises(ResultError, match="no stored fit"):
        from_json("{}")
    with pytest.raises(ResultError, match="no certificate"):
        from_json(
            '{"law": {"name": "g", "floor": null, "terms": [{"coefficient": "c", "factors": []}]},'
            ' "parameters": {"c": 1.0}, "certificate": {"holds": false}}'
        )
    assert issubclass(FitError, ValueError)

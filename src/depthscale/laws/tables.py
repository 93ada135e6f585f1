"""CSV and Parquet tables as rows for a fit, with the user's own column names and units."""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, DataError, MissingExtraError, unknown_name
from depthscale.laws.observations import Observations

Array = NDArray[np.float64]

LOSS = "loss"
GROUP = "group"
WEIGHT = "weight"
#: Names that no column of a law may have: files of rows use them.
RESERVED = (LOSS, WEIGHT, GROUP)
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class ColumnMap:
    """Which column of a table is what.

    Attributes:
        sources: name in the law to (name in the table, unit); values are multiplied by the unit.
        loss: column of the loss.
        groups: columns whose joint values say which rows belong together; empty for none.
        loss_unit: losses are multiplied by it; ln 2 for losses in bits.
        weights: column of the rows' weights; None weighs every row 1.
    """

    sources: Mapping[str, tuple[str, float]]
    loss: str = LOSS
    groups: tuple[str, ...] = ()
    loss_unit: float = 1.0
    weights: str | None = None

    def __post_init__(self) -> None:
        for name in RESERVED:
            if name in self.sources:
                raise ConfigError(f"column '{name}' came as a column of the law; expected another name: it is reserved")

    @classmethod
    def parse(cls, text: str) -> ColumnMap:
        """Read ``width=d_model,tokens=num_tokens:1e6,loss=val_loss,group=run_id+seed,weight=w``.

        Raises:
            ConfigError: an entry is not name=column or name=column:unit.

        Example:
            >>> ColumnMap.parse("depth=n_layers,tokens=D:1e6,group=run").sources["tokens"]
            ('D', 1000000.0)
        """
        sources: dict[str, tuple[str, float]] = {}
        named: dict[str, tuple[str, float]] = {}
        for entry in text.split(","):
            name, equals, rest = (part.strip() for part in entry.partition("="))
            source, colon, unit = (part.strip() for part in rest.partition(":"))
            if not (name and equals and source) or name in sources or name in named:
                raise ConfigError(
                    f"columns entry '{entry.strip()}' is not understood;"
                    " expected name=column or name=column:unit, each name once"
                )
            if name in (GROUP, WEIGHT) and colon:
                raise ConfigError(f"columns entry '{entry.strip()}' has a unit; a {name} takes none")
            (named if name in RESERVED else sources)[name] = (source, _unit(entry, unit) if colon else 1.0)
        loss, loss_unit = named.get(LOSS, (LOSS, 1.0))
        groups = tuple(part.strip() for part in named[GROUP][0].split("+")) if GROUP in named else ()
        return cls(sources, loss, groups, loss_unit, named[WEIGHT][0] if WEIGHT in named else None)


def read_table(path: Path, columns: ColumnMap) -> Observations:
    """Read a table by its ending, ``.csv`` or ``.parquet``.

    Raises:
        DataError: the file or a column is missing, or a cell is no number; the row is named.
    """
    return from_table(read_columns(path), columns)


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a table under its own names, as they are written in it.

    Raises:
        DataError: the file is missing, empty or no table.
        MissingExtraError: a Parquet table without pyarrow.
    """
    if not path.is_file():
        raise DataError(f"no table at {path}; expected a .csv or .parquet file")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix == ".csv":
        return _read_csv(path)
    raise DataError(f"table {path.name} ends in '{path.suffix}'; expected .csv or .parquet")


def rows_where(table: Mapping[str, list[Any]], column: str, value: str) -> dict[str, list[Any]]:
    """The rows of a table whose cell in ``column`` reads ``value``.

    Example:
        >>> rows_where({"arm": ["a", "b"], "loss": [3.0, 2.0]}, "arm", "b")
        {'arm': ['b'], 'loss': [2.0]}

    Raises:
        DataError: there is no such column, or no such row.
    """
    kept = [row for row, cell in enumerate(_column(table, column)) if str(cell) == value]
    if not kept:
        values = list(dict.fromkeys(map(str, table[column])))
        raise DataError(unknown_name(f"value of column '{column}'", value, values))
    return {name: [cells[row] for row in kept] for name, cells in table.items()}


def from_table(
    table: Mapping[str, list[Any]], columns: ColumnMap, whole: Mapping[str, list[Any]] | None = None
) -> Observations:
    """Rows from columns in memory, such as those of a study's runs.

    Args:
        table: the rows.
        columns: which column is what.
        whole: the table that these rows are a part of, such as one arm's: its labels number the groups, so that a
            label has the same number in every part.
    """
    values = {name: _numbers(table, source) * unit for name, (source, unit) in columns.sources.items()}
    groups = None
    if columns.groups:
        codes = {label: code for code, label in enumerate(dict.fromkeys(_labels(whole or table, columns.groups)))}
        groups = np.array([codes[label] for label in _labels(table, columns.groups)], dtype=np.intp)
    weights = None if columns.weights is None else _numbers(table, columns.weights)
    return Observations(values, _numbers(table, columns.loss) * columns.loss_unit, weights, groups)


def _read_csv(path: Path) -> dict[str, list[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            names = list(reader.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name} is no readable CSV table ({error}); expected UTF-8 text with a header") from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"the header of {path.name} names {', '.join(twice)} twice; expected each column once")
    separator = next((mark for mark in _SEPARATORS if len(names) == 1 and mark in names[0]), None)
    if separator is not None:
        raise DataError(f"{path.name} is separated by {_SEPARATORS[separator]}; expected commas")
    if not rows:
        raise DataError(f"{path.name} holds no rows; expected a header line and at least one row")
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise DataError(f"row {number} of {path.name} does not have {len(names)} cells, as the header does")
    return {name: [row[name] for row in rows] for name in names}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("fit", "eval", "pyarrow") from error
    try:
        result: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    # Arrow's own errors are a ValueError, an OSError or a NotImplementedError by what is damaged.
    except (ValueError, OSError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path.name} is no readable Parquet table ({reason}); write it again") from error
    return result


def _column(table: Mapping[str, list[Any]], name: str) -> list[Any]:
    if name not in table:
        raise DataError(unknown_name("table column", name, table))
    return table[name]


def _labels(table: Mapping[str, list[Any]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Joint values of some columns, row by row."""
    return list(zip(*(_column(table, name) for name in names), strict=True))


def is_numeric(cells: Sequence[Any]) -> bool:
    """Every cell reads as a number."""
    try:
        for cell in cells:
            float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _numbers(table: Mapping[str, list[Any]], name: str) -> Array:
    cells = _column(table, name)
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            values[row] = float(cell)
        except (TypeError, ValueError):
            raise DataError(f"column '{name}' has {cell!r} in row {row}; expected a number") from None
    return values


def _unit(entry: str, text: str) -> float:
    try:
        unit = float(text)
    except ValueError:
        unit = math.nan
    if not (math.isfinite(unit) and unit > 0):
        raise ConfigError(f"unit in '{entry.strip()}' is no positive number; expected for example tokens=D:1e6")
    return unit

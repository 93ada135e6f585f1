"""The rows of a fit as a CSV table of their own, at full precision: what allocations and figures are made from."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from depthscale.errors import DataError
from depthscale.laws.observations import Observations
from depthscale.laws.tables import GROUP, LOSS, WEIGHT, read_columns
from depthscale.runs.files import atomic_write_text

#: Name of the file in a fit's directory.
ROWS_FILE = "rows.csv"


def write_rows(path: Path, data: Observations) -> None:
    """Every column in natural units, then loss, and weight and group where the rows have them."""
    names, columns = list(data.columns), list(data.columns.values())
    names, columns = [*names, LOSS], [*columns, data.loss]
    if data.weights is not None:
        names, columns = [*names, WEIGHT], [*columns, data.weights]
    cells = [column.tolist() for column in columns]
    if data.groups is not None:
        names, cells = [*names, GROUP], [*cells, data.group_codes.tolist()]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    # csv writes a float as repr does, which reads back to the same bits.
    writer.writerows(zip(*cells, strict=True))
    atomic_write_text(path, buffer.getvalue())


def read_rows(path: Path) -> Observations:
    """Read what :func:`write_rows` wrote.

    Raises:
        DataError: the file is missing or damaged.
    """
    table = read_columns(path)
    if LOSS not in table:
        raise DataError(f"{path} has no column '{LOSS}'; run 'depthscale fit' again")
    try:
        values = {name: np.array(cells, dtype=np.float64) for name, cells in table.items()}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); run 'depthscale fit' again") from error
    groups = values.pop(GROUP, None)
    return Observations(
        {name: column for name, column in values.items() if name not in (LOSS, WEIGHT)},
        values[LOSS],
        values.get(WEIGHT),
        None if groups is None else groups.astype(np.intp),
    )

"""A data set's repository as the Hub would hold it: a folder of Parquet files of small texts."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow
from pyarrow import parquet

WORDS = "the cat sat on a mat while one old dog ran far away from its red house and slept".split()  # noqa: SIM905


def text_of(number: int, num_words: int = 24) -> str:
    """A text of its own for every number."""
    drawn = random.Random(number)
    return f"{number}: " + " ".join(drawn.choice(WORDS) for _ in range(num_words))


def write_repository(folder: Path, num_files: int = 3, num_rows: int = 60, subset: str | None = None) -> Path:
    """``num_files`` Parquet files of ``num_rows`` texts each, ten to a row group; ``subset`` names all of them."""
    (folder / "data").mkdir(parents=True)
    if subset:
        (folder / "README.md").write_text(
            f"---\nconfigs:\n- config_name: {subset}\n  data_files:\n  - split: train\n    path: data/*.parquet\n---\n"
        )
    for file in range(num_files):
        rows = range(file * num_rows, (file + 1) * num_rows)
        table = pyarrow.table({"id": list(rows), "text": [text_of(row) for row in rows]})
        parquet.write_table(table, folder / "data" / f"train-{file:05d}.parquet", row_group_size=10)
    return folder

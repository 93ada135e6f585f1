"""Parquet files as a corpus that is held as a whole."""

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from stream_repository import text_of, write_repository

from depthscale.errors import DataError
from depthscale.runs.data_config import DataConfig
from depthscale.training.corpora import read_corpus
from depthscale.training.prepare import prepare_data


def write(path: Path, columns: dict[str, list[object]]) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_parquet_file_holds_a_document_a_row(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", {"text": ["one\r\n", "  ", "two\u2028é"], "n": [1, 2, 3]})
    assert [(d.name, d.text) for d in read_corpus(str(file))] == [
        ("a.parquet:1", "one\r\n"),
        ("a.parquet:3", "two\u2028é"),
    ]


def test_a_folder_mixes_parquet_and_text_in_sorted_order(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", {"body": ["b1", "b2"]})
    (tmp_path / "a.txt").write_text("a")
    documents = read_corpus(str(tmp_path), text_field="body")
    assert [d.text for d in documents] == ["a", "b1", "b2"]


def test_a_parquet_corpus_is_prepared_as_any_other(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository", num_files=1)
    data = prepare_data(
        DataConfig(
            corpus=str(repository), tokenizer="bytes", context_length=16, tuning_fraction=0.1, report_fraction=0.1
        ),
        cache_dir=tmp_path / "cache",
    )
    assert data.num_documents_read == 60
    assert sum(split.num_bytes for split in data.splits.values()) == sum(len(text_of(row)) for row in range(60))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": ["a"], "id": [1]}, r"a\.parquet has no column 'text'; its columns: body, id"),
        ({"text": [1, 2]}, r"column 'text' holds int64; expected strings"),
        ({"text": ["a", None]}, r"row 2: column 'text' holds no value"),
        ({"text": ["", " "]}, r"holds no text"),
    ],
)
def test_a_bad_table_is_one_clear_line(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    write(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=message) as caught:
        read_corpus(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 40, -10])
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, keep: int) -> None:
    file = write(tmp_path / "a.parquet", {"text": ["a" * 100] * 10})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"a\.parquet cannot be read after row 0 .*; expected a Parquet file") as caught:
        read_corpus(str(file))
    assert "\n" not in str(caught.value)

"""Values of single tokens as Parquet, written chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from depthscale.errors import MissingExtraError
from depthscale.probing.quantities import TokenQuantities

#: The extra whose packages write Parquet.
PARQUET_EXTRA = "data"


class TokenFile:
    """One row a token: document, position, token id, and for each quantity the list of its layers as float32.

    The file has its name only when it is whole.

    Args:
        path: of the file.
        names: quantities that become columns; null where a token lacks one.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise MissingExtraError("probe --keep-tokens", PARQUET_EXTRA, "pyarrow") from error
        self._arrow = pyarrow
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._names = tuple(names)
        integers = [pyarrow.field(name, pyarrow.int64()) for name in ("document", "position", "token_id")]
        floats = [pyarrow.field(name, pyarrow.list_(pyarrow.float32())) for name in self._names]
        self._schema = pyarrow.schema([*integers, *floats])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: Any = parquet.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def add(self, tokens: TokenQuantities, documents: Tensor) -> None:
        """Write one chunk.

        Args:
            tokens: of one micro-batch.
            documents: number of the document of each row of the batch.
        """
        arrow = self._arrow
        columns = [
            arrow.array(column.numpy()) for column in (documents[tokens.rows], tokens.positions, tokens.token_ids)
        ]
        for name in self._names:
            values = tokens.values.get(name)
            if values is None:
                columns.append(arrow.nulls(tokens.num_tokens, arrow.list_(arrow.float32())))
                continue
            layers, count = values.shape
            offsets = torch.arange(0, (count + 1) * layers, layers, dtype=torch.int32)
            flat = values.float().T.reshape(-1)
            columns.append(arrow.ListArray.from_arrays(arrow.array(offsets.numpy()), arrow.array(flat.numpy())))
        self._writer.write_table(arrow.table(columns, schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            return
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._temporary.replace(self._path)

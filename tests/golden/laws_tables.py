"""The two public tables, read from ``shared/data`` beside the checkout; they carry no licence and are not copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from depthscale.laws import ColumnMap, Observations, read_table

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def depth_table() -> Observations:
    """All 245 rows with width, depth, tokens, parameters and FLOPs; one group per architecture."""
    columns = ColumnMap.parse(
        "width=d_model,depth=n_layers,tokens=num_tokens,parameters=model_size,flops=FLOP,group=d_model+n_layers"
    )
    return read_table(_path("chinchilla_depth.csv"), columns)


def chinchilla_rows() -> Observations:
    """240 rows with parameters and tokens = FLOP / (6 N), the 5 highest losses left out."""
    table = read_table(_path("chinchilla_svg.csv"), ColumnMap.parse("parameters=Model Size,flops=Training FLOP"))
    tokens = table.column("flops") / (6 * table.column("parameters"))
    return table.with_column("tokens", tokens).without_highest(5)


def _path(name: str) -> Path:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is absent: the public tables lie beside the checkout in shared/data")
    return path

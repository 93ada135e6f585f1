"""``depthscale fetch``: public tables of scaling runs, from their authors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fetch(
    name: Annotated[str, typer.Argument(help="What to download: chinchilla.")],
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("data"),
) -> None:
    """Download public tables and check them; the package itself holds none of them."""
    from depthscale.laws.public_tables import fetch as fetch_tables

    for path in fetch_tables(name, out):
        typer.echo(str(path))

"""Results in print for another program."""

from __future__ import annotations

import json
from typing import Any

import typer

from depthscale.runs.results import finite


def print_json(result: Any) -> None:
    """Valid JSON on standard output; numbers that are not finite become null."""
    typer.echo(json.dumps(finite(result), indent=1, allow_nan=False))

"""``depthscale export``: a folder for the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depthscale.cli.extras import require_lm


def export(
    target: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_OR_RUN", help="A run directory, or a checkpoint folder.")
    ],
    out: Annotated[Path, typer.Option(help="New directory for the exported model.")],
) -> None:
    """Write weights, tokenizer, the model's own code and a model card; it loads without depthscale."""
    require_lm("export")
    from transformers.utils.logging import disable_progress_bar

    from depthscale.evaluation.export import export_model
    from depthscale.evaluation.target import find_target

    disable_progress_bar()
    typer.echo(str(export_model(find_target(target), out)))

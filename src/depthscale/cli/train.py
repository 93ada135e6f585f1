"""``depthscale train``: one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depthscale.cli.extras import require_lm


def train(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with tables plan, model, data and train; not needed to resume.")
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Where the run is written.")] = Path("runs/train"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.lr=1e-3.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest whole checkpoint.")] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Continue the weights of this checkpoint as a new run.")
    ] = None,
    rescale: Annotated[
        bool, typer.Option("--rescale", help="With --from: the configuration's plan and scales, not the checkpoint's.")
    ] = False,
) -> None:
    """Train a looped or stacked language model and write its result."""
    require_lm("train")
    from rich.console import Console

    from depthscale.errors import ConfigError
    from depthscale.runs.config import RunConfig
    from depthscale.runs.config_file import merge, read_toml, validate, with_overrides
    from depthscale.runs.layout import CONFIG_FILE

    if config is None:
        if not resume:
            raise ConfigError("no configuration given; name a TOML file, or go on with --resume --run-dir DIR")
        config = run_dir / CONFIG_FILE
    tables = with_overrides(read_toml(config), set_ or [])
    if from_ is not None:
        checkpoint = str(from_.resolve())
        merge(tables, {"start": {"checkpoint": checkpoint, "rescale": rescale}, "data": {"tokenizer": checkpoint}})
    elif rescale:
        raise ConfigError("--rescale goes with --from CHECKPOINT; a fresh run is scaled by its configuration")
    run_config = validate(RunConfig, tables, str(config))
    # Seconds of imports: only once the input is known to be good.
    from depthscale.training.run import train_run

    result = train_run(run_config, run_dir, resume=resume, console=Console(stderr=True))
    report = result["final"]["report"]
    loss = "not finite" if report["loss_nats"] is None else f"{report['loss_nats']:.4f} nats per token"
    bits = "" if report["bits_per_byte"] is None else f", {report['bits_per_byte']:.4f} bits per byte"
    typer.echo(f"{result['outcome']}: {loss}{bits} on the report split after {result['step']} steps; {run_dir}")

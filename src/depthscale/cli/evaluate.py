"""``depthscale evaluate``: loss over rounds, early exits and downstream tasks of a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscale.cli.extras import require_extra, require_lm

DEFAULT_ROUNDS = "1,2,4,8,16"


def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_OR_RUN", help="A run directory, or a checkpoint folder.")
    ],
    rounds: Annotated[
        str | None,
        typer.Option(help="Numbers of rounds, such as 1,2,4,8,16 (the default, unless --exits or --tasks is given)."),
    ] = None,
    exits: Annotated[bool, typer.Option("--exits", help="Measure early exit at round ends.")] = False,
    tasks: Annotated[
        str | None, typer.Option(help="Downstream tasks, such as local (offline), deeploop or any of lm_eval's.")
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option(help="Solved examples in a task's prompt, such as 0,1; default 0,1 for deeploop, else 0."),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Another corpus than the run's.")] = None,
    split: Annotated[str, typer.Option(help="Split that is evaluated.")] = "report",
    max_rows: Annotated[int | None, typer.Option(min=1, help="Rows of the split at most, evenly spaced.")] = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows per forward pass.")] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each task at most, for trying out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results/ is written; default the run directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure a trained model on held-out text and write the results beside its run."""
    require_lm("evaluate")
    if tasks is not None:
        require_extra("evaluate --tasks", "eval")
    counts = _counts("--rounds", DEFAULT_ROUNDS if rounds is None else rounds, lowest=1)
    num_fewshot = None if shots is None else _counts("--shots", shots, lowest=0)
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    import torch
    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    from depthscale.cli.evaluation_tables import print_evaluation, print_tasks
    from depthscale.errors import ConfigError
    from depthscale.evaluation.checkpoint import load_model
    from depthscale.evaluation.results import evaluation_result, tasks_result
    from depthscale.evaluation.rounds import trained_rounds
    from depthscale.evaluation.target import find_target
    from depthscale.runs.results import finite, write_result
    from depthscale.training.held_out import held_out_data

    if tasks is not None and not names:
        raise ConfigError(f"--tasks came as '{tasks}'; expected names, such as local or local,deeploop")
    disable_progress_bar()
    console = Console(stderr=True)
    found = find_target(target)
    run_config = found.run_config()
    if run_config and run_config.train.num_threads:
        torch.set_num_threads(run_config.train.num_threads)
    model = load_model(found.checkpoint).eval()
    held_out = held_out_data(found, corpus, model.config.max_position_embeddings)
    for note in held_out.notes:
        console.print(f"Note: {note}.")
    home = out or found.run_directory
    results: dict[str, Any] = {}
    # What was named is measured; where nothing was, the curve over rounds.
    wants_rounds = rounds is not None or not (exits or names)
    if wants_rounds or exits:
        results["evaluation"] = evaluation_result(
            model,
            found,
            held_out,
            split,
            rounds=counts if wants_rounds else [],
            exits=exits,
            trained=trained_rounds(model.config, run_config),
            batch_rows=batch_rows,
            max_rows=max_rows,
            on_point=lambda point: console.print(
                f"R = {point.rounds}, {point.scales} scales: {point.loss_nats:.4f} nats per token"
            ),
        )
    if names:
        results["tasks"] = tasks_result(
            model,
            found,
            held_out,
            split,
            names,
            shots=num_fewshot,
            batch_rows=batch_rows,
            limit=limit,
            local_directory=home / "tasks" if home else None,
            show_progress=console.is_terminal,
        )
    for kind, result in results.items():
        if home is not None:
            console.print(f"written: {write_result(home, kind, result)}", soft_wrap=True)
    if home is None:
        console.print("Nothing was written, as the folder belongs to no run; name a directory with --out.")
    if as_json:
        typer.echo(json.dumps(finite(results), indent=1, allow_nan=False))
        return
    for kind, show in (("evaluation", print_evaluation), ("tasks", print_tasks)):
        if kind in results:
            show(results[kind])


def _counts(option: str, text: str, lowest: int) -> list[int]:
    from depthscale.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    counts = [int(part) for part in parts if part.isdecimal()]
    if len(counts) < len(parts) or min(counts) < lowest:
        raise ConfigError(f"{option} came as '{text}'; expected whole numbers of at least {lowest}, such as 1,2,4")
    return counts

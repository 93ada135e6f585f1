"""``depthscale evaluate``: loss over rounds, early exits and downstream tasks of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from depthscale.cli.extras import require_extra, require_lm
from depthscale.cli.whole_numbers import whole_numbers


def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_OR_RUN", help="A run directory, or a checkpoint folder.")
    ],
    rounds: Annotated[
        str | None,
        typer.Option(
            help="Numbers of rounds, such as 1,2,4,8; default, unless --exits or --tasks is given: every R up to the"
            " model's own, and its doublings up to four times."
        ),
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
    out: Annotated[
        Path | None,
        typer.Option(help="Where results/ is written; default the run directory, which holds the report split's only."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure a trained model on held-out text and write the results beside its run."""
    require_lm("evaluate")
    if tasks is not None:
        require_extra("evaluate --tasks", "eval")
    num_fewshot = None if shots is None else whole_numbers("--shots", shots, lowest=0)
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    import torch
    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    from depthscale.cli.evaluation_tables import print_evaluation, print_tasks
    from depthscale.cli.json_output import print_json
    from depthscale.errors import ConfigError
    from depthscale.evaluation.checkpoint import default_device, load_model_and_tokenizer
    from depthscale.evaluation.early_exit import loop_of
    from depthscale.evaluation.results import (
        default_rounds,
        evaluation_result,
        tasks_result,
        with_earlier_sections,
    )
    from depthscale.evaluation.rounds import MAX_ROUNDS, trained_rounds
    from depthscale.evaluation.target import find_target
    from depthscale.runs.results import read_result, result_path, write_result
    from depthscale.runs.task_names import LOCAL_NAMES
    from depthscale.training.held_out import held_out_data

    counts = None if rounds is None else whole_numbers("--rounds", rounds, highest=MAX_ROUNDS)
    if tasks is not None and not names:
        raise ConfigError(f"--tasks came as '{tasks}'; expected names, such as local or local,deeploop")
    if tasks is None and (shots is not None or limit is not None):
        option = "--limit" if shots is None else "--shots"
        raise ConfigError(f"{option} came without --tasks; name the tasks, such as --tasks local, or leave it out")
    # What was named is measured; where nothing was, the curve over rounds.
    wants_rounds = rounds is not None or not (exits or names)
    wants_losses = wants_rounds or exits
    wants_text = wants_losses or any(name in LOCAL_NAMES for name in names)
    disable_progress_bar()
    console = Console(stderr=True)
    found = find_target(target)
    run_config = found.run_config()
    if run_config and run_config.train.num_threads:
        torch.set_num_threads(run_config.train.num_threads)
    model, tokenizer = load_model_and_tokenizer(found.checkpoint, default_device())
    # Whatever can be refused is, before the first measurement.
    if exits:
        loop_of(model.config)
    if names:
        from depthscale.evaluation.harness_tasks import require_known

        require_known(names)
    held_out = held_out_data(found, corpus, model.config.max_position_embeddings) if wants_text else None
    if held_out is not None:
        held_out.require_split(split)
        own_text = corpus is None or (run_config is not None and corpus == run_config.data.corpus)
        if found.run_directory is not None and out is None and not (own_text and split == "report"):
            raise ConfigError(
                "the run directory keeps results on the report split of the run's own corpus only;"
                " name another directory with --out"
            )
        for note in held_out.notes:
            console.print(f"Note: {note}.", soft_wrap=True)
    home = out or found.run_directory
    earlier = None
    if home is not None and wants_losses and result_path(home, "evaluation").exists():
        earlier = read_result(home, "evaluation")
    results: dict[str, Any] = {}

    def keep(kind: str, measured: dict[str, Any], document: dict[str, Any]) -> None:
        results[kind] = measured
        if home is not None:
            console.print(f"written: {write_result(home, kind, document)}", soft_wrap=True)

    if held_out is not None and wants_losses:
        measured = evaluation_result(
            model,
            found,
            held_out,
            split,
            rounds=(counts or default_rounds(model.config)) if wants_rounds else [],
            exits=exits,
            trained=trained_rounds(model.config, run_config),
            batch_rows=batch_rows,
            max_rows=max_rows,
            on_point=lambda point: console.print(
                f"R = {point.rounds}, {point.scales} scales: {point.loss_nats:.4f} nats per token"
            ),
        )
        keep("evaluation", measured, with_earlier_sections(measured, earlier))
    if names:
        scored = tasks_result(
            model,
            tokenizer,
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
        keep("tasks", scored, scored)
        for note in scored["notes"]:
            if held_out is None or note not in held_out.notes:
                console.print(f"Note: {note}.", soft_wrap=True)
    if home is None:
        console.print("Nothing was written, as the folder belongs to no run; name a directory with --out.")
    if as_json:
        print_json(results)
        return
    for kind, show in (("evaluation", print_evaluation), ("tasks", print_tasks)):
        if kind in results:
            show(results[kind])

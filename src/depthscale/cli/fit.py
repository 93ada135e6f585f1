"""``depthscale fit``: a scaling law from a table or from runs, with what it rests on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

_FEWEST_REPLICATES = 100


def fit(
    data: Annotated[
        list[Path], typer.Argument(help="A CSV or Parquet table, or study and run directories of depthscale.")
    ],
    law: Annotated[
        str, typer.Option(help="Name of a law, such as width_depth_tokens or chinchilla, or a TOML file with one.")
    ] = "width_depth_tokens",
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of the table, such as width=d_model,tokens=D:1e6,loss=val_loss,group=run_id."),
    ] = None,
    objective: Annotated[str, typer.Option(help="log (squares of log loss), huber or raw.")] = "log",
    delta: Annotated[float, typer.Option(help="Where Huber turns from squares to absolute values.")] = 1e-3,
    drop_highest_losses: Annotated[int, typer.Option(min=0, help="Leave so many of the highest losses out.")] = 0,
    below_loss_rank: Annotated[
        int | None, typer.Option(min=1, help="Fit only losses strictly below that rank; 1 is the highest.")
    ] = None,
    depth_offset: Annotated[float, typer.Option(help="Layers that the depth does not count, such as 2.")] = 0.0,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Replicates, at least 100; 0 prints profile intervals instead.")
    ] = 1000,
    level: Annotated[float, typer.Option(help="Of every interval.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    validation: Annotated[bool, typer.Option(help="Hold rows, architectures and the largest budgets out.")] = True,
    arm: Annotated[
        str | None,
        typer.Option(help="Of studies and runs only those of this arm, or those that match, such as looped_*."),
    ] = None,
    annealed: Annotated[
        bool | None, typer.Option("--annealed/--not-annealed", help="Every learning rate was decayed to its end.")
    ] = None,
    rate_tuned: Annotated[
        bool | None, typer.Option("--rate-tuned/--rate-not-tuned", help="The learning rate was tuned for each size.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer of the losses.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Rows of the embedding.")] = None,
    ffn_ratio: Annotated[float | None, typer.Option(help="Inner width of the MLP over the width.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Context length, to count attention in FLOPs.")] = None,
    embeddings_counted: Annotated[
        bool | None,
        typer.Option("--embeddings-counted/--embeddings-not-counted", help="The parameters hold the embedding."),
    ] = None,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Fit rows that repeat others.")] = False,
    keep_unfinished: Annotated[
        bool, typer.Option("--keep-unfinished", help="Fit rows in the middle of their schedule.")
    ] = False,
    independent_rows: Annotated[
        bool, typer.Option("--independent-rows", help="Take no rows as one group, whatever they share.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory of the result; default runs/fit-LAW.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Fit a scaling law to its proven minimum and say what the answer rests on."""
    from depthscale.cli.fit_input import read_law, read_objective, read_rows
    from depthscale.cli.fit_tables import print_fit, print_rows
    from depthscale.cli.folder_name import slug
    from depthscale.cli.json_output import print_json
    from depthscale.errors import ConfigError
    from depthscale.laws.analysis import Question, analyze
    from depthscale.laws.card import DataCard
    from depthscale.laws.certificate import FitError
    from depthscale.laws.preparation import RowRule, prepare
    from depthscale.laws.rows_file import ROWS_FILE, write_rows
    from depthscale.runs.results import write_result

    if 0 < bootstrap < _FEWEST_REPLICATES:
        raise ConfigError(
            f"bootstrap came as {bootstrap}; expected at least {_FEWEST_REPLICATES} replicates, or 0 for profiles alone"
        )
    chosen = read_law(law)
    question = Question(read_objective(objective, delta), level, bootstrap, seed, validation, context)
    rule = RowRule(
        drop_highest_losses, below_loss_rank, depth_offset, keep_duplicates, keep_unfinished, independent_rows
    )
    stated = DataCard(annealed, tokenizer, vocab, ffn_ratio, rate_tuned, embeddings_counted)
    table, card, notes, sources = read_rows(data, chosen, columns, arm, stated)
    rows = prepare(table, chosen, rule, card, context)
    try:
        _, answers = analyze(chosen, rows, card, question)
    except FitError:
        # The rows say more of why than the refusal itself.
        if not as_json:
            print_rows(asdict(card), [*notes, *rows.notes], [asdict(finding) for finding in rows.findings])
        raise
    directory = out or Path("runs") / slug(f"fit-{chosen.name}")
    answers["notes"] = [*notes, *answers["notes"]]
    result: dict[str, Any] = {
        "sources": sources,
        "columns": columns,
        "cut": {"rule": rule.words, "depth_offset": depth_offset},
        "context": context or card.context_length,
        **answers,
    }
    write_rows(directory / ROWS_FILE, rows.base)
    path = write_result(directory, "fit", result)
    # Seconds of imports, and of no use where only numbers are wanted.
    from depthscale.reports.fit_report import build_fit_report

    page = build_fit_report(directory)
    if as_json:
        print_json(result)
        return
    print_fit(json.loads(path.read_text(encoding="utf-8")))
    typer.echo(f"result: {path}")
    typer.echo(f"report: {page}")

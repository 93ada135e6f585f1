"""``depthscale compare-laws``: one law fitted to two arms, which parameters differ, and what that is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def compare_laws(
    data: Annotated[
        list[Path], typer.Argument(help="A CSV or Parquet table, or study and run directories of depthscale.")
    ],
    reference: Annotated[
        str, typer.Option(help="The arm that compute is saved against; of studies also a pattern, such as stacked_*.")
    ],
    new: Annotated[str, typer.Option(help="The other arm.")],
    law: Annotated[
        str, typer.Option(help="Name of a law, such as width_depth_tokens or chinchilla, or a TOML file with one.")
    ] = "width_depth_tokens",
    by: Annotated[
        str | None, typer.Option(help="Column of the table that names the arms; directories need none.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the table, such as width=d_model,tokens=D:1e6,loss=val_loss.")
    ] = None,
    flops: Annotated[
        list[float] | None, typer.Option(help="Budget at which compute is compared; repeat it for several.")
    ] = None,
    objective: Annotated[str, typer.Option(help="log (squares of log loss), huber or raw.")] = "log",
    delta: Annotated[float, typer.Option(help="Where Huber turns from squares to absolute values.")] = 1e-3,
    drop_highest_losses: Annotated[
        int, typer.Option(min=0, help="Leave so many of each arm's highest losses out.")
    ] = 0,
    bootstrap: Annotated[int, typer.Option(min=100, help="Replicates.")] = 1000,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of every interval.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    independent_rows: Annotated[
        bool, typer.Option("--independent-rows", help="Take no rows as one group, whatever they share.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory of the result; default runs/laws-NEW-REFERENCE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Fit one law to two arms at once: which parameters differ, compute saved at equal loss, crossing points."""
    from depthscale.cli.compare_laws_tables import print_comparison
    from depthscale.cli.fit_input import read_law, read_objective, read_rows
    from depthscale.cli.folder_name import slug
    from depthscale.cli.json_output import print_json
    from depthscale.errors import ConfigError, DataError
    from depthscale.laws.card import DataCard
    from depthscale.laws.comparison_analysis import compare_rows
    from depthscale.laws.preparation import RowRule, prepare
    from depthscale.laws.run_directories import shared_runs
    from depthscale.runs.results import write_result

    if reference == new:
        raise ConfigError(f"reference and new are both '{new}'; expected two arms")
    directories = all(path.is_dir() for path in data)
    if directories == (by is not None):
        raise ConfigError("--by came with directories" if directories else "a table needs --by COLUMN to tell the arms")
    if any(not budget > 0 for budget in flops or []):
        raise ConfigError("a budget of --flops is not positive; expected FLOPs such as 1e20")
    chosen = read_law(law)
    rule = RowRule(drop_highest_losses, independent=independent_rows)
    if directories and (shared := shared_runs(data, reference, new)):
        raise ConfigError(
            f"arms '{reference}' and '{new}' share {len(shared)} runs, such as {shared[0].name};"
            " expected patterns that no run fits both of"
        )
    prepared, notes = [], []
    for arm in (reference, new):
        only = None if by is None else (by, arm)
        rows, card, found, sources = read_rows(data, chosen, columns, None if by else arm, DataCard(), only)
        try:
            prepared.append(prepare(rows, chosen, rule, card, None))
        except DataError as error:
            raise DataError(f"of arm '{arm}', whose rows are counted by themselves, {error}") from error
        notes += [f"{arm}: {note}" for note in (*found, *prepared[-1].notes)]
    answers = compare_rows(
        chosen,
        prepared[0].base,
        prepared[1].base,
        (reference, new),
        flops or (),
        read_objective(objective, delta),
        bootstrap,
        seed,
        level,
    )
    result: dict[str, Any] = {"sources": sources, "columns": columns, "notes": notes, **answers}
    path = write_result(out or Path("runs") / slug(f"laws-{new}-{reference}"), "law_comparison", result)
    if as_json:
        print_json(result)
        return
    print_comparison(json.loads(path.read_text(encoding="utf-8")))
    typer.echo(f"result: {path}")

"""``depthscale compare --recipe``: the paper's loss table beside the cells of a recipe that have been run."""

from __future__ import annotations

from pathlib import Path

import typer


def compare_recipe(recipe: Path, runs: Path, overrides: list[str]) -> None:
    """Write the table, its page and its figure into ``runs``, and print it."""
    from rich.console import Console
    from rich.table import Table

    from depthscale.reports.page import number
    from depthscale.reports.recipe_report import build_recipe_report, sentences
    from depthscale.runs.config_file import read_toml, validate, with_overrides
    from depthscale.runs.results import read_result, write_result
    from depthscale.runs.study_config import StudyFile
    from depthscale.studies.recipe_table import recipe_table

    file = validate(StudyFile, with_overrides(read_toml(recipe), overrides), str(recipe))
    write_result(runs, "recipe", recipe_table(file, runs))
    page = build_recipe_report(runs)
    result = read_result(runs, "recipe")
    table = Table(caption="final loss, nats per token; ours on the report split, runs that are as the recipe says")
    table.add_column("arm")
    for heading in ("R", "paper", "ours", "sd", "runs"):
        table.add_column(heading, justify="right")
    for cell in result["cells"]:
        losses = [number(cell[key], 4) for key in ("paper_loss_nats", "mean_nats", "sd_nats")]
        table.add_row(cell["arm"], str(cell["rounds"]), *losses, str(cell["num_as_the_recipe"]))
    Console().print(table)
    for sentence in sentences(result):
        typer.echo(sentence)
    typer.echo(f"report: {page}")

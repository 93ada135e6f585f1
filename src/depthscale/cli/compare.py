"""``depthscale compare``: the main job. Arms, rounds and seeds from one study file, and what the pairs say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthscale.cli.extras import require_extra, require_lm

if TYPE_CHECKING:
    from rich.console import Console

    from depthscale.runs.study_config import StudyFile


def compare(
    study: Annotated[Path | None, typer.Argument(help="Study file (TOML).")] = None,
    preset: Annotated[str | None, typer.Option(help="A study that comes with the package, such as demo.")] = None,
    out: Annotated[Path | None, typer.Option(help="Study directory; default runs/NAME.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.steps=200.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose every cell's learning rate first, on other seeds.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; default one per GPU, else per core.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Say what the study would cost and could show; run nothing of it.")
    ] = False,
    from_study: Annotated[
        Path | None, typer.Option(help="With --plan-only: an earlier study whose speed and spread set the price.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe whose paper's table is set beside the runs of --runs.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="With --recipe: the folder of its runs; default runs.")] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Record more seeds, arms, rounds or comparisons as a later addition.")
    ] = False,
) -> None:
    """Train every arm at every number of rounds and seed, compare in pairs, and write the report."""
    require_lm("compare")
    from rich.console import Console

    from depthscale.errors import ConfigError, ResultError
    from depthscale.studies.gpus import default_workers
    from depthscale.studies.study import is_trained, read_study_file, run_study
    from depthscale.studies.study_document import cells_tuned_apart, planned_study, set_rates
    from depthscale.studies.tuning import tune as tune_rates
    from depthscale.studies.unequal_tokens import unequal_planned_tokens

    if recipe is not None:
        from depthscale.cli.recipe_table import compare_recipe

        of_a_study = {
            "a study file": study, "--preset": preset, "--out": out, "--tune": tune, "--workers": workers, "--add": add,
            "--plan-only": plan_only, "--from-study": from_study,
        }  # fmt: skip
        if given := [name for name, value in of_a_study.items() if value]:
            raise ConfigError(f"--recipe reads runs that are there; give it without {', '.join(given)}")
        compare_recipe(recipe, runs or Path("runs"), set_ or [])
        return
    if runs is not None:
        raise ConfigError("--runs goes with --recipe")
    if (study is None) == (preset is None):
        raise ConfigError("give either a study file or --preset NAME, such as --preset demo")
    if from_study is not None and not plan_only:
        raise ConfigError("--from-study goes with --plan-only")
    file = read_study_file(str(study) if study else str(preset), set_ or [])
    if from_study is not None:
        from depthscale.studies.study_runs import read_study_document

        read_study_document(from_study)
    if file.study.tasks:
        require_extra("compare with study.tasks", "eval")
    directory = out or Path("runs") / file.study.name
    console = Console(stderr=True)
    planned = None if plan_only or add or tune or file.study.tasks else planned_study(directory, file)
    if planned is not None and is_trained(directory, planned[0]):
        _print_report(directory)
        return
    # Before any worker starts: a bad corpus is one line here, and a good one is in the cache for all of them.
    from depthscale.training.prepare import prepare_data

    vocab_size = prepare_data(file.data_config()).vocab_size
    num_workers = workers or default_workers()
    for sentence in unequal_planned_tokens(file):
        console.print(sentence, markup=False, soft_wrap=True)
    if plan_only:
        _print_price(file, vocab_size, tune, from_study, num_workers, console)
        return
    file = _planned(directory, file, vocab_size, num_workers, console, add)
    if tune:
        rates = tune_rates(directory, file, num_workers, console, cells_tuned_apart(directory))
        _print_rates(directory, console)
        file = set_rates(directory, file, rates)
    failed = run_study(directory, file, num_workers, console)
    _print_report(directory)
    if failed:
        raise ResultError(f"{len(failed)} runs failed and are counted as missing; see log.txt in their directories")


def _print_rates(directory: Path, console: Console) -> None:
    from depthscale.runs.results import read_result

    for cell in read_result(directory, "tuning")["cells"]:
        decay = "" if cell["best_weight_decay"] is None else f", weight decay {cell['best_weight_decay']:g}"
        edge = ", at the edge" if cell["at_edge"] or cell["weight_decay_at_edge"] else ""
        chosen = f"chosen: {cell['arm']}, R={cell['rounds']}: lr {cell['best_lr']:.3g}{decay}"
        console.print(f"{chosen}, by {cell['num_runs']} runs{edge}", markup=False, soft_wrap=True)


def _print_report(directory: Path) -> None:
    # Statistics and figures are seconds of imports that the workers above did not have to wait for.
    from depthscale.reports.comparison_report import build_report
    from depthscale.runs.results import read_result

    path = build_report(directory)
    comparison = read_result(directory, "comparison")
    for sentence in (*comparison["verdict"], *comparison["regime"], *comparison["warnings"]):
        typer.echo(sentence)
    typer.echo(f"report: {path}")


def _planned(
    directory: Path, asked: StudyFile, vocab_size: int, workers: int, console: Console, add: bool
) -> StudyFile:
    """The study as ``study.json`` plans it: read, or written before anything runs."""
    from depthscale.studies.matched_steps import cells_to_probe, with_matched_steps
    from depthscale.studies.step_timing import time_steps
    from depthscale.studies.study_document import add_to_study, planned_study, with_what_is_settled, write_study

    planned = None if add else planned_study(directory, asked)
    if planned is not None:
        return planned[0]
    waiting = with_what_is_settled(directory, asked) if add else asked
    timed = cells_to_probe(waiting)
    measured = time_steps(waiting, timed, workers, console).seconds_per_step if timed else None
    file, matched = with_matched_steps(waiting, vocab_size, measured)
    for note in matched:
        console.print(f"matched {note['spend']}: {note['arm']} trains {note['steps']:,} steps", markup=False)
    (add_to_study if add else write_study)(directory, file, asked, matched)
    return file


def _print_price(
    asked: StudyFile, vocab_size: int, tune: bool, earlier: Path | None, workers: int, console: Console
) -> None:
    from depthscale.cli.price_table import print_price
    from depthscale.runs.comparison_config import CellKey
    from depthscale.studies.matched_steps import cells_to_probe, with_matched_steps
    from depthscale.studies.pricing import price
    from depthscale.studies.step_timing import time_steps

    cells = list(dict.fromkeys(CellKey(cell.arm, cell.rounds) for cell in asked.study.cells()))
    wanted = cells if earlier is None else cells_to_probe(asked)
    measured = time_steps(asked, wanted, workers, console) if wanted else None
    file, _ = with_matched_steps(asked, vocab_size, measured.seconds_per_step if measured else None)
    result: dict[str, Any] = price(
        file, vocab_size, tuned=tune, probe=measured if earlier is None else None, earlier=earlier
    )
    print_price(result, workers)

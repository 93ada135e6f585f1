"""``depthscale align``: how aligned the visits are, at initialization, of a trained model, or over a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from depthscale.cli.alignment_study import measure_one_cell, run_study
from depthscale.cli.extras import require_lm
from depthscale.cli.whole_numbers import whole_numbers

DEFAULT_ROUNDS = "1,2,4,8,16"

_OF_ONE_MEASUREMENT = ("seeds", "rows", "probes", "split")
_BESIDE_STUDY = "--workers and --edge go with --study, whose file says all else (use --set)"


def align(
    context: typer.Context,
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG_OR_RUN_OR_STUDY",
            help="A TOML file (its plan at initialization; with a table `measure`, along its training), or a folder.",
        ),
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(help=f"Rounds of a configuration's plan; default {DEFAULT_ROUNDS}.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as model.rule=deeploop.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Initializations of a configuration at every R.")] = 1,
    rows: Annotated[int, typer.Option(min=1, help="Rows of text that gradients are taken on.")] = 8,
    probes: Annotated[int, typer.Option(min=1, help="Random cotangents; 2 or more give a standard error.")] = 2,
    split: Annotated[str, typer.Option(help="Split that the rows are from.")] = "tuning",
    out: Annotated[Path | None, typer.Option(help="Where results/ is written; default the run or study.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    study: Annotated[
        str | None, typer.Option(help="An alignment study (TOML file or preset), instead of CONFIG_OR_RUN_OR_STUDY.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of --study; default one per GPU, else per core.")
    ] = None,
    edge: Annotated[str | None, typer.Option(help="With --study: a sweep's measured edge of p, LOW,HIGH.")] = None,
) -> None:
    """Measure visit alignment kappa over rounds, its growth exponent, and the threshold that it asks for."""
    require_lm("align")
    from depthscale.errors import ConfigError

    if (target is None) == (study is None):
        raise ConfigError("give either a configuration, run or study folder, or --study FILE, such as --study tiny")
    _refuse(context, ["workers", "edge"] if study is None else ["rounds", *_OF_ONE_MEASUREMENT], _BESIDE_STUDY)
    if study is not None:
        run_study(study, set_ or [], out, workers, edge, as_json)
        return
    assert target is not None
    _measure(context, target, rounds, set_ or [], seeds, rows, probes, split, out, as_json)


def _refuse(context: typer.Context, names: list[str], why: str) -> None:
    """One line for an option that would change nothing."""
    from depthscale.errors import ConfigError

    given = [f"--{name}" for name in names if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        raise ConfigError(f"{' and '.join(given)} would change nothing here: {why}; leave it out")


def _measure(
    context: typer.Context,
    target: Path,
    rounds: str | None,
    overrides: list[str],
    seeds: int,
    rows: int,
    probes: int,
    split: str,
    out: Path | None,
    as_json: bool,
) -> None:
    from rich.console import Console

    from depthscale.alignment.results import DEFINITIONS, RoundsPoint, arm_result
    from depthscale.cli.alignment_tables import print_alignment
    from depthscale.cli.json_output import print_json
    from depthscale.errors import ConfigError
    from depthscale.reports.alignment_rounds_chart import rounds_charts
    from depthscale.reports.charts import write_charts
    from depthscale.runs.config import RunConfig
    from depthscale.runs.config_file import read_toml, validate, with_overrides
    from depthscale.runs.layout import STUDY_FILE
    from depthscale.runs.results import write_result
    from depthscale.training.alignment_points import Settings, initialization_points, trained_point
    from depthscale.training.prepare import prepare_data

    console = Console(stderr=True)
    settings = Settings(split, rows, probes)
    arms: dict[str, list[RoundsPoint]] = {}
    notes: list[str] = []
    source = "initialization" if target.is_file() or target.suffix == ".toml" else "trained"
    if source == "initialization":
        tables = with_overrides(read_toml(target), overrides)
        if "measure" in tables:
            _refuse(context, ["rounds", *_OF_ONE_MEASUREMENT], "the file's own tables say it (use --set)")
            measure_one_cell(target, overrides, out, as_json)
            return
        config = validate(RunConfig, tables, str(target))
        counts = sorted(set(whole_numbers("--rounds", rounds or DEFAULT_ROUNDS)))
        data = prepare_data(config.data)
        points = arms.setdefault(f"{config.model.norm_placement} {config.model.rule}", [])
        for point in initialization_points(config, data, counts, seeds, settings):
            points.append(point)
            console.print(f"R = {point.rounds}, seed {point.seed}: kappa {point.alignment.kappa:.3f}")
        notes.append(
            "at initialization visits of a near-identity stack are aligned trivially; measure trained models too"
        )
    else:
        if rounds or overrides or seeds != 1:
            raise ConfigError("--rounds, --set and --seeds go with a TOML file; a trained model has its own")
        is_study = (target / STUDY_FILE).is_file()
        for arm, directory in _finished_runs(target, notes) if is_study else [(target.resolve().name, target)]:
            point, data = trained_point(directory, settings)
            arms.setdefault(arm, []).append(point)
            console.print(f"{arm}, R = {point.rounds}, seed {point.seed}: kappa {point.alignment.kappa:.3f}")
    result: dict[str, Any] = {
        "source": source,
        "definitions": DEFINITIONS,
        "split": split,
        "rows": rows,
        "num_probes": probes,
        "data": data.describe(),
        "notes": notes,
        "arms": [arm_result(name, points) for name, points in arms.items()],
    }
    home = out or (None if source == "initialization" else target)
    if home is not None:
        console.print(f"written: {write_result(home, 'alignment', result)}", soft_wrap=True)
        write_charts(home / "figures", rounds_charts(result))
    if as_json:
        print_json(result)
    else:
        print_alignment(result)


def _finished_runs(study: Path, notes: list[str]) -> list[tuple[str, Path]]:
    """Arm and directory of every run whose weights are finite."""
    from depthscale.errors import ResultError
    from depthscale.studies.study_runs import read_study

    found = []
    for cell in read_study(study).cells:
        for run in cell.runs.values():
            if run.outcome == "diverged":
                notes.append(f"{run.directory} diverged and was not measured")
            else:
                found.append((cell.arm, study / run.directory))
    if not found:
        raise ResultError(f"every run of {study} diverged; there is nothing to measure")
    return found

"""``depthscale align --study``, and the cells that its workers measure."""

from __future__ import annotations

import math
from pathlib import Path

import typer

STUDY_KIND = "alignment_study"


def run_study(
    source: str, overrides: list[str], out: Path | None, workers: int | None, edge: str | None, as_json: bool
) -> None:
    """Measure what is not measured yet, put it together, and write the report."""

    from rich.console import Console

    from depthscale.cli.alignment_tables import print_study
    from depthscale.cli.json_output import print_json
    from depthscale.errors import ResultError
    from depthscale.runs.results import read_result, write_result
    from depthscale.studies.alignment_study import read_alignment_study, read_cells, run_alignment_study
    from depthscale.studies.gpus import default_workers
    from depthscale.training.prepare import prepare_data

    file = read_alignment_study(source, overrides)
    interval = _edge(edge)
    directory = out or Path("runs") / file.study.name
    console = Console(stderr=True)
    # Before any worker starts: a bad corpus is one line here, and a good one is in the cache for all of them.
    prepare_data(file.cells()[0].data)
    failed = run_alignment_study(directory, file, workers or default_workers(), console)
    # Fitters and figures are seconds of imports that the workers above did not have to wait for.
    from depthscale.alignment.study import study_result
    from depthscale.reports.alignment_report import build_alignment_report

    write_result(directory, STUDY_KIND, study_result(file, read_cells(directory, file), interval))
    result = read_result(directory, STUDY_KIND)
    page = build_alignment_report(directory)
    if as_json:
        print_json(result)
    else:
        print_study(result)
        typer.echo(f"report: {page}")
    if failed:
        raise ResultError(f"{len(failed)} cells failed; see the log in their directories, and give the command again")


def measure_one_cell(path: Path, overrides: list[str], out: Path | None, as_json: bool) -> None:
    """A configuration with a ``[measure]`` table: measured along its own training."""

    from depthscale.cli.alignment_tables import print_cell
    from depthscale.cli.json_output import print_json
    from depthscale.runs.alignment_config import AlignmentRun
    from depthscale.runs.config_file import read_toml, validate, with_overrides
    from depthscale.training.alignment_cell import measure_cell

    config = validate(AlignmentRun, with_overrides(read_toml(path), overrides), str(path))
    result = measure_cell(config, out or Path("runs") / path.stem)
    if as_json:
        print_json(result)
    else:
        print_cell(result)


def _edge(text: str | None) -> tuple[float, float] | None:
    from depthscale.errors import ConfigError

    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--edge came as '{text}'; expected LOW,HIGH, such as 0.41,0.52") from error
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"--edge came as '{text}'; expected two numbers: an open interval has no edge to predict")
    if not low <= high:
        raise ConfigError(f"--edge came as '{text}'; expected the lower end first")
    return low, high

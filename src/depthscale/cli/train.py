"""``depthscale train``: one run from a TOML file, started, resumed, or continued from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthscale.cli.extras import require_lm

if TYPE_CHECKING:
    from rich.console import Console

    from depthscale.runs.config import RunConfig
    from depthscale.runs.study_config import StudyFile


def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="TOML file with tables plan, model, data and train, or a study file; not to resume."),
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Where the run is written.")] = Path("runs/train"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.lr=1e-3.")] = None,
    arm: Annotated[str | None, typer.Option(help="Of a study file: the arm; default its baseline.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Of a study file: R; default its first.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of a study file: the seed; default its first.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest whole checkpoint.")] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Continue the weights of this checkpoint as a new run.")
    ] = None,
    rescale: Annotated[
        bool, typer.Option("--rescale", help="With --from: the configuration's plan and scales, not the checkpoint's.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run, or every cell of a study, would cost; run nothing.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="With --dry-run: processes that would share the batch.")] = 1,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Fill the data cache, a stream's to its last token; train nothing.")
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
    tables, overrides = read_toml(config), set_ or []
    if "study" in tables:
        of_study = [override for override in overrides if override.lstrip().startswith("study.")]
        tables, overrides = with_overrides(tables, of_study), [o for o in overrides if o not in of_study]
    study = _study(tables, str(config), {"arm": arm, "rounds": rounds, "seed": seed})
    if study is not None:
        if dry_run:
            num_seeds = 1 if seed is not None else len(study.study.seeds)
            _print_costs(_cells(study, arm, rounds, seed, overrides), study, processes, num_seeds)
            return
        tables = _cell_tables(study, arm or study.study.baseline, rounds, seed)
    tables = with_overrides(tables, overrides)
    if from_ is not None:
        checkpoint = str(from_.resolve())
        merge(tables, {"start": {"checkpoint": checkpoint, "rescale": rescale}, "data": {"tokenizer": checkpoint}})
    elif rescale:
        raise ConfigError("--rescale goes with --from CHECKPOINT; a fresh run is scaled by its configuration")
    run_config = validate(RunConfig, tables, str(config))
    if dry_run:
        _print_costs([(run_config.model.rule, run_config)], None, processes)
        return
    if prepare_only:
        typer.echo(_prepare(run_config))
        return
    # Seconds of imports: only once the input is known to be good.
    from depthscale.training.processes import is_first_process
    from depthscale.training.run import train_run

    console = Console(stderr=True)
    _say_idle_gpus(console)
    result = train_run(run_config, run_dir, resume=resume, console=console)
    if not is_first_process():
        return
    report = result["final"]["report"]
    loss = "not finite" if report["loss_nats"] is None else f"{report['loss_nats']:.4f} nats per token"
    bits = "" if report["bits_per_byte"] is None else f", {report['bits_per_byte']:.4f} bits per byte"
    typer.echo(f"{result['outcome']}: {loss}{bits} on the report split after {result['step']} steps; {run_dir}")


def _say_idle_gpus(console: Console) -> None:
    from torch import cuda

    from depthscale.training.processes import is_first_process, num_processes

    if is_first_process() and num_processes() < (visible := cuda.device_count()):
        console.print(
            f"GPUs used: {num_processes()} of {visible}; all of them by:"
            f" torchrun --nproc_per_node {visible} -m depthscale train ...",
            markup=False,
            soft_wrap=True,
        )


def _study(tables: dict[str, Any], source: str, choice: dict[str, object]) -> StudyFile | None:
    """The file as a study if it is one, with the choice of a cell checked."""
    from depthscale.errors import ConfigError, unknown_name
    from depthscale.runs.config_file import validate
    from depthscale.runs.study_config import StudyFile

    if "study" not in tables:
        given = [f"--{name}" for name, value in choice.items() if value is not None]
        if given:
            raise ConfigError(f"{source} is no study file, so {', '.join(given)} choose nothing; use --set")
        return None
    file = validate(StudyFile, tables, source)
    arm = choice["arm"]
    if arm is not None and arm not in (names := [known.name for known in file.study.arms]):
        raise ConfigError(unknown_name("arm", str(arm), names))
    return file


def _cell_tables(file: StudyFile, arm: str, rounds: int | None, seed: int | None) -> dict[str, Any]:
    """One run of a study as plain tables."""
    from depthscale.errors import ConfigError

    if file.study.arm(arm).waits_for_match:
        raise ConfigError(
            f"arm '{arm}' has no steps of its own: it matches another cell. 'depthscale compare' computes them, and"
            " with --plan-only says what it would cost"
        )
    config = file.run_config(
        arm,
        rounds if rounds is not None else file.study.rounds_of(arm)[0],
        seed if seed is not None else file.study.seeds[0],
    )
    return config.model_dump(mode="json", exclude_none=True)


def _cells(
    file: StudyFile, arm: str | None, rounds: int | None, seed: int | None, overrides: list[str]
) -> list[tuple[str, RunConfig]]:
    """The study's cells that were asked for, all if none was, each as one run."""
    from depthscale.runs.config import RunConfig
    from depthscale.runs.config_file import validate, with_overrides

    chosen = [
        (name, number)
        for name in ([arm] if arm else [known.name for known in file.study.arms])
        for number in ([rounds] if rounds else file.study.rounds_of(name))
    ]
    return [
        (name, validate(RunConfig, with_overrides(_cell_tables(file, name, number, seed), overrides), f"arm '{name}'"))
        for name, number in chosen
    ]


def _print_costs(
    runs: list[tuple[str, RunConfig]], study: StudyFile | None, processes: int, num_seeds: int = 1
) -> None:
    from rich.console import Console

    from depthscale.cli.dry_run_tables import print_dry_run

    print_dry_run(Console(), runs, study, processes, num_seeds)


def _prepare(config: RunConfig) -> str:
    """Fill the data cache and say what it holds."""
    from depthscale.training.prepare import prepare_data
    from depthscale.training.streamed_rows import StreamedRows

    data = prepare_data(config.data)
    train = data.splits["train"].dataset
    if isinstance(train, StreamedRows):
        train.make_all()
        return (
            f"{train.num_shards} shards hold {train.num_tokens:,} training tokens of {data.name}; {train.cache.folder}"
        )
    return f"{train.num_tokens:,} training tokens of {data.name} are cached"

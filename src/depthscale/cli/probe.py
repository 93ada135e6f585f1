"""``depthscale probe``: how a language model uses its depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthscale.cli.extras import require_lm
from depthscale.cli.model_options import (
    AllowBin,
    AsJson,
    BlocksPath,
    DeviceMap,
    Dtype,
    GgufFile,
    HeadPath,
    Home,
    NormPath,
    Tokenizer,
    TrustRemoteCode,
)

if TYPE_CHECKING:
    from depthscale.probing.settings import ProbeRecipe


def probe(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Hub ids, folders, runs of depthscale, or one recipe (a TOML file)."),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(help="stdlib (default), a text, JSONL or Parquet file, a folder, or stream:OWNER/NAME."),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a streamed data set.")] = None,
    text_field: Annotated[str | None, typer.Option(help="Field or column of the text; default text.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that count; default 100,000, or all of --documents.")
    ] = None,
    documents: Annotated[int | None, typer.Option(min=1, help="Documents at most.")] = None,
    context: Annotated[int | None, typer.Option(min=2, help="Tokens a document is cut at; default 1024.")] = None,
    bos: Annotated[
        str | None, typer.Option(help="Put a beginning-of-sequence token first: auto (default), always or never.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of documents; default 0.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a batch, pads included.")] = None,
    exit_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that early-exit losses are taken at; default 16,384.")
    ] = None,
    no_lenses: Annotated[bool, typer.Option("--no-lenses", help="Leave early-exit losses out.")] = False,
    no_sublayers: Annotated[bool, typer.Option("--no-sublayers", help="Do not tell attention and MLP apart.")] = False,
    keep_tokens: Annotated[bool, typer.Option("--keep-tokens", help="Also write single tokens to Parquet.")] = False,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    revisions: Annotated[
        str | None, typer.Option(help="Branches, tags or commits, such as step1000,step2000; of a folder, subfolders.")
    ] = None,
    gguf_file: GgufFile = None,
    allow_bin: AllowBin = False,
    trust_remote_code: TrustRemoteCode = False,
    tokenizer: Tokenizer = None,
    blocks_path: BlocksPath = None,
    norm_path: NormPath = None,
    head_path: HeadPath = None,
    family: Annotated[
        bool, typer.Option("--family", help="Fit mean angle and update over the models against their depth.")
    ] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, such as probe.seed=1.")] = None,
    out: Home = None,
    as_json: AsJson = False,
) -> None:
    """Measure how states and updates change from layer to layer, and what an early exit would lose."""
    require_lm("probe")
    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    from depthscale.cli.folder_name import slug
    from depthscale.cli.json_output import print_json
    from depthscale.cli.probe_family_tables import print_family
    from depthscale.cli.probe_run import probe_models
    from depthscale.cli.probe_tables import print_probe
    from depthscale.probing.family import write_family
    from depthscale.reports.probe_report import build_probe_report
    from depthscale.runs.results import read_result

    disable_progress_bar()
    given = {
        "probe.corpus": corpus,
        "probe.subset": subset,
        "probe.text_field": text_field,
        "probe.tokens": tokens,
        "probe.documents": documents,
        "probe.context_length": context,
        "probe.bos": bos,
        "probe.seed": seed,
        "probe.batch_tokens": batch_tokens,
        "probe.exit_tokens": exit_tokens,
        "probe.lenses": False if no_lenses else None,
        "probe.sublayers": False if no_sublayers else None,
        "probe.keep_tokens": keep_tokens or None,
        "model.dtype": dtype,
        "model.device_map": device_map,
        "model.gguf_file": gguf_file,
        "model.allow_bin": allow_bin or None,
        "model.trust_remote_code": trust_remote_code or None,
        "model.tokenizer": tokenizer,
        "model.blocks_path": blocks_path,
        "model.norm_path": norm_path,
        "model.head_path": head_path,
    }
    recipe = _recipe(models, given, revisions, set_ or [])
    console = Console(stderr=True)
    home = out or Path("probes") / slug(Path(models[0]).stem if _is_recipe(models) else recipe.models[0])
    directories = probe_models(recipe, home, console)
    results = [read_result(directory, "probe") for directory in directories]
    trend = None
    if family:
        write_family(directories, home)
        trend = read_result(home, "probe_trend")
        console.print(f"report: {build_probe_report(home)}", soft_wrap=True)
    if as_json:
        print_json(results)
    else:
        for result in results:
            print_probe(result)
        if trend is not None:
            print_family(trend)


def _is_recipe(models: list[str]) -> bool:
    return len(models) == 1 and models[0].endswith(".toml")


def _recipe(models: list[str], given: dict[str, Any], revisions: str | None, overrides: list[str]) -> ProbeRecipe:
    from depthscale.probing.settings import ProbeRecipe
    from depthscale.runs.config_file import merge, read_toml, validate, with_overrides

    tables: dict[str, Any] = read_toml(Path(models[0])) if _is_recipe(models) else {"models": models}
    for key, value in given.items():
        if value is not None:
            part, _, name = key.partition(".")
            merge(tables, {part: {name: value}})
    if revisions is not None:
        tables["revisions"] = [name for piece in revisions.split(",") if (name := piece.strip())]
    return validate(ProbeRecipe, with_overrides(tables, overrides), models[0] if _is_recipe(models) else "probe")

"""``depthscale intervene``: what layers do, by changing what they do, and the verdict on the regime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    Model,
    NormPath,
    Revision,
    Tokenizer,
    TrustRemoteCode,
)

LEDGER_FILE = "interventions.jsonl"


def intervene(
    ctx: typer.Context,
    model: Model,
    corpus: Annotated[str, typer.Option(help="As for probe.")] = "stdlib",
    subset: Annotated[str | None, typer.Option(help="Configuration of a streamed data set.")] = None,
    text_field: Annotated[str, typer.Option(help="Field or column of the text.")] = "text",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that count; every intervention reads them all.")] = 2048,
    context: Annotated[int, typer.Option(min=2, help="Tokens a document is cut at.")] = 128,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch, pads included.")] = 2048,
    bos: Annotated[str, typer.Option(help="Beginning-of-sequence token first: auto, always or never.")] = "auto",
    draws: Annotated[int, typer.Option(min=1, help="Random choices for each number of dropped layers.")] = 4,
    similarity_tokens: Annotated[int, typer.Option(min=0, help="Tokens of the similarity map; 0 leaves it out.")] = 512,
    nulls: Annotated[bool, typer.Option(help="Measure the nulls; without them there is no verdict.")] = True,
    seed: Annotated[int, typer.Option(help="Of documents, choices, shuffles and the untrained weights.")] = 0,
    revision: Revision = None,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    gguf_file: GgufFile = None,
    allow_bin: AllowBin = False,
    trust_remote_code: TrustRemoteCode = False,
    tokenizer: Tokenizer = None,
    blocks_path: BlocksPath = None,
    norm_path: NormPath = None,
    head_path: HeadPath = None,
    out: Home = None,
    as_json: AsJson = False,
) -> None:
    """Remove, swap, repeat, drop and loop layers, beside the nulls, and say which regime the evidence is for."""
    require_lm("intervene")
    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    from depthscale.cli.evidence_progress import evidence_progress
    from depthscale.cli.folder_name import slug
    from depthscale.cli.intervene_tables import print_interventions
    from depthscale.cli.json_output import print_json
    from depthscale.cli.probe_model import describe_model, model_settings, note_shortfall, open_model, write_figures
    from depthscale.cli.probe_texts import read_texts
    from depthscale.probing.corpus import RowCounts, document_batches, special_tokens
    from depthscale.probing.intervention_result import RESULT_KIND, InterventionSettings
    from depthscale.probing.intervention_result import intervene as measure_interventions
    from depthscale.probing.ledger import Ledger
    from depthscale.probing.located import locate
    from depthscale.probing.nulls import untrained
    from depthscale.probing.probe import context_length
    from depthscale.probing.settings import ProbeSettings
    from depthscale.runs.config_file import validate
    from depthscale.runs.results import finite, write_result

    disable_progress_bar()
    console = Console(stderr=True)
    parts = model_settings(ctx.params)
    text: dict[str, Any] = {
        "corpus": corpus,
        "subset": subset,
        "text_field": text_field,
        "tokens": tokens,
        "context_length": context,
        "batch_tokens": batch_tokens,
        "bos": bos,
        "seed": seed,
    }
    reading = validate(ProbeSettings, text, "options")
    loaded, located = open_model(model, revision, parts, console)
    special, counts = special_tokens(loaded.tokenizer, reading.bos), RowCounts()
    batches = [
        rows.batch
        for rows in document_batches(
            loaded.tokenizer,
            read_texts(reading),
            special,
            context_length(loaded, reading),
            batch_tokens,
            None,
            tokens,
            counts,
        )
    ]
    note_shortfall(counts, tokens, context_length(loaded, reading), console)
    settings = InterventionSettings(draws, seed, similarity_tokens, nulls)
    fresh = None
    if nulls and getattr(loaded.model, "config", None) is not None:
        fresh = locate(untrained(loaded.model, seed), blocks_path, norm_path, head_path)
    described = describe_model(loaded, located)
    data = {**text, **counts.to_dict()}
    home = out or Path("probes") / slug(model)
    identity = {"model": described, "data": data, "draws": draws, "seed": seed, "similarity_tokens": similarity_tokens}
    ledger = Ledger(home / LEDGER_FILE, identity)
    with evidence_progress(console) as tell:
        result = measure_interventions(located, fresh, batches, special.bos is not None, ledger, settings, tell)
    result = {"model": described, "data": data, "settings": {"draws": draws, "seed": seed, "nulls": nulls}, **result}
    console.print(f"written: {write_result(home, RESULT_KIND, result)}", soft_wrap=True)
    write_figures(home, RESULT_KIND, console)
    if as_json:
        print_json(result)
    else:
        print_interventions(finite(result))

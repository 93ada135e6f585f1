"""``depthscale trace``: where in layers and tokens a subject acts on the answer."""

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
    Model,
    NormPath,
    Revision,
    Tokenizer,
    TrustRemoteCode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depthscale.probing.loading import LoadedModel
    from depthscale.probing.trace_prompts import TokenizedPrompt

LEDGER_FILE = "trace.jsonl"


def trace(
    ctx: typer.Context,
    model: Model,
    prompts: Annotated[
        Path, typer.Argument(metavar="PROMPTS.jsonl", help='Lines such as {"prompt": …, "subject": …, "answer": …}.')
    ],
    draws: Annotated[int, typer.Option(min=1, help="Draws of the noise for each prompt.")] = 5,
    noise: Annotated[float, typer.Option(min=0, help="In standard deviations of the embedding matrix.")] = 3.0,
    rows: Annotated[int, typer.Option(min=1, help="States restored side by side.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    bos: Annotated[str, typer.Option(help="Beginning-of-sequence token first: auto, always or never.")] = "auto",
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
    """Add noise to a subject's embeddings and put one clean state at a time back."""
    require_lm("trace")
    from rich.console import Console
    from rich.table import Table
    from transformers.utils.logging import disable_progress_bar

    from depthscale.cli.evidence_progress import evidence_progress
    from depthscale.cli.folder_name import slug
    from depthscale.cli.json_output import print_json
    from depthscale.cli.probe_model import describe_model, model_settings, open_model, write_figures
    from depthscale.probing.causal_trace import RESULT_KIND, TraceSettings
    from depthscale.probing.causal_trace import trace as trace_prompts
    from depthscale.probing.corpus import special_tokens
    from depthscale.probing.ledger import Ledger
    from depthscale.probing.settings import ProbeSettings
    from depthscale.probing.trace_prompts import read_prompts, tokenize
    from depthscale.reports.page import with_ends
    from depthscale.runs.config_file import validate
    from depthscale.runs.results import finite, write_result

    disable_progress_bar()
    console = Console(stderr=True)
    read = read_prompts(prompts)
    choice = validate(ProbeSettings, {"bos": bos}, "options").bos
    parts = model_settings(ctx.params)
    loaded, located = open_model(model, revision, parts, console)
    special = special_tokens(loaded.tokenizer, choice)
    tokenized = [tokenize(loaded.tokenizer, prompt, special.bos) for prompt in read]
    _require_room(loaded, tokenized)
    settings = TraceSettings(noise, draws, seed, rows)
    described = describe_model(loaded, located)
    home = out or Path("probes") / slug(model)
    asked = [[p.source.prompt, p.source.subject, p.source.answer] for p in tokenized]
    identity: dict[str, Any] = {"model": described, "prompts": asked, "noise": noise, "seed": seed, "bos": bos}
    if tokenizer is not None:
        identity["tokenizer"] = tokenizer
    ledger = Ledger(home / LEDGER_FILE, identity)
    with evidence_progress(console) as tell:
        found = trace_prompts(located, tokenized, ledger, settings, lambda done, total: tell("trace", done, total))
    result = {"model": described, "bos_id": special.bos, **found.to_dict()}
    console.print(f"written: {write_result(home, RESULT_KIND, result)}", soft_wrap=True)
    write_figures(home, RESULT_KIND, console)
    if as_json:
        print_json(result)
        return
    plain = finite(result)
    table = Table(
        title=f"Restored effect on p(answer), {len(tokenized)} prompts; noise takes {with_ends(plain['total_effect'])}",
        caption="of the role's token that restores most; share of depth: first and last layer"
        " that restore at least half of that",
    )
    for heading in ("token", "prompts", "largest", "at layer", "share of depth"):
        table.add_column(heading, justify="left" if heading == "token" else "right")
    for role in plain["roles"]:
        values = [layer["value"] for layer in role["by_layer"]]
        best = max(range(len(values)), key=values.__getitem__)
        span = "-" if role["layers"] is None else f"{role['layers'][0]:.0%} to {role['layers'][1]:.0%}"
        table.add_row(role["role"], str(role["num_prompts"]), with_ends(role["by_layer"][best]), str(best + 1), span)
    Console().print(table)


def _require_room(loaded: LoadedModel, prompts: Sequence[TokenizedPrompt]) -> None:
    from depthscale.errors import DataError
    from depthscale.probing.probe import context_length
    from depthscale.probing.settings import ProbeSettings

    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    length = len(longest.token_ids)
    room = context_length(loaded, ProbeSettings(context_length=max(2, length)))
    if length > room:
        raise DataError(
            f"the prompt that begins {longest.source.prompt[:40]!r} has {length} tokens; expected at most {room}, the"
            " model's number of positions"
        )

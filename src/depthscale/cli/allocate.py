"""``depthscale allocate``: the shape to build for a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from depthscale.cli.whole_numbers import whole_numbers

#: Where neither the user nor the fit says otherwise; both are named in the answer.
_VOCABULARY = 32_000
_CONTEXT = 2048
#: MLP ratios closer than that differ by rounding to whole widths.
_SAME_RATIO = 0.02


def allocate(
    fit_dir: Annotated[Path, typer.Argument(metavar="FIT_DIR", help="A directory that 'depthscale fit' wrote.")],
    flops: Annotated[float | None, typer.Option(help="Training FLOPs, such as 1e21.")] = None,
    params: Annotated[
        float | None, typer.Option(help="Parameters at most; tokens follow the compute-optimal frontier.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="Bytes at most for weights, gradients and moments in training.")
    ] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens; the size follows the compute-optimal frontier.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Rows of the embedding; default the rows' own.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Context length; default the rows' own.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key-value heads; default as many as query heads.")
    ] = None,
    head_dim: Annotated[int, typer.Option(min=2, help="Width of a head; widths are multiples of it and 64.")] = 64,
    ffn_ratio: Annotated[
        float | None, typer.Option(help="Inner width of the MLP over the width; default the rows' own.")
    ] = None,
    mlp: Annotated[
        str | None,
        typer.Option(help="swiglu (three matrices) or gelu (two); default the rows' own or by their ratio."),
    ] = None,
    unique_tokens: Annotated[float | None, typer.Option(help="Tokens that exist; none is spent twice.")] = None,
    rounds: Annotated[
        str | None, typer.Option(help="Numbers of rounds to try, such as 1,2,4, for laws that read rounds.")
    ] = None,
    aspect: Annotated[
        float, typer.Option(help="Width over depth to keep to, for laws that do not read shape.")
    ] = 128.0,
    replicates: Annotated[int, typer.Option(min=50, help="Bootstrap replicates of each form of law.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Choose width, depth, tokens (and rounds) for one budget, with what is not known about the choice."""
    from depthscale.cli.fit_tables import print_allocation
    from depthscale.cli.json_output import print_json
    from depthscale.errors import ConfigError, unknown_name
    from depthscale.laws.allocation.buildable import Spending
    from depthscale.laws.allocation.candidates import ShapeTemplate
    from depthscale.laws.allocation.recommendation import Wish, recommend
    from depthscale.laws.forms import make_forms
    from depthscale.laws.row_shapes import mlp_of_ratio
    from depthscale.laws.rows_file import ROWS_FILE, read_rows
    from depthscale.laws.stored import from_record
    from depthscale.runs.results import read_result, write_result

    spending = Spending(flops, params, memory, tokens)
    if mlp not in (None, "swiglu", "gelu"):
        raise ConfigError(unknown_name("mlp", mlp, ("swiglu", "gelu")))
    stored = read_result(fit_dir, "fit")
    card, level, offset, created = _facts(stored, fit_dir)
    chosen = from_record(stored["fit"]).again(read_rows(fit_dir / ROWS_FILE))
    known_ratio = card["mlp_ratio"] if ffn_ratio is None else ffn_ratio
    # Results of an older version know no MLP.
    kind = mlp or card.get("mlp")
    guess = card["mlp_ratio"] or known_ratio
    gated = (kind or ("swiglu" if guess is None else mlp_of_ratio(guess))) == "swiglu"
    mlp_ratio = (8 / 3 if gated else 4.0) if known_ratio is None else known_ratio
    assumed = []
    if (vocab or card["vocab_size"]) is None:
        assumed.append(f"vocabulary {_VOCABULARY:,}")
    if (context or stored["context"]) is None:
        assumed.append(f"context {_CONTEXT:,}")
    if card["embeddings_counted"] is None:
        assumed.append("parameters without embedding and head")
    if known_ratio is None:
        assumed.append(f"MLP ratio {mlp_ratio:.3g}")
    if kind is None:
        assumed.append("a swiglu MLP" if gated else "a gelu MLP")
    template = ShapeTemplate(
        vocab_size=vocab or card["vocab_size"] or _VOCABULARY,
        context_length=context or stored["context"] or _CONTEXT,
        head_dim=head_dim,
        num_key_value_heads=kv_heads,
        mlp_ratio=mlp_ratio,
        gated=gated,
        embeddings_counted=bool(card["embeddings_counted"]),
    )
    counts = None if rounds is None else tuple(sorted(set(whole_numbers("--rounds", rounds))))
    wish = Wish(spending, template, unique_tokens, counts, aspect, level)
    forms, left_out = make_forms(chosen, offset, replicates)
    result, _ = recommend(forms, wish)
    # How often such intervals held the largest budgets when those were left out of the fit.
    result["measured"] = next(
        (test for test in stored["validation"] if test["kind"] == "extrapolation" and "coverage" in test), None
    )
    result["warnings"] = _unread(card, ffn_ratio, mlp, kv_heads)
    if assumed:
        result["notes"].append(f"assumed, as the fit does not know: {', '.join(assumed)}")
    result["notes"] += [f"form left out: {line}" for line in left_out]
    path = write_result(fit_dir, "allocation", {**result, "fitted": created})
    from depthscale.reports.fit_report import build_fit_report

    page = build_fit_report(fit_dir)
    if as_json:
        print_json(result)
        return
    print_allocation(read_result(fit_dir, "allocation"))
    typer.echo(f"result: {path}")
    typer.echo(f"report: {page}")


def _unread(card: dict[str, Any], ffn_ratio: float | None, mlp: str | None, kv_heads: int | None) -> list[str]:
    """A warning for each choice that changes what a model costs, that no law reads and that the rows did not make."""
    from depthscale.laws.row_shapes import mlp_of_ratio

    known = card["mlp_ratio"]
    own = card["mlp"] or (None if known is None else mlp_of_ratio(known))
    odd = []
    if ffn_ratio is not None and (known is None or abs(ffn_ratio / known - 1) > _SAME_RATIO):
        odd.append((f"an MLP ratio of {ffn_ratio:g}", "not known" if known is None else f"{known:g}"))
    if mlp is not None and mlp != own:
        odd.append((f"a {mlp} MLP", own or "not known"))
    if kv_heads is not None:
        odd.append((f"{kv_heads} key-value heads", "not known"))
    return [
        f"{what} came, the rows' own is {rows}; no law here reads it, so that what it saves looks free:"
        " the loss given is that of models built like the rows'"
        for what, rows in odd
    ]


def _facts(stored: dict[str, Any], fit_dir: Path) -> tuple[dict[str, Any], float, float, str]:
    """Card, level, depth offset and time of a fit; whatever else is needed is looked for here too."""
    from depthscale.errors import ResultError

    try:
        card = {name: stored["card"][name] for name in ("vocab_size", "mlp_ratio", "embeddings_counted")}
        _ = stored["context"], stored["fit"]["law"], [test["kind"] for test in stored["validation"]]
        card["mlp"] = stored["card"].get("mlp")
        return card, float(stored["level"]), float(stored["cut"]["depth_offset"]), str(stored["created"])
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"the fit result of {fit_dir} is damaged ({error!r}); run 'depthscale fit' again") from error

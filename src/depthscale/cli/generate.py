"""``depthscale generate``: text from a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depthscale.cli.extras import require_lm


def generate(
    target: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_OR_RUN", help="A run directory, or a checkpoint folder.")
    ],
    prompt: Annotated[str, typer.Option(help="Text to go on from.")],
    rounds: Annotated[int | None, typer.Option(help="Rounds of the loop; default those of the plan.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to write at most.")] = 100,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most likely token; more draws more freely.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws at a temperature above 0.")] = 0,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Write the text while it comes.")] = True,
) -> None:
    """Continue a prompt with a trained model; the new text goes to stdout."""
    require_lm("generate")
    from transformers.utils.logging import disable_progress_bar

    from depthscale.evaluation.checkpoint import load_model, load_tokenizer
    from depthscale.evaluation.generation import continue_text
    from depthscale.evaluation.target import find_target

    disable_progress_bar()
    checkpoint = find_target(target).checkpoint
    model, tokenizer = load_model(checkpoint).eval(), load_tokenizer(checkpoint)
    continuation = continue_text(
        model,
        tokenizer,
        prompt,
        rounds=rounds,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        on_text=_write if stream else None,
    )
    typer.echo("" if stream else continuation.text)
    per_second = continuation.num_new_tokens / continuation.seconds
    typer.echo(f"{continuation.num_new_tokens} tokens, {per_second:.0f} tokens/s", err=True)


def _write(piece: str) -> None:
    # echo flushes, so each piece is seen at once.
    typer.echo(piece, nl=False)

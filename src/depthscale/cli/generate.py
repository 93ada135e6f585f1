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
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens to write at most; default 100, or what the context has room for.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most likely token; more draws more freely.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws at a temperature above 0.")] = 0,
    exit_rule: Annotated[
        str | None,
        typer.Option(help="Let each token leave the loop by entropy, state_change or kl; greedy, and no faster."),
    ] = None,
    exit_threshold: Annotated[
        float | None, typer.Option(help="With --exit-rule: leave at the first round whose signal is at most this.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Write the text while it comes.")] = True,
) -> None:
    """Continue a prompt with a trained model; the new text goes to stdout."""
    require_lm("generate")
    from transformers.utils.logging import disable_progress_bar

    from depthscale.errors import ConfigError
    from depthscale.evaluation.checkpoint import default_device, load_model_and_tokenizer
    from depthscale.evaluation.generation import continue_text, continue_text_with_exit
    from depthscale.evaluation.target import find_target

    if (exit_rule is None) != (exit_threshold is None):
        raise ConfigError("--exit-rule and --exit-threshold go together; give both or neither")
    if exit_rule is not None and temperature:
        raise ConfigError("--exit-rule takes the most likely tokens only; leave out --temperature")
    disable_progress_bar()
    model, tokenizer = load_model_and_tokenizer(find_target(target).checkpoint, default_device())
    if exit_rule is not None and exit_threshold is not None:
        # Written token by token inside; handed over whole.
        stream = False
        continuation = continue_text_with_exit(
            model,
            tokenizer,
            prompt,
            rule=exit_rule,
            threshold=exit_threshold,
            rounds=rounds,
            max_new_tokens=max_new_tokens,
        )
    else:
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
    used = "" if continuation.mean_rounds is None else f", {continuation.mean_rounds:.2f} rounds a token"
    typer.echo(f"{continuation.num_new_tokens} tokens, {per_second:.0f} tokens/s{used}", err=True)


def _write(piece: str) -> None:
    # echo flushes, so each piece is seen at once.
    typer.echo(piece, nl=False)

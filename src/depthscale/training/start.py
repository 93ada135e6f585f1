"""Continue an earlier checkpoint's weights as a new run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from depthscale.errors import ConfigError
from depthscale.evaluation.checkpoint import load_model
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.runs.config import StartConfig

#: What must agree between a checkpoint and the configuration that continues it: the weights' shapes, and whatever
#: changes the function without being a plan or a residual scale.
_MUST_AGREE = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "mlp",
    "norm_placement",
    "num_blocks",
    "qk_norm",
    "embedding_norm",
    "final_norm",
    "tie_word_embeddings",
    "rope_theta",
    "rms_norm_eps",
    "output_multiplier",
)


def continue_from(start: StartConfig, fresh: LoopedLMConfig, console: Console) -> LoopedLMForCausalLM:
    """The checkpoint's weights under its own plan and scales, or, with ``rescale``, under those of ``fresh``.

    The init gain is not applied: it acts on fresh weights only.

    Args:
        start: which checkpoint, and whose scales.
        fresh: what a new model of the run's configuration would be.
        console: where to say what is kept.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: the configuration describes other weights, or another plan without ``rescale``.
    """
    model = load_model(Path(start.checkpoint))
    differing = [
        f"{name} {getattr(model.config, name)!r} (asked: {getattr(fresh, name)!r})"
        for name in _MUST_AGREE
        if getattr(model.config, name) != getattr(fresh, name)
    ]
    if differing:
        raise ConfigError(
            f"checkpoint {start.checkpoint} does not fit the configuration: {', '.join(differing)};"
            " match the configuration to it"
        )
    if not start.rescale and model.config.plan != fresh.plan:
        raise ConfigError(
            "the checkpoint has another plan than the configuration; give its rounds, or take the"
            " configuration's plan and scales with --rescale"
        )
    if start.rescale:
        model = load_model(Path(start.checkpoint), config=fresh)
    kept = "the configuration's" if start.rescale else "the checkpoint's"
    console.print(
        f"Continuing {start.checkpoint} with its tokenizer and {kept} skip and branch scales."
        " The init gain is not applied: it acts on fresh weights only.",
        markup=False,
        soft_wrap=True,
    )
    return model

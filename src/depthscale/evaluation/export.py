"""A folder for the Hub: weights, config, tokenizer, the model's own code, and a card with what was measured."""

from __future__ import annotations

import importlib.resources
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from safetensors import SafetensorError
from transformers import GenerationConfig

from depthscale.errors import CheckpointError, ResultError
from depthscale.evaluation.checkpoint import load_model_and_tokenizer
from depthscale.evaluation.target import Target
from depthscale.nn import LoopedLMConfig
from depthscale.plan import DepthPlan
from depthscale.runs.files import atomic_write_text
from depthscale.runs.results import read_result, result_path

MODEL_CARD = "README.md"
#: Results that the card shows, each over the one before.
_KINDS = ("training", "evaluation", "tasks")


def export_model(target: Target, directory: Path) -> Path:
    """Write a trained model so that it loads wherever transformers does, without depthscale.

    The folder holds safetensors, ``config.json``, ``generation_config.json``, the tokenizer, the model's code as
    remote code, and a model card. It is whole or absent.

    Args:
        target: what :func:`depthscale.evaluation.target.find_target` found.
        directory: new, or empty.

    Returns:
        ``directory``.

    Raises:
        CheckpointError: the checkpoint is damaged or lacks its tokenizer, the directory holds files, or it cannot be
            written.
        ResultError: a result file that the card would show is damaged.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointError(f"{directory} is not empty; name a new directory with --out")
    model, tokenizer = load_model_and_tokenizer(target.checkpoint)
    card = model_card(target, model.config, model.num_parameters())
    staging: Path | None = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        model.generation_config = GenerationConfig(
            bos_token_id=model.config.bos_token_id,
            eos_token_id=model.config.eos_token_id,
            pad_token_id=model.config.pad_token_id,
        )
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        atomic_write_text(staging / MODEL_CARD, card)
        # Private to its owner, as mkdtemp makes it, would be no folder to share.
        staging.chmod(0o755)
        if directory.exists():
            directory.rmdir()
        staging.rename(directory)
    # safetensors tells of a full disk by an error of its own kind.
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot write {directory}: {reason}; choose another, or free space") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return directory


def model_card(target: Target, config: LoopedLMConfig, num_parameters: int) -> str:
    """The card in Markdown: shape, results as they stand in the run's files, their hash, corpus, how to load.

    Only numbers that were measured on these very weights are shown; what was not measured is said to be so.

    Raises:
        ResultError: a result file is damaged.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["number"] = _number
    environment.filters["corpus"] = _corpus_name
    folder = importlib.resources.files("depthscale.evaluation")
    template = environment.from_string((folder / "model_card.md.j2").read_text(encoding="utf-8"))
    shown: dict[str, Any] = {
        "plan": DepthPlan.from_dict({"segments": config.plan}),
        "config": config,
        "num_parameters": num_parameters,
        "rule": (config.residual_rule or {}).get("name"),
        "run_sha256": target.run_sha256(),
        **dict.fromkeys(_KINDS),
    }
    card = template.render(shown)
    # One by one, so that a file which lacks what the card shows can be named.
    for kind in _KINDS:
        shown[kind] = _result(target, kind)
        try:
            card = template.render(shown)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            path = result_path(target.run_directory or target.checkpoint, kind)
            raise ResultError(f"{path} is damaged ({error}); delete it and run the command that made it") from error
    return card


def _result(target: Target, kind: str) -> Mapping[str, Any] | None:
    """The run's result of that kind, or None where there is none, or one of other weights."""
    if target.run_directory is None or not result_path(target.run_directory, kind).exists():
        return None
    result = read_result(target.run_directory, kind)
    # The training result is itself part of the hash.
    return result if kind == "training" or result.get("run_sha256") == target.run_sha256() else None


def _corpus_name(corpus: str) -> str:
    """A corpus as others may read it: of a path on this machine its last part only."""
    return Path(corpus).name or corpus


def _number(value: float | None, decimals: int = 4) -> str:
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"

"""One run from its configuration to its result: prepare, train, evaluate, write down."""

from __future__ import annotations

import math
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from depthscale.budget import count_parameters, flops_per_token
from depthscale.errors import CheckpointError, ConfigError, ResultError, RunInterruptedError
from depthscale.evaluation.checkpoint import load_model
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, write_toml
from depthscale.runs.interruption import graceful_interruption
from depthscale.runs.layout import CHECKPOINT, CONFIG_FILE, METRICS_FILE, TRAINING_STATE
from depthscale.runs.metrics import append_metric, read_metrics
from depthscale.runs.results import read_result, result_path, write_result
from depthscale.training.model import build_model, model_shape, require_same_shape
from depthscale.training.outcome import judge
from depthscale.training.prepare import PreparedData, prepare_data
from depthscale.training.progress import ProgressBar
from depthscale.training.recorder import RunRecorder
from depthscale.training.trainer import LoopedTrainer, checkpoints


@dataclass(frozen=True)
class Start:
    """Where a run's weights come from.

    Attributes:
        checkpoint: a folder to continue from; None means fresh weights.
        rescale: use the configuration's skip and branch scales instead of the checkpoint's.
    """

    checkpoint: Path | None = None
    rescale: bool = False


def train_run(
    config: RunConfig,
    directory: Path,
    *,
    resume: bool = False,
    start: Start | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train one run and return its ``training`` result, also written into ``directory``.

    Args:
        config: the resolved configuration.
        directory: the run directory; must be empty or new unless ``resume``.
        resume: go on from the directory's newest whole checkpoint, or return its result if it is finished.
        start: continue an earlier checkpoint's weights as a new run.
        console: where to show progress and notices; none if None.

    Raises:
        ConfigError, DataError, CheckpointError, ResultError: bad input, in one line.
        RunInterruptedError: SIGINT or SIGTERM came; a checkpoint was written first.
    """
    console = console or Console(quiet=True)
    start = start or Start()
    if resume and result_path(directory, "training").exists():
        return read_result(directory, "training")
    _refuse_another_run(directory, config, resume)
    if config.train.num_threads:
        torch.set_num_threads(config.train.num_threads)
    disable_progress_bar()

    data = prepare_data(
        corpus=config.data.corpus,
        tokenizer=config.data.tokenizer if start.checkpoint is None else str(start.checkpoint),
        context_length=config.data.context_length,
        tuning_fraction=config.data.tuning_fraction,
        report_fraction=config.data.report_fraction,
        split_seed=config.data.split_seed,
        attend_across_documents=config.data.attend_across_documents,
        text_field=config.data.text_field,
    )
    model = _model(config, data, start, console)
    if config.train.compile_blocks:
        model.compile_blocks()

    # Only now, when nothing can be wrong with the input any more, does the directory become this run's own.
    write_toml(directory / CONFIG_FILE, config)
    metrics_path = directory / METRICS_FILE
    state_directory = directory / TRAINING_STATE
    rows_per_step = config.train.batch_rows * config.train.accumulation
    saved = checkpoints(state_directory) if resume else []
    with graceful_interruption() as interruption:
        recorder = RunRecorder(config.train, metrics_path, rows_per_step * config.data.context_length, interruption)
        recorder.go_on_from(_step_of(saved[-1]) if saved else 0)
        trainer = LoopedTrainer(
            model,
            config.train,
            data,
            state_directory,
            metrics_path,
            callbacks=[recorder, ProgressBar(console, recorder.tokens_per_step)],
        )
        recorder.trainer = trainer
        if saved:
            append_metric(metrics_path, {"step": _step_of(saved[-1]), "kind": "resumed"})
        else:
            append_metric(metrics_path, {"step": 0, "kind": "visits", **trainer.measured_visits()})
        trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
        finished = trainer.state.global_step >= config.train.steps or recorder.divergence is not None
        if interruption.signal_number is not None and not finished:
            raise RunInterruptedError(
                f"interrupted at step {trainer.state.global_step} of {config.train.steps}; go on with"
                f" depthscale train --resume --run-dir {directory}",
                interruption.signal_number,
            )
    result = _result(config, data, trainer, recorder)
    _save_final(trainer, data, directory)
    write_result(directory, "training", result)
    shutil.rmtree(state_directory, ignore_errors=True)
    return read_result(directory, "training")


def _refuse_another_run(directory: Path, config: RunConfig, resume: bool) -> None:
    config_path = directory / CONFIG_FILE
    if config_path.exists():
        if not resume:
            raise ResultError(f"{directory} already holds a run; choose another --run-dir, or go on with --resume")
        if validate(RunConfig, read_toml(config_path), str(config_path)) != config:
            raise ConfigError(f"{config_path} differs from the configuration given; resume a run unchanged")


def _model(config: RunConfig, data: PreparedData, start: Start, console: Console) -> LoopedLMForCausalLM:
    if start.checkpoint is None:
        return build_model(config, data.tokenizer, data.vocab_size)
    model = load_model(start.checkpoint)
    require_same_shape(model, config, data.vocab_size)
    fresh = build_model(config, data.tokenizer, data.vocab_size).config
    if start.rescale:
        model = LoopedLMForCausalLM.from_pretrained(start.checkpoint, config=fresh, local_files_only=True)
    kept = "the configuration's" if start.rescale else "the checkpoint's"
    console.print(
        f"Continuing {start.checkpoint} with {kept} skip and branch scales."
        " The init gain is not applied: it acts on fresh weights only."
    )
    if not start.rescale and model.config.plan != fresh.plan:
        raise ConfigError(
            "the checkpoint has another plan than the configuration; give its rounds, or take the"
            " configuration's plan and scales with --rescale"
        )
    return model


def _result(config: RunConfig, data: PreparedData, trainer: LoopedTrainer, recorder: RunRecorder) -> dict[str, Any]:
    seconds = recorder.seconds
    final = {split: trainer.loss_on(split) for split in ("tuning", "report")}
    floors = {split: data.unigram_loss_nats(split) for split in ("tuning", "report")}
    records = read_metrics(trainer.metrics_path)
    evaluations = [record["loss_nats"] for record in records if record["kind"] == "evaluation"]
    outcome, reason = judge(
        divergence=recorder.divergence,
        tuning_losses=[*(math.inf if loss is None else loss for loss in evaluations), final["tuning"]["loss_nats"]],
        unigram_loss=floors["tuning"],
    )
    shape = model_shape(config, data.vocab_size)
    parameters = count_parameters(shape)
    flops = flops_per_token(shape, config.data.context_length, checkpoint_visits=config.train.checkpoint_visits)
    tokens = trainer.state.global_step * recorder.tokens_per_step
    plan, scales = config.plan.build(), trainer.model.config.residual_scales
    return {
        "outcome": outcome,
        "outcome_reason": reason,
        "seed": config.train.seed,
        "data_seed": config.train.data_seed,
        "step": trainer.state.global_step,
        "steps_planned": config.train.steps,
        "tokens": tokens,
        "final": final,
        "unigram_loss_nats": floors,
        "uniform_loss_nats": math.log(data.vocab_size),
        "plan": {
            "num_blocks": plan.num_blocks,
            "num_rounds": plan.num_rounds,
            "unrolled_depth": plan.unrolled_depth,
            "num_sublayer_visits": plan.num_sublayer_visits,
            **plan.to_dict(),
        },
        "model": {
            "norm_placement": config.model.norm_placement,
            "rule": config.model.rule,
            "rule_arguments": config.model.rule_arguments,
            "scales": scales,
            "hidden_size": config.model.hidden_size,
            "num_attention_heads": config.model.num_attention_heads,
            "intermediate_size": config.model.resolved_intermediate_size,
            "mlp": config.model.mlp,
            "vocab_size": data.vocab_size,
        },
        "budget": {
            "parameters": parameters.total,
            "parameters_non_embedding": parameters.non_embedding,
            "flops_per_token_forward": flops.forward,
            "flops_per_token_forward_causal": flops.forward_causal,
            "flops_per_token_training": flops.training,
            "head_share": flops.head_share,
            "training_flops": flops.training * tokens,
        },
        "data": {
            **data.describe(),
            "epochs": tokens / data.splits["train"].num_tokens,
            "tokens_per_parameter": tokens / parameters.total,
            "tokens_per_parameter_non_embedding": tokens / parameters.non_embedding,
            "attend_across_documents": config.data.attend_across_documents,
            "context_length": config.data.context_length,
        },
        "optimization": {
            "lr": config.train.lr,
            "schedule": config.train.schedule,
            "warmup_steps": config.train.warmup_steps,
            "share_clipped": trainer.num_clipped / max(trainer.state.global_step, 1),
            "steps_non_finite": trainer.num_non_finite,
        },
        "visits": trainer.last_visits,
        "groups": trainer.last_groups,
        "wall_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "peak_memory_bytes": _peak_memory_bytes(),
        "resumed": sum(record["kind"] == "resumed" for record in records),
        "precision": config.train.precision,
        "num_threads": torch.get_num_threads(),
    }


def _save_final(trainer: LoopedTrainer, data: PreparedData, directory: Path) -> None:
    """The trained weights with their tokenizer, whole or not at all."""
    staging = directory / f".{CHECKPOINT}.writing"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        trainer.save_model(str(staging))
        data.tokenizer.save_pretrained(staging)
    except OSError as error:
        raise CheckpointError(f"cannot write {staging}: {error.strerror or error}; free some space") from error
    (staging / "training_args.bin").unlink(missing_ok=True)
    shutil.rmtree(directory / CHECKPOINT, ignore_errors=True)
    staging.rename(directory / CHECKPOINT)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

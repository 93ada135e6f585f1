"""One run from its configuration to its result: prepare, train, evaluate, write down."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from rich.console import Console
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from depthscale.errors import CheckpointError, ConfigError, ResultError, RunInterruptedError
from depthscale.evaluation.checkpoint import require_looped_config
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, write_toml
from depthscale.runs.interruption import Interruption, graceful_interruption
from depthscale.runs.layout import (
    CHECKPOINT,
    CONFIG_FILE,
    LOCK_FILE,
    LOG_FILE,
    METRICS_FILE,
    TENSORBOARD,
    TRAINING_STATE,
)
from depthscale.runs.manifest import is_intact, sync_files
from depthscale.runs.metrics import append_metric
from depthscale.runs.results import read_result, result_path, write_result
from depthscale.training.alignment_log import AlignmentLog
from depthscale.training.alignment_points import Settings
from depthscale.training.branching import begin_at_branch_point
from depthscale.training.model import build_model, model_config
from depthscale.training.prepare import prepare_data
from depthscale.training.prepared_data import PreparedData
from depthscale.training.processes import is_first_process, is_true_anywhere, num_processes, wait_for_all
from depthscale.training.progress import ProgressBar
from depthscale.training.recorder import TrainingRecorder
from depthscale.training.result import training_result
from depthscale.training.start import continue_from
from depthscale.training.subnormals import flushed_subnormals
from depthscale.training.tensorboard import tensorboard_callback
from depthscale.training.trainer import LoopedTrainer, checkpoints


def train_run(
    config: RunConfig, directory: Path, *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Train one run and return its ``training`` result, also written into ``directory``.

    Args:
        config: the resolved configuration.
        directory: the run directory; must be empty or new unless ``resume``.
        resume: go on from the directory's newest whole checkpoint, or return its result if it is finished.
        console: where to show progress and notices; none if None.

    Raises:
        ConfigError, DataError, CheckpointError, ResultError: bad input, in one line.
        RunInterruptedError: SIGINT or SIGTERM came; a checkpoint was written first.
    """
    console = console or Console(quiet=True)
    _refuse_sharding()
    _refuse_another_run(directory, config, resume)
    if resume and result_path(directory, "training").exists():
        return read_result(directory, "training")
    if config.start is not None:
        require_looped_config(Path(config.start.checkpoint))
    if config.train.num_threads:
        torch.set_num_threads(config.train.num_threads)
    # Faults are said in our own words, progress in our own bar.
    disable_progress_bar()
    set_verbosity_error()

    data = prepare_data(config.data)
    model = _model(config, data, console)
    if untrained := _without_gradient(config):
        console.print(f"Note: {untrained}.", soft_wrap=True)
    if config.train.compile_blocks:
        model.compile_blocks()
    state_directory = directory / TRAINING_STATE
    try:
        state_directory.mkdir(parents=True, exist_ok=True)
        with _lock(state_directory), graceful_interruption() as interruption, flushed_subnormals():
            # Only now, when nothing can be wrong with the input any more, is the directory this run's own.
            if is_first_process():
                write_toml(directory / CONFIG_FILE, config)
            result = _train(config, directory, data, model, resume, console, interruption)
    except Timeout as error:
        raise ResultError(f"another process is training in {directory}; wait for it or end it") from error
    except OSError as error:
        raise ResultError(f"training in {directory} failed to read or write: {error}") from error
    if not is_first_process():
        return result
    shutil.rmtree(state_directory, ignore_errors=True)
    return read_result(directory, "training")


def _lock(state_directory: Path) -> AbstractContextManager[object]:
    """Held by a run's first process, for all of its processes."""
    return FileLock(state_directory / LOCK_FILE, timeout=0) if is_first_process() else nullcontext()


def _without_gradient(config: RunConfig) -> str | None:
    """What a truncated loop cuts off from its gradient, in words, or None where it cuts off nothing that is trained."""
    plan = config.plan
    if not plan.prelude or plan.grad_rounds is None or plan.inject:
        return None
    most_rounds = plan.rounds if config.train.rounds is None else config.train.rounds.resolved_maximum
    if most_rounds <= plan.grad_rounds:
        return None
    return (
        f"steps of more than plan.grad_rounds = {plan.grad_rounds} rounds leave the prelude without gradient, as it is"
        " not injected again; set plan.inject = true, or leave grad_rounds out, to train it"
    )


def _train(
    config: RunConfig,
    directory: Path,
    data: PreparedData,
    model: LoopedLMForCausalLM,
    resume: bool,
    console: Console,
    interruption: Interruption,
) -> dict[str, Any]:
    metrics_path = directory / METRICS_FILE
    tokens_per_step = config.train.rows_per_step(num_processes()) * config.data.context_length
    recorder = TrainingRecorder(config.train, metrics_path, tokens_per_step, interruption)
    callbacks: list[TrainerCallback] = [recorder, ProgressBar(console, tokens_per_step)]
    if config.train.log_alignment_every:
        callbacks.append(AlignmentLog(config.train.log_alignment_every, data, Settings(), metrics_path))
    if config.train.tensorboard:
        callbacks.append(tensorboard_callback(directory / TENSORBOARD))
    state_directory = directory / TRAINING_STATE
    # With it the processes join, without which none would wait for another.
    trainer = LoopedTrainer(model, config.train, data, state_directory, metrics_path, callbacks)
    recorder.trainer = trainer
    if is_first_process():
        begin_at_branch_point(config, directory, console)
    wait_for_all()
    saved = _newest_whole_checkpoint(state_directory, console) if resume or config.branch else None
    step = _step_of(saved) if saved else 0
    recorder.go_on_from(step, writes=is_first_process())
    if saved:
        trainer.take_up_counters(saved)
        first_record = {"step": step, "kind": "resumed"}
    else:
        first_record = {"step": 0, "kind": "visits", **trainer.measured_visits()}
    if is_first_process():
        append_metric(metrics_path, first_record)
    trainer.train(resume_from_checkpoint=str(saved) if saved else None)
    finished = trainer.state.global_step >= config.train.steps or recorder.divergence is not None
    if not finished and is_true_anywhere(interruption.requested):
        raise RunInterruptedError(
            f"interrupted at step {trainer.state.global_step} of {config.train.steps}; go on with"
            f" depthscale train --resume --run-dir {directory}",
            interruption.signal_number or signal.SIGTERM,
        )
    # What the first process wrote is read by all.
    wait_for_all()
    result = training_result(config, data, trainer, recorder)
    if is_first_process():
        _save_final(trainer, data.tokenizer, directory)
        write_result(directory, "training", result)
    return result


def _refuse_sharding() -> None:
    """On CPUs accelerate would ignore the wish in silence, and our measurements during training need whole weights."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise ConfigError(
            "accelerate was asked for FSDP (ACCELERATE_USE_FSDP); 'train' keeps all weights on every process: start it"
            " with torchrun, or shard in a loop of your own with depthscale.shard_looped"
        )


def _refuse_another_run(directory: Path, config: RunConfig, resume: bool) -> None:
    if not is_first_process():
        return  # By now the first one may have begun to write there.
    config_path = directory / CONFIG_FILE
    if config_path.exists():
        if not resume:
            raise ResultError(f"{directory} already holds a run; choose another --run-dir, or go on with --resume")
        if validate(RunConfig, read_toml(config_path), str(config_path)) != config:
            raise ConfigError(f"{config_path} differs from the configuration given; resume a run unchanged")
    elif directory.is_dir() and any(path.name not in (LOG_FILE, TRAINING_STATE) for path in directory.iterdir()):
        raise ResultError(f"{directory} holds other files and no run; choose a new or empty --run-dir")


def _model(config: RunConfig, data: PreparedData, console: Console) -> LoopedLMForCausalLM:
    if config.start is None:
        return build_model(config, data.tokenizer, data.vocab_size)
    return continue_from(config.start, model_config(config, data.tokenizer, data.vocab_size), console)


def _newest_whole_checkpoint(state_directory: Path, console: Console) -> Path | None:
    saved = checkpoints(state_directory)
    for checkpoint in reversed(saved):
        if is_intact(checkpoint):
            return checkpoint
        console.print(f"{checkpoint} is damaged and is passed over", markup=False, soft_wrap=True)
    if saved:
        raise CheckpointError(f"every checkpoint in {state_directory} is damaged; delete that folder to begin anew")
    return None


def _save_final(trainer: LoopedTrainer, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """The trained weights with their tokenizer, whole or not at all."""
    staging = directory / f".{CHECKPOINT}.writing"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        trainer.save_model(str(staging))
        _with_padding(tokenizer).save_pretrained(staging)
        (staging / "training_args.bin").unlink(missing_ok=True)
        sync_files(staging)
        shutil.rmtree(directory / CHECKPOINT, ignore_errors=True)
        staging.rename(directory / CHECKPOINT)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise CheckpointError(
            f"cannot write {directory / CHECKPOINT}: {error}; free some space and go on with --resume"
        ) from error


def _with_padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Ready for batched generation: padded on the left, by the end-of-text token unless it has one for that."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])

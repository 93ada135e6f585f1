"""The one subclass of transformers' ``Trainer``, with every override it makes.

    _get_train_sampler   rows in an order that depends on (data seed, position) alone, the same for every arm
    compute_loss         random rounds: every micro-batch of a step makes the rounds drawn for it
    create_optimizer     the optimizer by name, learning-rate multipliers per segment, no decay on norm gains
    _clip_grad_norm      counts clipped steps; a non-finite step is skipped, its gradient dropped
    evaluate             nats and bits per byte on named splits, and what is measured of visits and weights
    _save_checkpoint     written beside, then renamed: a checkpoint is whole or absent; never of non-finite weights

Everything else (loop, accumulation, precision, schedule, resume, distribution) is transformers'.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainingArguments

from depthscale.errors import CheckpointError
from depthscale.evaluation.loss import evaluate_loss
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.manifest import write_manifest
from depthscale.runs.metrics import append_metric
from depthscale.runs.train_config import TrainConfig
from depthscale.training.batch_order import EpochOrderSampler
from depthscale.training.branching import keep_branch_point
from depthscale.training.measure import WeightMovement, measure_visits
from depthscale.training.optimizers import build_optimizer
from depthscale.training.prepared_data import PreparedData
from depthscale.training.processes import num_processes
from depthscale.training.random_rounds import draw_rounds

#: Checkpoints kept while training; the older one survives a fault found late in the newer.
CHECKPOINTS_KEPT = 2
_COUNTERS = "counters.json"


def training_arguments(config: TrainConfig, output_directory: Path) -> TrainingArguments:
    """A run's ``[train]`` in transformers' words."""
    schedules: dict[str, tuple[str, dict[str, Any]]] = {
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": config.min_lr_ratio}),
        "wsd": (
            "warmup_stable_decay",
            {
                "num_decay_steps": max(1, round(config.decay_fraction * config.steps)),
                "decay_type": "linear",
                "min_lr_ratio": config.min_lr_ratio,
            },
        ),
        "constant": ("constant_with_warmup", {}),
    }
    schedule, schedule_arguments = schedules[config.schedule]
    arguments = TrainingArguments(
        output_dir=str(output_directory),
        per_device_train_batch_size=config.batch_rows,
        gradient_accumulation_steps=config.accumulation_over(num_processes()),
        max_steps=config.steps,
        learning_rate=config.lr,
        lr_scheduler_type=schedule,
        lr_scheduler_kwargs=schedule_arguments,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_epsilon=config.adam_epsilon,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        data_seed=config.data_seed,
        bf16=config.precision == "bfloat16",
        gradient_checkpointing=config.checkpoint_visits,
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if config.eval_every else "no",
        eval_steps=config.eval_every,
        save_strategy="steps" if config.checkpoint_every else "no",
        save_steps=config.checkpoint_every or config.steps,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        optim="adamw_torch_fused",
    )
    # One process trains on one GPU. Of several without torchrun, DataParallel would give each a whole micro-batch, and
    # the run would make larger steps than its file says.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


class LoopedTrainer(Trainer):
    """Trains a looped language model on prepared data; see the module's docstring for what it overrides."""

    # Set by the base class, which is not typed.
    optimizer: torch.optim.Optimizer | None
    control: TrainerControl

    def __init__(
        self,
        model: LoopedLMForCausalLM,
        config: TrainConfig,
        data: PreparedData,
        output_directory: Path,
        metrics_path: Path,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self.run_config = config
        self.data = data
        self.metrics_path = metrics_path
        self.num_clipped = 0
        self.num_non_finite = 0
        self.non_finite_in_a_row = 0
        self.movement = WeightMovement(model)
        arguments = training_arguments(config, output_directory)
        # A truncated loop may leave weights without gradient, which several processes must then look for at every step.
        arguments.ddp_find_unused_parameters = any(segment["grad_rounds"] is not None for segment in model.config.plan)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=data.splits["train"].dataset,
            eval_dataset=data.splits["tuning"].dataset,
            data_collator=data.collate,
            callbacks=list(callbacks),
        )
        # The console belongs to the caller's own progress display.
        for callback in list(self.callback_handler.callbacks):
            if type(callback).__name__ in ("PrinterCallback", "ProgressCallback"):
                self.remove_callback(type(callback))

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset = self.data.splits["train"].dataset
        return EpochOrderSampler(
            num_rows=len(dataset),
            seed=self.run_config.data_seed,
            num_samples=self.run_config.rows_per_step(self.args.world_size) * self.run_config.steps,
            rows_per_block=dataset.rows_per_block,
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        law = self.run_config.rounds
        if law is not None:
            # global_step counts finished steps, on every process and through every resume alike.
            inputs = {**inputs, "rounds": draw_rounds(law, self.run_config.data_seed, self.state.global_step)}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = build_optimizer(self.model, self.run_config)
        return self.optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        norm = super()._clip_grad_norm(model)
        if not bool(torch.isfinite(norm)):
            # Without gradients the optimizer leaves weights and moments as they are. The norm is the same on every
            # process, so all of them skip.
            model.zero_grad()
            self.num_non_finite += 1
            self.non_finite_in_a_row += 1
            return norm
        self.non_finite_in_a_row = 0
        clip_factor = min(1.0, self.args.max_grad_norm / (norm.item() + 1e-6))
        self.num_clipped += clip_factor < 1.0
        if self._evaluates_after_this_step():
            self.movement.before_step(self.model, clip_factor)
        return norm

    def _evaluates_after_this_step(self) -> bool:
        step = self.state.global_step + 1
        every = self.run_config.eval_every
        return step == self.run_config.steps or (every is not None and step % every == 0)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss on the tuning split, and what is measured of visits and weights, all written to the metrics file."""
        step = self.state.global_step
        loss = self.loss_on("tuning")
        self.movement.after_step(self.model)
        groups = {"share_clipped": self.num_clipped / max(step, 1), "groups": self.movement.summary(self.model)}
        if self.is_world_process_zero():
            append_metric(self.metrics_path, {"step": step, "kind": "evaluation", "split": "tuning", **loss})
            append_metric(self.metrics_path, {"step": step, "kind": "visits", **self.measured_visits()})
            append_metric(self.metrics_path, {"step": step, "kind": "groups", **groups})
        metrics = {f"{metric_key_prefix}_loss": loss["loss_nats"], f"{metric_key_prefix}_bpb": loss["bits_per_byte"]}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def loss_on(self, split: str) -> dict[str, float]:
        """Nats per token and bits per byte on a split of the prepared data."""
        part = self.data.splits[split]
        result = evaluate_loss(
            self.model,
            part.dataset,
            self.data.collate,
            batch_rows=self.run_config.batch_rows,
            max_rows=self.run_config.eval_rows,
        )
        return {
            "loss_nats": result.loss_nats,
            "bits_per_byte": part.bits_per_byte(result.loss_nats),
            "num_tokens": result.num_tokens,
            "unigram_entropy_nats": result.unigram_entropy_nats,
        }

    def measured_visits(self) -> dict[str, list[float]]:
        """State and update sizes per visit on the first rows of the tuning split."""
        dataset = self.data.splits["tuning"].dataset
        rows = [dataset[index] for index in range(min(self.run_config.batch_rows, len(dataset)))]
        batch = {name: value.to(self.args.device) for name, value in self.data.collate(rows).items()}
        return measure_visits(self.model, batch)

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        if not _is_finite(self.model):
            # The checkpoints before are the last good ones; the next step will be seen not to be finite.
            return
        final_home = Path(self.args.output_dir)
        staging = final_home / ".writing"
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        # Others would write into a folder that is still being emptied.
        self.accelerator.wait_for_everyone()
        self.args.output_dir = str(staging)
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._install_checkpoint(staging, final_home)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(
                f"cannot write a checkpoint in {final_home}: {error}; the one before is kept: free some space and go"
                " on with --resume"
            ) from error
        finally:
            self.args.output_dir = str(final_home)
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)

    def _install_checkpoint(self, staging: Path, final_home: Path) -> None:
        for finished in staging.glob("checkpoint-*"):
            (finished / _COUNTERS).write_text(json.dumps([self.num_clipped, self.num_non_finite]))
            write_manifest(finished)
            target = final_home / finished.name
            shutil.rmtree(target, ignore_errors=True)
            finished.rename(target)
            if int(target.name.rpartition("-")[2]) in self.run_config.branch_at:
                keep_branch_point(target, final_home.parent)
        for old in checkpoints(final_home)[:-CHECKPOINTS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def take_up_counters(self, checkpoint: Path) -> None:
        """Go on counting clipped and skipped steps from where ``checkpoint`` was written."""
        self.num_clipped, self.num_non_finite = json.loads((checkpoint / _COUNTERS).read_text())


@torch.no_grad()
def _is_finite(model: nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def checkpoints(directory: Path) -> list[Path]:
    """Whole training checkpoints below ``directory``, oldest first."""
    return sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))

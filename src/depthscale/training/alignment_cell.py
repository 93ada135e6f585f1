"""One cell of an alignment study: a fresh model, trained for a while, its visits measured along the way."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.measure import looped_forward, measure_looped_model
from depthscale.alignment.study_steps import measure_real_steps
from depthscale.alignment.sublayers import looped_sublayers
from depthscale.errors import DataError
from depthscale.nn import LoopedLMForCausalLM
from depthscale.residual import ResidualScales
from depthscale.runs.alignment_config import AlignmentRun
from depthscale.runs.layout import METRICS_FILE
from depthscale.runs.outcome import divergence_reason
from depthscale.runs.results import write_result
from depthscale.training.alignment_points import Settings, batch_of
from depthscale.training.dataset import PackedDataset
from depthscale.training.model import build_model
from depthscale.training.parameter_groups import optimizer_groups
from depthscale.training.prepare import prepare_data
from depthscale.training.prepared_data import PreparedData, PreparedSplit
from depthscale.training.trainer import LoopedTrainer

CELL_KIND = "alignment_cell"


def measure_cell(config: AlignmentRun, directory: Path) -> dict[str, Any]:
    """Train and measure one cell and write its result into ``directory``.

    A cell that diverges keeps what was measured before, and says so.

    Args:
        config: what to train and where to measure.
        directory: of the cell.

    Returns:
        The result: ``points``, one per step, batch size and kind of G, and ``one_steps``.
    """
    if config.train.num_threads:
        torch.set_num_threads(config.train.num_threads)
    disable_progress_bar()
    set_verbosity_error()
    data = prepare_data(config.data)
    if config.measure.tokens == "shuffled":
        data = shuffled(data, config.train.data_seed)
    model = build_model(config, data.tokenizer, data.vocab_size)
    points = PointRecorder(config, data)
    if config.measure.steps[-1] == 0:
        points.measure(model, 0, None)
    else:
        _train(config, data, model, points)
    result = {
        "arm": config.arm,
        "rounds": config.plan.rounds,
        "seed": config.train.seed,
        **_description(config),
        "outcome": points.outcome,
        "points": points.points,
        "one_steps": points.one_steps,
        "training_loss_nats": points.losses,
        "unigram_loss_nats": data.unigram_loss_nats(config.measure.split),
        "data": data.describe(),
    }
    write_result(directory, CELL_KIND, result)
    return result


def shuffled(data: PreparedData, seed: int) -> PreparedData:
    """The same tokens in random order within each split: frequencies are left, all context is gone.

    Raises:
        DataError: the corpus is a stream, whose order is not ours to change.
    """

    def permuted(number: int, name: str) -> PreparedSplit:
        split = data.splits[name]
        dataset = split.dataset
        if not isinstance(dataset, PackedDataset):
            raise DataError(f"corpus '{data.name}' is a stream, which cannot be shuffled; use a file or a folder")
        stream = np.random.default_rng([seed, number]).permutation(np.asarray(dataset.stream))
        return dataclasses.replace(
            split,
            dataset=PackedDataset(
                stream,
                dataset.starts,
                dataset.context_length,
                attend_across_documents=dataset.attend_across_documents,
                pad_last_row=name != "train",
                pad_id=dataset.pad_id,
            ),
        )

    splits = {name: permuted(number, name) for number, name in enumerate(sorted(data.splits))}
    return dataclasses.replace(data, splits=splits)


class PointRecorder(TrainerCallback):
    """Measures at the configured steps; weights, random state and data order stay as they are.

    Attributes:
        points: measurements of alignment, plain data.
        one_steps: real steps that were taken and undone.
        losses: training loss by step.
        outcome: ``finished``, or why measuring ended early.
    """

    def __init__(self, config: AlignmentRun, data: PreparedData) -> None:
        self.config, self.data = config, data
        self.points: list[dict[str, Any]] = []
        self.one_steps: list[dict[str, Any]] = []
        self.losses: list[dict[str, float]] = []
        self.outcome = "finished"
        split, probes = config.measure.split, config.measure.num_probes
        self._batches = {rows: batch_of(data, Settings(split, rows, probes)) for rows in config.measure.rows}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if 0 in self.config.measure.steps:
            self.measure(kwargs["model"], 0, None)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        step = state.global_step
        if step in self.config.measure.steps:
            self.measure(kwargs["model"], step, kwargs["optimizer"])
        if step >= self.config.measure.steps[-1] or self.outcome != "finished":
            control.should_training_stop = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        self.losses.append({"step": state.global_step, "loss_nats": loss})
        first = self.losses[0]["loss_nats"]
        if not math.isfinite(loss) or divergence_reason(loss, first, self.config.train.divergence_factor):
            self.outcome = f"diverged at step {state.global_step}"

    def measure(self, model: LoopedLMForCausalLM, step: int, optimizer: torch.optim.Optimizer | None) -> None:
        """Every batch size with G of the loss; the first also with G of Adam's update, once there is one."""
        settings = self.config.measure
        try:
            for rows, batch in self._batches.items():
                self._point(model, step, rows, batch, None)
            rows, batch = next(iter(self._batches.items()))
            if optimizer is not None and settings.optimizer == "adamw":
                self._point(model, step, rows, batch, optimizer)
            if step in settings.one_step:
                found = measure_real_steps(
                    model,
                    lambda: looped_forward(model, batch),
                    looped_sublayers(model),
                    sgd_lr=settings.sgd_lr,
                    adamw_lr=settings.adamw_lr,
                    num_iterations=settings.power_iterations,
                )
                self.one_steps += [{"step": step, "batch_rows": rows, **record} for record in found]
        except AlignmentError as error:
            self.outcome = f"could not be measured at step {step}: {error}"

    def _point(
        self,
        model: LoopedLMForCausalLM,
        step: int,
        rows: int,
        batch: dict[str, Tensor],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        alignment = measure_looped_model(
            model,
            batch,
            # The untied control is measured as if it were tied.
            num_blocks=self.config.plan.blocks if self.config.plan.kind == "stacked" else None,
            num_probes=self.config.measure.num_probes,
            optimizer=optimizer,
        )
        with torch.no_grad():
            loss = looped_forward(model, batch).loss.item()
        self.points.append({"step": step, "batch_rows": rows, "loss_nats": loss, **alignment.to_dict()})


def _train(config: AlignmentRun, data: PreparedData, model: LoopedLMForCausalLM, points: PointRecorder) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        trainer = LoopedTrainer(model, config.train, data, home, home / METRICS_FILE, [points])
        if config.measure.optimizer == "sgd":
            trainer.optimizer = torch.optim.SGD(optimizer_groups(model, config.train.lr, 0.0), lr=config.train.lr)
        trainer.train()


def _description(config: AlignmentRun) -> dict[str, Any]:
    model = config.model
    scales: ResidualScales = model.scales(config.stated_plan())
    return {
        "rule": model.rule,
        "rule_arguments": model.rule_arguments,
        "exponent": config.exponent,
        "norm_placement": model.norm_placement,
        "plan_kind": config.plan.kind,
        "num_blocks": config.plan.blocks,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "mlp": model.mlp,
        "optimizer": config.measure.optimizer,
        "tokens": config.measure.tokens,
        "lr": config.train.lr,
        "relative_branch": scales.groups[0].relative_branch,
        "split": config.measure.split,
        "tokens_per_training_step": config.train.batch_rows * config.train.accumulation * config.data.context_length,
    }

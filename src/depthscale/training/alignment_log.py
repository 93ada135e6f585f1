"""The callback that logs kappa while a model trains; training itself does not notice it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.kappa import Alignment
from depthscale.alignment.measure import measure_looped_model
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.metrics import append_metric
from depthscale.training.alignment_points import Settings, batch_of
from depthscale.training.prepared_data import PreparedData


class AlignmentLog(TrainerCallback):
    """Appends a record of kind ``alignment`` at step 0 and every ``every`` steps, always on the same held-out rows.

    Weights, gradients, random numbers and the order of the data are left as they are, so that a run with this
    callback is bit for bit the run without it. G is measured of the loss, and from the first step on also of Adam's
    effective update.

    Args:
        every: optimizer steps between records.
        data: of the run.
        settings: rows and probes.
        metrics_path: file of the run's records.
    """

    def __init__(self, every: int, data: PreparedData, settings: Settings, metrics_path: Path) -> None:
        self.every = every
        self.settings = settings
        self.metrics_path = metrics_path
        self._batch = batch_of(data, settings)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0 and state.is_world_process_zero:
            self._log(kwargs["model"], 0, None)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 and state.is_world_process_zero:
            self._log(kwargs["model"], state.global_step, kwargs["optimizer"])

    def _log(self, model: LoopedLMForCausalLM, step: int, optimizer: torch.optim.Optimizer | None) -> None:
        record: dict[str, Any] = {"step": step, "kind": "alignment"}
        batch = {name: value.to(model.device) for name, value in self._batch.items()}
        try:
            record["loss"] = _summary(measure_looped_model(model, batch, num_probes=self.settings.num_probes))
            if optimizer is not None:
                of_update = measure_looped_model(model, batch, num_probes=self.settings.num_probes, optimizer=optimizer)
                record["adam"] = _summary(of_update)
        except AlignmentError as error:
            # A run that cannot be measured, such as one that diverges, goes on to its own end.
            record["reason"] = str(error)
        append_metric(self.metrics_path, record)


def _summary(alignment: Alignment) -> dict[str, Any]:
    matrices = alignment.matrices
    return {
        "kappa": alignment.kappa,
        "kappa_common": alignment.kappa_common,
        "map_part": max(s.map_part for s in matrices),
        "gradient_part": max(s.gradient_part for s in matrices),
        "map_max": max(s.map_max for s in matrices),
        "gradient_max": max(s.gradient_max for s in matrices),
        "bound": alignment.bound,
        "sublayers": {s.name: s.kappa for s in alignment.sublayers},
    }

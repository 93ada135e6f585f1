"""The callback that writes a run's records and ends it when it diverges, is interrupted, or is done."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from depthscale.runs.interruption import Interruption
from depthscale.runs.metrics import append_metric, first_finite_loss, keep_until, read_metrics
from depthscale.runs.outcome import divergence_reason
from depthscale.runs.train_config import TrainConfig
from depthscale.training.processes import is_true_anywhere

if TYPE_CHECKING:
    from depthscale.training.trainer import LoopedTrainer

#: So many non-finite steps in a row end a run: skipping them no longer helps.
MAX_NON_FINITE_IN_A_ROW = 5


class TrainingRecorder(TrainerCallback):
    """Writes training records; stops on divergence and interruption; evaluates the last step.

    Attributes:
        divergence: why the run is called diverged, or None.
        seconds_before: training time of earlier parts of a resumed run.
    """

    def __init__(
        self, config: TrainConfig, metrics_path: Path, tokens_per_step: int, interruption: Interruption
    ) -> None:
        self.config = config
        self.metrics_path = metrics_path
        self.tokens_per_step = tokens_per_step
        self.interruption = interruption
        self.first_loss: float | None = None
        self.divergence: str | None = None
        self.seconds_before = 0.0
        self.trainer: LoopedTrainer | None = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Training time so far, earlier parts of a resumed run included."""
        return self.seconds_before + time.monotonic() - self._start

    def go_on_from(self, step: int, writes: bool = True) -> None:
        """Take up the records of an earlier part of the run; later ones are dropped, to be written again.

        Args:
            step: the last step that counts.
            writes: whether this process drops them; one of several does.
        """
        if writes:
            keep_until(self.metrics_path, step)
        records = read_metrics(self.metrics_path) if step else []
        earlier = [record for record in records if record["kind"] == "train" and record["step"] <= step]
        if earlier:
            self.first_loss = first_finite_loss(earlier)
            self.seconds_before = earlier[-1]["seconds"]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._start = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.trainer is not None and self.trainer.non_finite_in_a_row >= MAX_NON_FINITE_IN_A_ROW:
            self.divergence = f"{self.trainer.non_finite_in_a_row} non-finite steps in a row"
            control.should_training_stop, control.should_save = True, False
        elif is_true_anywhere(self.interruption.requested):
            control.should_training_stop, control.should_save = True, True
        elif state.global_step >= self.config.steps:
            # Saved as well, so that nothing that goes wrong after the last step can cost the training.
            control.should_evaluate, control.should_save = True, True
        elif state.global_step in self.config.branch_at:
            control.should_save = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        if not logs or "loss" not in logs:
            return control
        loss = logs["loss"]
        if self.first_loss is None and math.isfinite(loss):
            self.first_loss = loss
        if state.is_world_process_zero:
            record = {
                "step": state.global_step,
                "kind": "train",
                "loss_nats": loss,
                "lr": logs.get("learning_rate"),
                "grad_norm": logs.get("grad_norm"),
                "tokens": state.global_step * self.tokens_per_step,
                "seconds": self.seconds,
            }
            append_metric(self.metrics_path, record)
        if reason := divergence_reason(loss, self.first_loss, self.config.divergence_factor):
            self.divergence = reason
            control.should_training_stop, control.should_save = True, False
        return control

"""What a run's ``training`` result says."""

from __future__ import annotations

import math
import resource
import sys
from typing import Any

import torch

from depthscale.budget import ModelShape, count_parameters
from depthscale.runs.config import RunConfig
from depthscale.runs.described import described_model, described_optimization, described_plan
from depthscale.runs.metrics import read_metrics
from depthscale.runs.outcome import judge
from depthscale.training.prepared_data import PreparedData
from depthscale.training.processes import num_processes
from depthscale.training.recorder import TrainingRecorder
from depthscale.training.trainer import LoopedTrainer
from depthscale.training.training_flops import training_flops

#: What ``weight_decay`` acted on, and how often.
WEIGHT_DECAY_RULE = (
    "decoupled; on matrices and embeddings, not on norm gains; once per step on a tied weight, however often visited"
)


def training_result(
    config: RunConfig, data: PreparedData, trainer: LoopedTrainer, recorder: TrainingRecorder
) -> dict[str, Any]:
    """Evaluate the trained model on both held-out splits and put down all that the run was and cost, as plain data."""
    seconds = recorder.seconds
    records = read_metrics(trainer.metrics_path)
    final = {
        "tuning": _loss_at(records, trainer.state.global_step) or trainer.loss_on("tuning"),
        "report": trainer.loss_on("report"),
    }
    # The smallest loss that token frequencies alone allow on the very tokens evaluated.
    floors = {split: loss.pop("unigram_entropy_nats") for split, loss in final.items()}
    evaluations = [record["loss_nats"] for record in records if record["kind"] == "evaluation"]
    outcome, reason = judge(
        divergence=recorder.divergence,
        tuning_losses=[*(math.inf if loss is None else loss for loss in evaluations), final["tuning"]["loss_nats"]],
        unigram_floor=floors["tuning"],
    )
    model_config = trainer.model.config
    shape = ModelShape.from_config(model_config.to_dict())
    parameters = count_parameters(shape)
    flops = training_flops(config, shape, trainer.state.global_step, recorder.tokens_per_step)
    tokens = flops.tokens
    return {
        "outcome": outcome,
        "outcome_reason": reason,
        "start": config.start.model_dump() if config.start else None,
        "branch": config.branch.model_dump() if config.branch else None,
        "seed": config.train.seed,
        "data_seed": config.train.data_seed,
        "step": trainer.state.global_step,
        "steps_planned": config.train.steps,
        "tokens": tokens,
        "final": final,
        "unigram_loss_nats": floors,
        "uniform_loss_nats": math.log(data.vocab_size),
        "plan": described_plan(config.plan.build()),
        "model": described_model(
            config,
            model_config.residual_rule["name"],
            model_config.residual_rule["arguments"],
            model_config.residual_scales,
            data.vocab_size,
        ),
        "budget": {
            "parameters": parameters.total,
            "parameters_non_embedding": parameters.non_embedding,
            "flops_per_token_forward": flops.of_plan.forward,
            "flops_per_token_forward_causal": flops.of_plan.forward_causal,
            "flops_per_token_training": flops.of_plan.training,
            "head_share": flops.of_plan.head_share,
            "training_flops": flops.total,
            "random_rounds": flops.random_rounds,
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
            **described_optimization(config.train),
            "weight_decay_rule": WEIGHT_DECAY_RULE,
            "rows_per_step": config.train.rows_per_step(num_processes()),
            "num_processes": num_processes(),
            "share_clipped": trainer.num_clipped / max(trainer.state.global_step, 1),
            "steps_non_finite": trainer.num_non_finite,
        },
        "visits": _last(records, "visits"),
        "groups": _last(records, "groups"),
        "wall_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "peak_memory_bytes": _peak_memory_bytes(),
        "resumed": sum(record["kind"] == "resumed" for record in records),
        "precision": config.train.precision,
        "num_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _loss_at(records: list[dict[str, Any]], step: int) -> dict[str, Any] | None:
    """The evaluation made at ``step``, which a run that broke off has not."""
    record = _last(records, "evaluation")
    if record is None or record["step"] != step:
        return None
    measured = {key: value for key, value in record.items() if key not in ("step", "kind", "split")}
    # A loss that is not finite stands as null in the file.
    return measured | {"loss_nats": math.inf if measured["loss_nats"] is None else measured["loss_nats"]}


def _last(records: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def _peak_memory_bytes() -> int:
    """Of the GPU that the run trained on, else of its process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

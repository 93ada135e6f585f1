"""Alignment of the models that a configuration describes or a run has trained, on a fixed batch of held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from depthscale.alignment.measure import measure_looped_model
from depthscale.alignment.results import RoundsPoint
from depthscale.errors import CheckpointError, DataError, unknown_name
from depthscale.evaluation.checkpoint import load_model
from depthscale.evaluation.loss import evenly_spaced
from depthscale.evaluation.target import find_target
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.runs.results import read_result
from depthscale.training.held_out import held_out_data
from depthscale.training.model import build_model
from depthscale.training.prepared_data import PreparedData


@dataclass(frozen=True)
class Settings:
    """How every point is measured.

    Attributes:
        split: that the rows are from.
        rows: of the batch, evenly spaced over the split, so that two models of one corpus see the same.
        num_probes: random cotangents.
    """

    split: str = "tuning"
    rows: int = 8
    num_probes: int = 2


def initialization_points(
    config: RunConfig, data: PreparedData, rounds: Sequence[int], num_seeds: int, settings: Settings
) -> Iterator[RoundsPoint]:
    """Freshly initialized models of the configuration's plan at every R, scaled by its rule for that R."""
    for num_rounds in rounds:
        for seed in range(config.train.seed, config.train.seed + num_seeds):
            plan = config.plan.model_copy(update={"rounds": num_rounds})
            # The rule is to see each R itself, not one that training would draw from a law.
            train = config.train.model_copy(update={"seed": seed, "rounds": None})
            scaled = config.model_copy(update={"plan": plan, "train": train})
            model = build_model(scaled, data.tokenizer, data.vocab_size)
            yield _point(model, scaled, data, settings, num_rounds, seed, 0)


def trained_point(directory: Path, settings: Settings) -> tuple[RoundsPoint, PreparedData]:
    """The trained model of a run directory, at its own rounds, on its own corpus.

    Raises:
        CheckpointError: there is no run, or no checkpoint in it.
    """
    found = find_target(directory)
    config = found.run_config()
    if config is None or found.run_directory is None:
        raise CheckpointError(f"{directory} belongs to no run, so its rounds and corpus are not known; give a run")
    training = read_result(found.run_directory, "training")
    data = held_out_data(found, None, config.data.context_length).data
    model = load_model(found.checkpoint)
    point = _point(model, config, data, settings, config.plan.rounds, config.train.seed, int(training["step"]))
    return point, data


def _point(
    model: LoopedLMForCausalLM,
    config: RunConfig,
    data: PreparedData,
    settings: Settings,
    rounds: int,
    seed: int,
    step: int,
) -> RoundsPoint:
    # The untied control is measured as if it were tied: its blocks fold onto the K that loop elsewhere.
    num_blocks = config.plan.blocks if config.plan.kind == "stacked" else None
    batch = batch_of(data, settings)
    alignment = measure_looped_model(model, batch, num_blocks=num_blocks, num_probes=settings.num_probes)
    return RoundsPoint(rounds, seed, step, alignment)


def batch_of(data: PreparedData, settings: Settings) -> dict[str, Tensor]:
    """The rows that every point is measured on.

    Raises:
        DataError: no split of that name.
    """
    if settings.split not in data.splits:
        raise DataError(unknown_name("split", settings.split, data.splits))
    dataset = data.splits[settings.split].dataset
    return data.collate([dataset[row] for row in evenly_spaced(len(dataset), settings.rows)])

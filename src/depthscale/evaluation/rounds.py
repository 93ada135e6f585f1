"""Loss over rounds at test time, with the trained residual scales kept and with the rule's own for each depth.

A looped model can be run for more or fewer rounds than it was trained for. Its skip and branch scales were chosen
for the N of training; the rule that gave them has another answer at another N. Both are measured, since neither is
known beforehand to be the better one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from depthscale.errors import PlanError
from depthscale.evaluation.loss import Collator, evaluate_loss
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan
from depthscale.residual import apply_rule
from depthscale.runs.config import RunConfig

ScaleSource = Literal["kept", "recomputed"]

#: Most rounds that are run: far beyond any trained model, and soon enough for a slip of the keyboard to be noticed.
MAX_ROUNDS = 4096

#: What acts in a forward pass; the gain acted on initial weights and is gone.
_RUNNING_SCALES = ("skip", "branch")


class HeldOutSplit(Protocol):
    """What is asked of a split of prepared data."""

    @property
    def dataset(self) -> Dataset[dict[str, Tensor]]:
        """Rows with unshifted labels."""

    def bits_per_byte(self, loss_nats: float) -> float:
        """Bits per byte of the split's text at that loss per token."""


@dataclass(frozen=True)
class RoundsPoint:
    """One number of rounds.

    Attributes:
        rounds: R of every segment that is not fixed.
        unrolled_depth: N, block visits of one forward pass.
        in_training: whether the model was trained at this R.
        scales: whose skip and branch scales were used.
        loss_nats: mean negative log-likelihood per token, nats; not finite where the states overflow.
        bits_per_byte: of the same loss.
        num_tokens: targets.
    """

    rounds: int
    unrolled_depth: int
    in_training: bool
    scales: ScaleSource
    loss_nats: float
    bits_per_byte: float
    num_tokens: int


@dataclass(frozen=True)
class RoundsCurve:
    """Loss over rounds.

    Attributes:
        kept: with the checkpoint's own scales, in ascending R.
        recomputed: with the rule's scales for each R; None where that is not another measurement.
        why_not_recomputed: in words, where ``recomputed`` is None.
    """

    kept: tuple[RoundsPoint, ...]
    recomputed: tuple[RoundsPoint, ...] | None
    why_not_recomputed: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return dataclasses.asdict(self)


def evaluate_rounds(
    model: LoopedLMForCausalLM,
    split: HeldOutSplit,
    collate: Collator,
    rounds: Sequence[int],
    *,
    trained: tuple[int, int],
    batch_rows: int,
    max_rows: int | None = None,
    on_point: Callable[[RoundsPoint], None] | None = None,
) -> RoundsCurve:
    """Measure the loss at each number of rounds.

    Args:
        model: a trained model; left as it was.
        split: held-out data, usually ``report``.
        collate: makes a batch of its rows.
        rounds: numbers of at least 1; they are taken in ascending order, each once.
        trained: smallest and largest R of training.
        batch_rows: rows per forward pass.
        max_rows: use that many rows only, evenly spaced; the same rows at every R.
        on_point: called after each measurement.

    Raises:
        PlanError: a number of rounds is below 1 or above ``MAX_ROUNDS``, or every segment of the plan is fixed.
    """
    if max(rounds) > MAX_ROUNDS:
        raise PlanError(f"rounds came as {max(rounds)}; expected at most {MAX_ROUNDS}")
    plan = DepthPlan.from_dict({"segments": model.config.plan})
    plans = {count: plan.with_rounds(count) for count in sorted(set(rounds))}

    def measure(
        count: int, source: ScaleSource, running: LoopedLMForCausalLM, arguments: dict[str, int]
    ) -> RoundsPoint:
        result = evaluate_loss(
            running, split.dataset, collate, batch_rows=batch_rows, max_rows=max_rows, arguments=arguments
        )
        point = RoundsPoint(
            rounds=count,
            unrolled_depth=plans[count].unrolled_depth,
            in_training=trained[0] <= count <= trained[1],
            scales=source,
            loss_nats=result.loss_nats,
            bits_per_byte=split.bits_per_byte(result.loss_nats),
            num_tokens=result.num_tokens,
        )
        if on_point:
            on_point(point)
        return point

    kept = tuple(measure(count, "kept", model, {"rounds": count}) for count in plans)
    why_not = why_not_recomputed(model.config, list(plans))
    if why_not:
        return RoundsCurve(kept, None, why_not)
    recomputed = []
    for point in kept:
        scales = scales_at(model.config, point.rounds)
        if _same_running_scales(scales, model.config.residual_scales):
            recomputed.append(dataclasses.replace(point, scales="recomputed"))
        else:
            recomputed.append(measure(point.rounds, "recomputed", rescaled(model, point.rounds), {}))
    return RoundsCurve(kept, tuple(recomputed), None)


def own_rounds(config: LoopedLMConfig) -> int:
    """R of a forward pass that is not told otherwise: the most rounds of a segment that may change them."""
    return max((segment["rounds"] for segment in config.plan if not segment["fixed"]), default=1)


def trained_rounds(config: LoopedLMConfig, run: RunConfig | None) -> tuple[int, int]:
    """Smallest and largest R of training.

    Args:
        config: of the checkpoint; its own R where training drew none at random.
        run: the run's configuration, which says whether rounds were drawn and from which range; None if not known.
    """
    if run is not None and run.train.rounds is not None:
        return run.train.rounds.minimum, run.train.rounds.resolved_maximum
    # A checkpoint without its run carries the range in its provenance.
    if drawn := (config.residual_rule or {}).get("random_rounds"):
        return int(drawn[0]), int(drawn[1])
    rounds = own_rounds(config)
    return rounds, rounds


def scales_at(config: LoopedLMConfig, rounds: int) -> list[dict[str, float]]:
    """The residual scales that the config's rule gives at another number of rounds, one per segment.

    Raises:
        PlanError: the config names no rule, or one that is unknown.
    """
    if not config.residual_rule:
        raise PlanError("the checkpoint's config.json names no residual rule; its scales cannot be recomputed")
    plan = DepthPlan.from_dict({"segments": config.plan}).with_rounds(rounds)
    scales = apply_rule(config.residual_rule["name"], plan.counts(), config.residual_rule.get("arguments"))
    return [dataclasses.asdict(group) for group in scales.groups]


def why_not_recomputed(config: LoopedLMConfig, rounds: Sequence[int]) -> str | None:
    """Why recomputing the scales would measure nothing new, or None where it would.

    Args:
        config: of the checkpoint.
        rounds: the R that are asked for.
    """
    try:
        found = [scales_at(config, count) for count in rounds]
    except PlanError as error:
        return str(error)
    if all(_same_running_scales(scales, config.residual_scales) for scales in found):
        name = config.residual_rule["name"] if config.residual_rule else None
        return (
            f"rule '{name}' gives the same skip and branch scales at every R asked for,"
            " so kept and recomputed are the same"
        )
    return None


def rescaled(model: LoopedLMForCausalLM, rounds: int) -> LoopedLMForCausalLM:
    """The same weights (shared, not copied) at another number of rounds, with the rule's scales for it."""
    config = copy.deepcopy(model.config)
    config.plan = DepthPlan.from_dict({"segments": config.plan}).with_rounds(rounds).to_dict()["segments"]
    config.residual_scales = scales_at(model.config, rounds)
    with torch.device("meta"):
        shell = LoopedLMForCausalLM(config)
    shell.load_state_dict(model.state_dict(), strict=True, assign=True)
    shell.tie_weights()
    return shell.eval()


def _same_running_scales(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> bool:
    return all(a[name] == b[name] for a, b in zip(first, second, strict=True) for name in _RUNNING_SCALES)

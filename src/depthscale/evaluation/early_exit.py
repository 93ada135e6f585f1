"""Early exit at round ends: what each round's state would predict, and what stopping sooner costs.

A token may leave the loop at the end of any round. Three signals say when: how sure the prediction is, how little the
state still moves, and how little the prediction still changes. Exits are judged on predictions alone: every token
still runs all rounds so that others can attend to it, as if the keys and values of the rounds it skipped were there.
So the loss is that of an ideal implementation, and the rounds that are counted are those of the exits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from depthscale.errors import PlanError, unknown_name
from depthscale.evaluation.loss import Collator, evenly_spaced
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.loss import IGNORED_LABEL

Array = NDArray[np.float32]

#: A token leaves at the first round whose signal is at most the threshold.
EXIT_RULES: Mapping[str, str] = MappingProxyType(
    {
        "entropy": "entropy of the round's prediction, nats",
        "state_change": "norm of the round's change of state over the norm of the state before",
        "kl": "KL divergence of the round's prediction from that of the round before, nats",
    }
)


@dataclass(frozen=True)
class RoundEnd:
    """What the end of one round says of every position.

    Attributes:
        logits: ``[batch, positions, vocabulary]``.
        signals: by rule, ``[batch, positions]``, each at least 0; infinite where a rule has nothing to compare with.
    """

    logits: Tensor
    signals: dict[str, Tensor]


@dataclass(frozen=True)
class ExitMeasurements:
    """Per target token and round, in the order of the rows.

    Attributes:
        loss_nats: float32 ``[tokens, rounds]``, negative log-likelihood of the target at each round's end.
        signals: by rule, float32 ``[tokens, rounds]``.
    """

    loss_nats: Array
    signals: dict[str, Array]

    @property
    def num_rounds(self) -> int:
        """R."""
        return int(self.loss_nats.shape[1])

    def loss_per_round(self) -> list[float]:
        """Mean loss if every token left at the end of round 1 ... R."""
        return [float(value) for value in self.loss_nats.mean(axis=0, dtype=np.float64)]


@dataclass(frozen=True)
class ExitPoint:
    """One threshold of one rule.

    Attributes:
        threshold: tokens leave at the first round whose signal is at most this.
        mean_rounds: mean number of rounds used by a token.
        loss_nats: mean loss of the predictions made where tokens left.
        share_per_round: share of tokens that leave at the end of round 1 ... R.
    """

    threshold: float
    mean_rounds: float
    loss_nats: float
    share_per_round: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def round_ends(
    model: LoopedLMForCausalLM, batch: Mapping[str, Tensor], rounds: int, keep: int = 0
) -> Iterator[RoundEnd]:
    """The prediction at the end of each round, one round in memory at a time.

    The state at a round's end goes through the blocks that follow the loop (if the plan has any), the final norm and
    the head, so that round r predicts exactly what the model does at ``rounds=r``. Without such blocks one forward
    pass gives all rounds; with them each round takes a pass of its own.

    Args:
        model: with exactly one segment that loops.
        batch: arguments of a forward pass, without labels.
        rounds: R, at least 1.
        keep: predict the last so many positions only; 0 is all.

    Raises:
        PlanError: no segment of the plan, or more than one, may loop.
    """
    first_block, blocks, is_last = loop_of(model.config)
    states = model(**batch, rounds=rounds, output_hidden_states=True, logits_to_keep=1).hidden_states
    before, previous_log_probabilities = states[first_block][:, -keep:], None
    for round_ in range(1, rounds + 1):
        state = states[first_block + round_ * blocks][:, -keep:]
        if is_last:
            normed = state if model.model.final_norm is None else model.model.final_norm(state)
            logits = model.lm_head(normed)
        else:
            logits = model(**batch, rounds=round_, logits_to_keep=keep).logits
        log_probabilities = functional.log_softmax(logits.float(), dim=-1)
        probabilities = log_probabilities.exp()
        # x log x is 0 at x = 0, where the product would not be a number.
        entropy = torch.special.entr(probabilities).sum(dim=-1)
        change = (state - before).norm(dim=-1) / before.norm(dim=-1).clamp_min(torch.finfo(state.dtype).tiny)
        if previous_log_probabilities is None:
            divergence = torch.full_like(entropy, math.inf)
        else:
            divergence = functional.kl_div(
                previous_log_probabilities, log_probabilities, log_target=True, reduction="none"
            ).sum(dim=-1)
        # Rounding can leave a divergence a hair below zero.
        yield RoundEnd(logits, {"entropy": entropy, "state_change": change, "kl": divergence.clamp_min(0)})
        before, previous_log_probabilities = state, log_probabilities


def loop_of(config: LoopedLMConfig) -> tuple[int, int, bool]:
    """Where the loop of a plan lies: visits before it, blocks in it, and whether nothing follows.

    Raises:
        PlanError: no segment may loop, or several do, so that a round has no one end.
    """
    free = [index for index, segment in enumerate(config.plan) if not segment["fixed"]]
    if len(free) != 1:
        raise PlanError(
            f"the plan has {len(free)} segments whose rounds may change; early exit needs exactly one, such as"
            " a prelude, a loop and a coda"
        )
    index = free[0]
    before = sum(segment["blocks"] * segment["rounds"] for segment in config.plan[:index])
    return before, config.plan[index]["blocks"], index == len(config.plan) - 1


@torch.inference_mode()
def measure_exits(
    model: LoopedLMForCausalLM,
    dataset: Dataset[dict[str, Tensor]],
    collate: Collator,
    *,
    rounds: int,
    batch_rows: int,
    max_rows: int | None = None,
) -> ExitMeasurements:
    """Loss and signals of every target token at every round's end.

    Memory: 4 (1 + rules) bytes per token and round are kept, and two rounds' predictions of one batch.

    Args:
        model: with exactly one segment that loops.
        dataset: rows with unshifted labels.
        collate: makes a batch of rows.
        rounds: R, the last of which every token leaves at.
        batch_rows: rows per forward pass.
        max_rows: use that many rows only, evenly spaced.

    Raises:
        PlanError: the plan has no single loop.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    rows = evenly_spaced(len(dataset), max_rows)  # type: ignore[arg-type]
    losses: list[Array] = []
    signals: dict[str, list[Array]] = {rule: [] for rule in EXIT_RULES}
    try:
        for start in range(0, len(rows), batch_rows):
            batch = collate([dataset[row] for row in rows[start : start + batch_rows]])
            batch = {name: value.to(device) for name, value in batch.items()}
            targets = batch.pop("labels")[:, 1:]
            counted = targets != IGNORED_LABEL
            ends = list(_scored(round_ends(model, batch, rounds), targets, counted))
            losses.append(np.stack([loss for loss, _ in ends], axis=1))
            for rule in EXIT_RULES:
                signals[rule].append(np.stack([found[rule] for _, found in ends], axis=1))
    finally:
        model.train(was_training)
    return ExitMeasurements(np.concatenate(losses), {rule: np.concatenate(parts) for rule, parts in signals.items()})


def _scored(ends: Iterator[RoundEnd], targets: Tensor, counted: Tensor) -> Iterator[tuple[Array, dict[str, Array]]]:
    for end in ends:
        loss = functional.cross_entropy(end.logits[:, :-1][counted].float(), targets[counted], reduction="none")
        yield _plain(loss), {rule: _plain(signal[:, :-1][counted]) for rule, signal in end.signals.items()}


def _plain(values: Tensor) -> Array:
    result: Array = values.float().cpu().numpy()
    return result


def exit_rounds(signal: Array, threshold: float) -> NDArray[np.intp]:
    """The round, from 1, at which each token leaves: the first at or below the threshold, else the last.

    Args:
        signal: ``[tokens, rounds]``.
        threshold: in the signal's unit.

    Example:
        >>> exit_rounds(np.array([[0.9, 0.2, 0.1], [0.9, 0.8, 0.7]], dtype=np.float32), 0.25).tolist()
        [2, 3]
    """
    leaves = signal <= threshold
    leaves[:, -1] = True
    rounds: NDArray[np.intp] = leaves.argmax(axis=1) + 1
    return rounds


def exit_curve(
    measured: ExitMeasurements, rule: str, thresholds: Sequence[float] | None = None, num_thresholds: int = 9
) -> list[ExitPoint]:
    """Loss against compute of one rule, threshold by threshold, from early to late exits.

    Args:
        measured: what :func:`measure_exits` gave.
        rule: one of ``EXIT_RULES``.
        thresholds: in the rule's unit; None takes evenly spaced quantiles of the measured signals, largest first.
            They are then chosen on the very tokens that they are judged on, which flatters them a little.
        num_thresholds: how many quantiles.

    Raises:
        PlanError: unknown rule; the nearest is suggested.
    """
    if rule not in EXIT_RULES:
        raise PlanError(unknown_name("exit rule", rule, EXIT_RULES))
    signal = measured.signals[rule]
    if thresholds is None:
        finite = signal[np.isfinite(signal)]
        levels = np.linspace(1, 0, num_thresholds)
        thresholds = [float(value) for value in np.quantile(finite, levels)] if len(finite) else [0.0]
    points = []
    for threshold in thresholds:
        rounds = exit_rounds(signal, threshold)
        losses = np.take_along_axis(measured.loss_nats, rounds[:, None] - 1, axis=1)
        shares = np.bincount(rounds, minlength=measured.num_rounds + 1)[1:] / len(rounds)
        points.append(
            ExitPoint(
                threshold=float(threshold),
                mean_rounds=float(rounds.mean()),
                loss_nats=float(losses.mean(dtype=np.float64)),
                share_per_round=tuple(float(share) for share in shares),
            )
        )
    return points


def exits_to_dict(
    measured: ExitMeasurements,
    bits_per_byte: Callable[[float], float],
    flops_per_token: Callable[[str, float], float],
) -> dict[str, Any]:
    """Per-round losses and the curve of every rule, as plain data for a result file.

    Args:
        measured: what :func:`measure_exits` gave.
        bits_per_byte: of a loss in nats per token.
        flops_per_token: forward FLOPs of a token under a rule at a mean number of rounds.
    """
    losses = measured.loss_per_round()
    return {
        "num_tokens": len(measured.loss_nats),
        "loss_per_round": losses,
        "bits_per_byte_per_round": [bits_per_byte(loss) for loss in losses],
        "rules": {
            rule: {
                "signal": words,
                "points": [
                    {**point.to_dict(), "flops_per_token": flops_per_token(rule, point.mean_rounds)}
                    for point in exit_curve(measured, rule)
                ],
            }
            for rule, words in EXIT_RULES.items()
        },
        "assumption": (
            "exits are judged on predictions alone: tokens that have left are attended to as if they had run all rounds"
        ),
        "thresholds": "thresholds are quantiles of the signals of these same rows, not chosen beforehand",
        "flops": "FLOPs are of a forward pass and count the prediction at each round's end that entropy and kl look at",
    }

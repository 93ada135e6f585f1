"""Interventions measured: what each costs in loss, and how much later updates change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscale.probing.errors import ProbingError
from depthscale.probing.interventions import Intervention, replacements
from depthscale.probing.ledger import Ledger
from depthscale.probing.replacing import CleanPass
from depthscale.probing.subject import Passage, RowLosses, Subject, changed_states, clean_pass, row_losses
from depthscale.statistics.angles import cosine


@dataclass(frozen=True)
class CleanPassage:
    """A passage with its unchanged pass and losses."""

    passage: Passage
    clean: CleanPass
    losses: RowLosses


def prepare(subject: Subject, passages: Sequence[Passage]) -> list[CleanPassage]:
    """Run every passage unchanged. All states are kept: visits + 1 tensors of ``[rows, tokens, width]`` a passage.

    Raises:
        ProbingError: no token counts, a loss is not finite, or passages differ in their number of visits.
    """
    found = []
    for passage in passages:
        clean = clean_pass(subject, passage)
        losses = row_losses(subject, passage, clean.states[-1])
        if not bool(torch.isfinite(losses.loss).all()):
            raise ProbingError(
                "the unchanged model's loss is not finite on this text; probe it in float32, or its NaNs"
            )
        found.append(CleanPassage(passage, clean, losses))
    if not found or not any(len(one.losses.loss) for one in found):
        raise ProbingError("the text came without a token that counts; expected documents of at least two tokens")
    counts = {one.clean.num_visits for one in found}
    if len(counts) > 1:
        raise ProbingError(f"passages made {sorted(counts)} visits; expected the same number in each")
    return found


def measure(
    subject: Subject,
    texts: Sequence[CleanPassage],
    plan: Sequence[Intervention],
    ledger: Ledger,
    on_done: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Every intervention of a plan over all the text, one record each.

    Args:
        subject: the model.
        texts: from :func:`prepare`.
        plan: what to do.
        ledger: holds what was measured before, and takes what is measured now.
        on_done: told how many of how many are measured, after each.

    Returns:
        Records: the intervention, ``excess`` and ``divergence`` of each row of text in nats, ``prediction`` (block
        influence of its visits), and for a single removed visit ``later_change``, for every later visit the mean of
        ||change of its update|| / ||its update||.
    """
    records = []
    influences: dict[tuple[int, int], float] = {}
    for number, intervention in enumerate(plan, start=1):
        key = intervention.key
        record = (
            ledger[key] if key in ledger else ledger.add(key, _measure_one(subject, texts, intervention, influences))
        )
        records.append(record)
        if on_done is not None:
            on_done(number, len(plan))
    return records


def _measure_one(
    subject: Subject,
    texts: Sequence[CleanPassage],
    intervention: Intervention,
    influences: dict[tuple[int, int], float],
) -> dict[str, Any]:
    excess: list[float] = []
    divergence: list[float] = []
    changes, weights = [], []
    single = intervention.kind == "remove" and len(intervention.visits) == 1
    for text in texts:
        acting = replacements(intervention, text.clean.calls)
        states = changed_states(subject, text.passage, acting)
        losses = row_losses(subject, text.passage, states[-1], text.clean.states[-1])
        excess += (losses.loss - text.losses.loss).tolist()
        divergence += losses.divergence.tolist()
        if single:
            changes.append(_later_change(text, states, intervention.visits[0]))
            weights.append(int(text.passage.counted.sum()))
    record: dict[str, Any] = {**intervention.to_dict(), "excess": excess, "divergence": divergence}
    record["prediction"] = _prediction(texts, intervention, influences)
    if single:
        later = torch.stack(changes) * torch.tensor(weights)[:, None] / sum(weights)
        record["later_change"] = later.sum(dim=0).tolist()
    return record


def block_influence(texts: Sequence[CleanPassage], first: int, last: int) -> float:
    """1 - mean cosine of the state that enters visit ``first`` and the one that visit ``last`` leaves.

    Source: ShortGPT, arXiv 2403.03853.
    """
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    for text in texts:
        counted = text.passage.counted
        found = cosine(text.clean.inputs[first][counted], text.clean.states[last + 1][counted]).double()
        total += found.nansum().cpu()
        count += int(found.isfinite().sum())
    return float(1 - total / count) if count else float("nan")


def _prediction(
    texts: Sequence[CleanPassage], intervention: Intervention, influences: dict[tuple[int, int], float]
) -> float:
    """Block influence of a span as a whole, or the sum over visits that are no span; each is computed once."""
    visits = intervention.visits
    is_span = visits == tuple(range(visits[0], visits[-1] + 1))
    whole = is_span and intervention.kind in ("remove", "repeat", "loop")
    spans = [(visits[0], visits[-1])] if whole else [(visit, visit) for visit in visits]
    for span in spans:
        if span not in influences:
            influences[span] = block_influence(texts, *span)
    return sum(influences[span] for span in spans)


def _later_change(text: CleanPassage, states: Sequence[Tensor], removed: int) -> Tensor:
    """Mean relative change of each later visit's update [visits - removed - 1], float64."""
    counted, clean = text.passage.counted, text.clean
    found = []
    for visit in range(removed + 1, clean.num_visits):
        # States, not inputs: what lies between two visits belongs to the update in both passes.
        before = (clean.states[visit + 1] - clean.states[visit])[counted].float()
        after = (states[visit] - states[visit - 1])[counted].float()
        size = before.norm(dim=-1)
        ratio = (after - before).norm(dim=-1)[size > 0] / size[size > 0]
        found.append(ratio.double().mean().cpu())
    return torch.stack(found) if found else torch.empty(0, dtype=torch.float64)

"""Everything that interventions say of one model, measured in order and put together as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import spearmanr

from depthscale.probing.depth_use import bulk_layers
from depthscale.probing.drop_curve import drop_curve
from depthscale.probing.evidence import Evidence, gather, verdict_of
from depthscale.probing.geometry import geometry
from depthscale.probing.intervals import mean_of_rows
from depthscale.probing.intervention_plan import (
    drop_interventions,
    layer_interventions,
    loop_interventions,
    span_interventions,
)
from depthscale.probing.intervention_run import CleanPassage, measure, prepare
from depthscale.probing.interventions import Intervention
from depthscale.probing.ledger import Ledger
from depthscale.probing.located import LocatedModel
from depthscale.probing.nulls import shuffled
from depthscale.probing.similarity import SimilarityMap, similarity_map
from depthscale.probing.states import TokenBatch
from depthscale.probing.subject import Subject, language_model, passages_of

RESULT_KIND = "probe_interventions"

#: Single layers that a null is measured without, beside its drops.
_REMOVED_OF_NULLS = 4
#: A functional group is dropped from by itself from this size on.
_SMALLEST_GROUP = 4

DEFINITIONS = {
    "excess": "loss with the intervention less loss without it, nats per token; 95 % over documents",
    "divergence": "KL(unchanged || changed) of next-token distributions, nats per token",
    "prediction": "block influence, 1 - cos of the states before and after; of a span as a whole, else summed",
    "bulk": "all visits but the first and the last; all of fewer than 4",
    "rescaled": "updates of the n - k kept visits times n / (n - k)",
    "later_change": "||change of a later visit's update|| / ||its update|| with one visit removed, mean over tokens",
    "similarity": "cos of the update that block l makes on the state before l' and the update of l' there",
    "untrained": "the same configuration, freshly initialized, on the same text",
    "shuffled": "the same model on the same tokens in random order within each document",
    "random directions": "the norms of h_0 and of every update with independent random directions",
}


@dataclass(frozen=True)
class InterventionSettings:
    """How much is measured.

    Attributes:
        num_draws: choices for each number of dropped layers; half as many for the nulls.
        seed: of choices, shuffles, directions, the untrained weights and resamples.
        similarity_tokens: positions that the similarity map is measured on, at most; 0 leaves it out.
        nulls: measure the untrained model and the shuffled text. Without them there is no verdict.
    """

    num_draws: int = 4
    seed: int = 0
    similarity_tokens: int = 512
    nulls: bool = True


Tell = Callable[[str, int, int], None]


def intervene(
    located: LocatedModel,
    fresh: LocatedModel | None,
    batches: Sequence[TokenBatch],
    keeps_first: bool,
    ledger: Ledger,
    settings: InterventionSettings,
    tell: Tell = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure one model.

    Args:
        located: the model.
        fresh: the same configuration untrained; None leaves that null out.
        batches: the text. States of all visits on all of it are kept in memory.
        keeps_first: the first token of a document begins the text and stays first when tokens are shuffled.
        ledger: takes every measurement as it is made.
        settings: how much.
        tell: told what is measured, and how many of how many are done.

    Raises:
        ProbingError: as :func:`depthscale.probing.intervention_run.prepare`.
    """
    subject = language_model(located)
    texts = prepare(subject, passages_of(batches, located.device))
    num_visits, seed = texts[0].clean.num_visits, settings.seed

    def telling(what: str) -> Callable[[int, int], None]:
        return lambda done, total: tell(what, done, total)

    found = gather(subject, texts, ledger, settings.num_draws, seed, None, telling("evidence"))
    alone = measure(subject, texts, layer_interventions(num_visits), ledger, telling("single layers"))
    spans = measure(subject, texts, span_interventions(num_visits), ledger, telling("spans"))
    loops = measure(subject, texts, loop_interventions(num_visits), ledger, telling("loops"))
    similarity = None
    if settings.similarity_tokens:
        part = _first_tokens(texts, settings.similarity_tokens)
        similarity = similarity_map(part, ledger, telling("similarity"))
    groups = _group_curves(subject, texts, similarity, ledger, settings, telling("groups"))
    states, counted = [text.clean.states for text in texts], [text.passage.counted for text in texts]
    at_random = geometry(states, counted, at_random=True, seed=seed)
    untrained = mixed = None
    if settings.nulls:
        half = max(2, settings.num_draws // 2)
        if fresh is not None:
            other = language_model(fresh)
            untrained = _null(
                other, prepare(other, [t.passage for t in texts]), ledger, half, seed, telling, "untrained"
            )
        reordered = [shuffled(batch, keeps_first, seed + index) for index, batch in enumerate(batches)]
        scrambled = prepare(subject, passages_of(reordered, located.device))
        mixed = _null(subject, scrambled, ledger, half, seed, telling, "shuffled")
    records = [*alone, *spans, *loops]
    bulk = tuple(range(num_visits)[bulk_layers(num_visits)])
    # Measured as evidence, so the ledger holds them.
    drops = measure(subject, texts, drop_interventions(bulk, settings.num_draws, seed), ledger)
    return {
        "definitions": DEFINITIONS,
        "num_visits": num_visits,
        "num_rows": sum(len(text.losses.loss) for text in texts),
        "num_tokens": sum(int(text.passage.counted.sum()) for text in texts),
        "bulk": list(bulk),
        "verdict": verdict_of(found, at_random, untrained).to_dict(),
        "evidence": {
            "model": found.to_dict(),
            "random directions": at_random.to_dict(),
            "untrained": None if untrained is None else untrained.to_dict(),
            "shuffled": None if mixed is None else mixed.to_dict(),
        },
        "interventions": [_summary(record, seed) for record in records],
        "prediction_ranks": _prediction_ranks([*records, *drops]),
        "later_change": [record["later_change"] for record in alone if record["kind"] == "remove"],
        "similarity": None if similarity is None else similarity.to_dict(),
        "groups": groups,
    }


def _null(
    subject: Subject,
    texts: Sequence[CleanPassage],
    ledger: Ledger,
    draws: int,
    seed: int,
    telling: Callable[[str], Callable[[int, int], None]],
    name: str,
) -> Evidence:
    return gather(subject, texts, ledger.scope(name), draws, seed, _REMOVED_OF_NULLS, telling(name))


def _first_tokens(texts: Sequence[CleanPassage], most: int) -> list[CleanPassage]:
    """Passages from the front, the last of them cut, until ``most`` positions count."""
    found, left = [], most
    for text in texts:
        counted = text.passage.counted
        if left <= 0:
            break
        keep = (counted.flatten().cumsum(0) <= left).view_as(counted) & counted
        passage = type(text.passage)(text.passage.inputs, keep, text.passage.targets)
        found.append(CleanPassage(passage, text.clean, text.losses))
        left -= int(keep.sum())
    return found


def _group_curves(
    subject: Subject,
    texts: Sequence[CleanPassage],
    similarity: SimilarityMap | None,
    ledger: Ledger,
    settings: InterventionSettings,
    on_done: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """The drop curve of each functional group that is large enough and is not the bulk or everything."""
    if similarity is None or similarity.silhouette is None:
        return []
    groups = [
        tuple(visit for visit, own in enumerate(similarity.groups) if own == label)
        for label in sorted(set(similarity.groups))
    ]
    large = [group for group in groups if len(group) >= _SMALLEST_GROUP]
    bulk = tuple(range(len(similarity.groups))[bulk_layers(len(similarity.groups))])
    plans = [drop_interventions(group, settings.num_draws, settings.seed) for group in large if group != bulk]
    records = measure(subject, texts, [one for plan in plans for one in plan], ledger, on_done)
    by_group = [[record for record in records if tuple(record["group"]) == plan[0].group] for plan in plans]
    return [drop_curve(own, settings.seed).to_dict() for own in by_group]


def _summary(record: Mapping[str, Any], seed: int) -> dict[str, Any]:
    kept = {name: record[name] for name in ("kind", "visits", "rounds", "branch_scale", "prediction")}
    kept["single"] = _is_single(record)
    excess = _known(record["excess"])
    return {
        **kept,
        # Rows whose loss is no number any more; the means are over the others.
        "num_not_finite": sum(not math.isfinite(value) for value in excess),
        "excess": mean_of_rows(excess, "nats", seed).to_dict(),
        "divergence": mean_of_rows(_known(record["divergence"]), "nats", seed).to_dict(),
    }


def _is_single(record: Mapping[str, Any]) -> bool:
    return Intervention(record["kind"], tuple(record["visits"])).is_single


def _known(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _prediction_ranks(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Spearman's rank correlation of excess loss and block influence, by kind, over bulk and ends together.

    A span that is looped R times is visited R - 1 times more than before, and so predicted. Loops whose updates are
    divided by R are left out: their updates add up to what they were.
    """
    asked = {
        f"{words} {name}": [r for r in records if r["kind"] == kind and _is_single(r) == single]
        for kind, words in (("remove", "removed"), ("repeat", "repeated"), ("swap", "swapped"))
        for name, single in (("layers", True), ("spans", False))
    }
    asked["random sets of dropped layers"] = [r for r in records if r["kind"] == "drop"]
    loops = [r for r in records if r["kind"] == "loop" and r["branch_scale"] == 1.0 and r["rounds"] > 1]
    asked["looped spans"] = [{**r, "prediction": (r["rounds"] - 1) * r["prediction"]} for r in loops]
    found: dict[str, dict[str, Any]] = {}
    for name, own in asked.items():
        pairs = [(r["prediction"], mean_of_rows(_known(r["excess"])).value) for r in own]
        pairs = [pair for pair in pairs if None not in pair and all(map(math.isfinite, pair))]
        # Where all costs or all predictions are equal there are no ranks.
        if len(pairs) >= 4 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            result = spearmanr(*zip(*pairs, strict=True))
            found[name] = {
                "rank_correlation": float(result.statistic),
                "p_value": float(result.pvalue),
                "num": len(pairs),
            }
    return found

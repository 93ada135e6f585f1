"""Regime evidence of one subject on one text: geometry and interventions, and its nulls, made into a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.probing.depth_use import bulk_layers
from depthscale.probing.drop_curve import DropCurve, drop_curve
from depthscale.probing.geometry import Geometry, geometry
from depthscale.probing.intervals import Measured, mean_of_rows
from depthscale.probing.intervention_plan import drop_counts, drop_interventions
from depthscale.probing.intervention_run import CleanPassage, measure
from depthscale.probing.interventions import Intervention
from depthscale.probing.ledger import Ledger
from depthscale.probing.regime import RegimeFigures, Thresholds, Verdict, judge
from depthscale.probing.subject import Subject


@dataclass(frozen=True)
class Evidence:
    """Of one model (or null) on one text.

    Attributes:
        loss: of the unchanged model, nats per token.
        geometry: from the states.
        drops: the bulk's response to dropped layers.
        contribution: excess loss with the most layers dropped.
        later_change: of later bulk updates when one bulk layer is removed.
        end_removal: excess loss without the first, and without the last layer.
        bulk_removal: mean excess loss without one bulk layer.
    """

    loss: Measured
    geometry: Geometry
    drops: DropCurve
    contribution: Measured
    later_change: Measured
    end_removal: tuple[Measured, Measured]
    bulk_removal: Measured

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def evidence_plan(num_visits: int, num_draws: int, seed: int, most_removed: int | None = None) -> list[Intervention]:
    """What :func:`gather` needs measured: drops of the bulk, and single layers removed.

    Args:
        num_visits: N.
        num_draws: choices for each number of dropped layers.
        seed: of the choices.
        most_removed: single bulk layers removed at most, evenly spaced; None takes all.
    """
    bulk = list(range(num_visits)[bulk_layers(num_visits)])
    if most_removed is not None and most_removed < len(bulk):
        alone = [bulk[round(i)] for i in np.linspace(0, len(bulk) - 1, most_removed)]
    else:
        alone = bulk
    removed = sorted({0, *alone, num_visits - 1})
    return [
        *(Intervention("remove", (visit,)) for visit in removed),
        *drop_interventions(tuple(bulk), num_draws, seed),
    ]


def gather(
    subject: Subject,
    texts: Sequence[CleanPassage],
    ledger: Ledger,
    num_draws: int = 4,
    seed: int = 0,
    most_removed: int | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Evidence:
    """Measure what the verdict reads.

    Args:
        subject, texts, ledger, on_done: as for :func:`depthscale.probing.intervention_run.measure`.
        num_draws, seed, most_removed: as for :func:`evidence_plan`.
    """
    num_visits = texts[0].clean.num_visits
    bulk = bulk_layers(num_visits)
    plan = evidence_plan(num_visits, num_draws, seed, most_removed)
    records = measure(subject, texts, plan, ledger, on_done)
    removed = {record["visits"][0]: record for record in records if record["kind"] == "remove"}
    drops = drop_curve([record for record in records if record["kind"] != "remove"], seed)
    most = max(drop_counts(bulk.stop - bulk.start))
    return Evidence(
        loss=mean_of_rows([loss for text in texts for loss in text.losses.loss.tolist()], "nats", seed),
        geometry=geometry([t.clean.states for t in texts], [t.passage.counted for t in texts], seed=seed),
        drops=drops,
        contribution=drops.excess[drops.counts.index(most)],
        later_change=mean_of_rows(_later_changes(removed, bulk), "", seed),
        end_removal=(
            mean_of_rows(removed[0]["excess"], "nats", seed),
            mean_of_rows(removed[num_visits - 1]["excess"], "nats", seed),
        ),
        bulk_removal=mean_of_rows(
            np.mean(_bulk_excess(removed, bulk), axis=0).tolist(),
            "nats",
            seed,
        ),
    )


def verdict_of(
    found: Evidence, at_random: Geometry, untrained: Evidence | None, thresholds: Thresholds | None = None
) -> Verdict:
    """The verdict on measured evidence beside its nulls.

    Args:
        found: of the model.
        at_random: of the same states with random directions.
        untrained: of the untrained configuration on the same text, None where there is none.
        thresholds: None takes those fixed on teachers.
    """
    return judge(
        RegimeFigures(
            update_cosine=found.geometry.update_cosine,
            random_cosine=at_random.update_cosine,
            drop_exponent=found.drops.exponent,
            rescaling_ratio=found.drops.relative_ratio,
            later_change=found.later_change,
            stop_spread=found.geometry.stop_spread,
            even_spread=found.geometry.even_spread,
            contribution=found.contribution,
            untrained_contribution=None if untrained is None else untrained.contribution,
        ),
        thresholds,
    )


def _bulk_excess(removed: Mapping[int, Mapping[str, Any]], bulk: slice) -> NDArray[np.float64]:
    """[removed bulk layers, rows of text]; NaN where a loss was no number."""
    return np.array([r["excess"] for visit, r in removed.items() if bulk.start <= visit < bulk.stop], dtype=np.float64)


def _later_changes(removed: Mapping[int, Mapping[str, Any]], bulk: slice) -> list[float]:
    """Mean change of the later bulk updates, one value for each removed bulk layer that has later ones."""
    found = []
    for visit, record in removed.items():
        later = record["later_change"][: max(bulk.stop - visit - 1, 0)]
        if bulk.start <= visit < bulk.stop and later:
            known = [value for value in later if value is not None]
            found.append(float(np.mean(known)) if known else float("nan"))
    return found

"""Loss over depth of one family of students, from the results of its jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Record = dict[str, Any]

#: A loss that falls by more than this share over the last doubling of the steps has not converged.
STILL_FALLING = 0.1


@dataclass(frozen=True)
class Curve:
    """One case, family and temperature.

    Attributes:
        case: name of the study's case.
        teacher: its settings.
        loss_kind: what students were trained on.
        family, order, blocks: of the students; ``blocks`` is None unless they are looped.
        temperature: None for ``mse``.
        ends: numbers of steps that losses are given for, ascending.
        depths: of the students, ascending.
        losses: [ends, replicates, depths]; replicates that diverged at any depth are not among them.
        records: of the students behind it, at the chosen rates, in the order [replicates][depths].
        rates: chosen factor of the learning rate by depth; None where only one was tried.
        notes: what was left out, and rates at the edge of what was tried.
    """

    case: str
    teacher: dict[str, Any]
    loss_kind: str
    family: str
    order: int
    blocks: int | None
    temperature: float | None
    ends: tuple[int, ...]
    depths: tuple[int, ...]
    losses: Array
    records: list[list[Record]]
    rates: dict[int, float] | None
    notes: tuple[str, ...]

    @property
    def mean_losses(self) -> Array:
        """Geometric mean over replicates [ends, depths]."""
        result: Array = np.exp(np.log(self.losses).mean(axis=1))
        return result

    @property
    def fall(self) -> dict[int, float] | None:
        """By depth, 1 - loss / loss at half the steps; None where that was not measured or nothing is left."""
        if not self.losses.size or self.ends[-1] % 2 or self.ends[-1] // 2 not in self.ends:
            return None
        mean = self.mean_losses
        share = 1 - mean[-1] / mean[self.ends.index(self.ends[-1] // 2)]
        return dict(zip(self.depths, share.tolist(), strict=True))

    @property
    def converged(self) -> bool | None:
        """No depth's loss still falls by more than ``STILL_FALLING``; None where it is not known."""
        return None if self.fall is None else max(self.fall.values()) <= STILL_FALLING


def make_curves(results: Sequence[dict[str, Any]]) -> list[Curve]:
    """Every curve of the jobs' results, in the order in which cases, families and temperatures come."""
    found: dict[tuple[str, str, float | None], list[tuple[dict[str, Any], Record]]] = {}
    for result in results:
        for record in result["students"]:
            key = (result["name"], record["family"], record["temperature"])
            found.setdefault(key, []).append((result, record))
    return [_curve(key, members) for key, members in found.items()]


def _curve(key: tuple[str, str, float | None], members: list[tuple[dict[str, Any], Record]]) -> Curve:
    job = members[0][0]["job"]
    ends = tuple(members[0][0]["ends"])
    depths = tuple(sorted({record["depth"] for _, record in members}))
    records = [record for _, record in members]
    rates, notes = _choose_rates(records, depths, ends[-1])
    deeper = [depth for depth in depths if depth > job["teacher"]["blocks"]]
    if deeper:
        which = ", ".join(map(str, deeper))
        notes.append(f"deeper than the teacher of {job['teacher']['blocks']} blocks: students of depth {which}")
    chosen = [record for record in records if record["rate_factor"] == rates[record["depth"]]]
    replicates = sorted({(record["teacher_seed"], record["seed"]) for record in chosen})
    rows = []
    for replicate in replicates:
        row = {r["depth"]: r for r in chosen if (r["teacher_seed"], r["seed"]) == replicate}
        lost = [depth for depth in depths if depth not in row or not _usable(row[depth], ends)]
        if lost:
            where = ", ".join(map(str, lost))
            notes.append(
                f"teacher {replicate[0]}, seed {replicate[1]} is left out: diverged or missing at depth {where}"
            )
        else:
            rows.append([row[depth] for depth in depths])
    losses = np.array([[[r["losses"]["report"][str(end)] for r in row] for row in rows] for end in ends])
    first = records[0]
    return Curve(
        case=key[0],
        teacher=job["teacher"],
        loss_kind=job["loss"]["kind"],
        family=key[1],
        order=first["order"],
        blocks=first["blocks"] if any(record["rounds"] > 1 for record in records) else None,
        temperature=key[2],
        ends=ends,
        depths=depths,
        losses=losses.reshape(len(ends), len(rows), len(depths)),
        records=rows,
        rates=rates if len({record["rate_factor"] for record in records}) > 1 else None,
        notes=tuple(notes),
    )


def _usable(record: Record, ends: Sequence[int]) -> bool:
    if record["outcome"] == "diverged":
        return False
    losses = [record["losses"]["report"][str(end)] for end in ends]
    return all(loss is not None and loss > 0 for loss in losses)


def _choose_rates(records: list[Record], depths: Sequence[int], end: int) -> tuple[dict[int, float], list[str]]:
    """Per depth the factor that loses the fewest replicates, then has the lowest mean log loss on the tuning split."""
    chosen, notes = {}, []
    for depth in depths:
        at_depth = [record for record in records if record["depth"] == depth]
        factors = sorted({record["rate_factor"] for record in at_depth})
        if len(factors) == 1:
            chosen[depth] = factors[0]
            continue
        scores = {}
        for factor in factors:
            losses = [r["losses"]["tuning"][str(end)] for r in at_depth if r["rate_factor"] == factor]
            good = [math.log(loss) for loss in losses if loss is not None and loss > 0]
            scores[factor] = (len(losses) - len(good), math.fsum(good) / max(len(good), 1))
        chosen[depth] = min(factors, key=lambda factor: scores[factor])
        if chosen[depth] in (factors[0], factors[-1]):
            notes.append(
                f"at depth {depth} the best rate, {chosen[depth]:g} times the base, is at the edge of the grid"
            )
    return chosen, notes

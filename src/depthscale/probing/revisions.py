"""Checkpoint series: one model at many steps, and which of them are really different weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_STEP = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True)
class RevisionWeights:
    """One checkpoint.

    Attributes:
        revision: as asked for.
        step: last number in its name; None where it has none.
        matrices: SHA-256 by name of parameter, those of two or more dimensions.
        sha256: of all of them.
    """

    revision: str
    step: int | None
    matrices: Mapping[str, str]
    sha256: str


def step_of(revision: str) -> int | None:
    """The training step that a revision's name tells.

    Example:
        >>> step_of("step1000"), step_of("stage1-step150000-tokens315B"), step_of("main")
        (1000, 150000, None)
    """
    named = re.search(r"step[-_]?(\d+)", revision, re.IGNORECASE) or _STEP.search(revision)
    return None if named is None else int(named.group(1))


def repeated_weights(checkpoints: Sequence[RevisionWeights]) -> dict[str, list[str]]:
    """Revisions that share a weight with another one: by revision, the others.

    Two steps of training do not leave a matrix bit for bit alike. Where they do, a branch serves weights of another
    step (public checkpoint series have such branches), and it cannot be told from the weights which of the two.
    Matrices that do not change between any two checkpoints (frozen ones) tell nothing and are left out.
    """
    names = set.intersection(*(set(checkpoint.matrices) for checkpoint in checkpoints)) if checkpoints else set()
    moving = {name for name in names if len({checkpoint.matrices[name] for checkpoint in checkpoints}) > 1}
    whole = len({checkpoint.sha256 for checkpoint in checkpoints}) == 1 and len(checkpoints) > 1
    found: dict[str, list[str]] = {}
    for checkpoint in checkpoints:
        others = [
            other.revision
            for other in checkpoints
            if other is not checkpoint
            and (whole or any(checkpoint.matrices[name] == other.matrices[name] for name in moving))
        ]
        if others:
            found[checkpoint.revision] = others
    return found


def weights_of(model: Mapping[str, Any]) -> RevisionWeights:
    """The checkpoint that the ``model`` table of a probe's result describes."""
    revision = str(model["revision"])
    return RevisionWeights(revision, step_of(revision), model["matrix_sha256"], model["weights_sha256"])


def series_table(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a revision: step, hash, whether it repeats another, and its main figures.

    Args:
        results: of :func:`~depthscale.probing.results.probe_result`, in the order of the revisions.
    """
    checkpoints = [weights_of(result["model"]) for result in results]
    repeated = repeated_weights(checkpoints)
    return [
        {
            "revision": checkpoint.revision,
            "step": checkpoint.step,
            "weights_sha256": checkpoint.sha256,
            "shares_weights_with": repeated.get(checkpoint.revision, []),
            "in_trends": checkpoint.revision not in repeated,
            **{f"mean_{name}": _bulk_mean(result, name) for name in ("state_angle", "update_angle", "block_influence")},
            "loss_nats": _last_mean(result, "logit_lens_loss"),
        }
        for checkpoint, result in zip(checkpoints, results, strict=True)
    ]


def _bulk_mean(result: Mapping[str, Any], name: str) -> float | None:
    """Mean over layers without the first and the last; None below three."""
    means = result["quantities"].get(name, {"mean": []})["mean"][1:-1]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known else None


def _last_mean(result: Mapping[str, Any], name: str) -> float | None:
    quantity = result["quantities"].get(name)
    return None if quantity is None else quantity["mean"][-1]

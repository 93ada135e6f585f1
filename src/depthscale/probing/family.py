"""The trend over a family of probed models, from their result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depthscale.probing.errors import ProbingError
from depthscale.probing.revisions import repeated_weights, weights_of
from depthscale.probing.trend import ModelProfile, family_trends
from depthscale.runs.results import read_result, write_result

RESULT_KIND = "probe_trend"

#: Quantities of a probe whose means over layers are fitted.
FITTED = ("state_angle", "relative_update_norm")

DEFINITIONS = {
    "slope": "of ln(mean over layers) against ln(number of visits), least squares, profile-likelihood interval",
    "ends": "with or without the first and the last visit",
}


def family_result(probes: Sequence[dict[str, Any]], level: float = 0.95) -> dict[str, Any]:
    """Trends over probes; of several with the same weights only the first counts.

    Revisions of one model that share a weight are left out: they cannot all be what their names say.

    Args:
        probes: results of kind ``probe``.
        level: of the intervals.

    Raises:
        ProbingError: no probe came, or they are on different texts.
    """
    if not probes:
        raise ProbingError("no probe came to fit a trend over; give at least three models of different depths")
    texts = {probe["data"]["corpus"] for probe in probes}
    if len(texts) > 1:
        raise ProbingError(f"the models were probed on {', '.join(sorted(texts))}; expected one corpus for a family")
    kept: dict[str, dict[str, Any]] = {}
    notes = []
    shared = _shared_revisions(probes)
    for probe in probes:
        if _name(probe) in shared:
            notes.append(f"{_name(probe)} shares weights with {shared[_name(probe)]} and is left out")
            continue
        same = kept.setdefault(probe["model"]["weights_sha256"], probe)
        if same is not probe:
            notes.append(f"{_name(probe)} has the weights of {_name(same)} and is left out")
    models = [
        ModelProfile(
            _name(probe),
            {name: [float("nan") if v is None else v for v in probe["quantities"][name]["mean"]] for name in FITTED},
        )
        for probe in kept.values()
    ]
    return {
        "definitions": DEFINITIONS,
        "corpus": texts.pop(),
        "models": [
            {
                "name": _name(probe),
                "num_visits": probe["model"]["num_visits"],
                "num_blocks": probe["model"]["num_blocks"],
                "width": probe["model"]["width"],
                "tokens": probe["data"]["tokens"],
                "weights_sha256": probe["model"]["weights_sha256"],
            }
            for probe in kept.values()
        ],
        "notes": notes,
        "trends": [trend.to_dict() for trend in family_trends(models, level)],
    }


def write_family(directories: Sequence[Path], home: Path) -> Path:
    """Fit the trend over the probes in ``directories`` and write it to ``home``; the path of the result file.

    Raises:
        ResultError: a directory holds no probe.
        ProbingError: as :func:`family_result`.
    """
    return write_result(home, RESULT_KIND, family_result([read_result(one, "probe") for one in directories]))


def _shared_revisions(probes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Name of each probe whose revision shares a weight with another of the same model, and of those others."""
    found: dict[str, str] = {}
    models = [probe["model"] for probe in probes if probe["model"]["revision"] is not None]
    for name in dict.fromkeys(model["name"] for model in models):
        series = [weights_of(model) for model in models if model["name"] == name]
        found |= {f"{name} at {revision}": ", ".join(others) for revision, others in repeated_weights(series).items()}
    return found


def _name(probe: dict[str, Any]) -> str:
    model = probe["model"]
    return model["name"] if model["revision"] is None else f"{model['name']} at {model['revision']}"

"""Result files: ``results/<kind>.json``, each with its kind, its schema version and what made it."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from depthscale.runs.files import atomic_write_text
from depthscale.runs.versioned_json import read_versioned_json

#: Version written today for each kind. A reader meets older files through CONVERTERS.
SCHEMA_VERSIONS: Mapping[str, int] = MappingProxyType(
    {
        "training": 1,
        "tuning": 1,
        "comparison": 1,
        "evaluation": 1,
        "tasks": 1,
        "alignment": 1,
        "sweep": 1,
        "alignment_cell": 1,
        "alignment_study": 1,
        "recipe": 1,
        "fit": 1,
        "law_comparison": 1,
        "allocation": 1,
        "toy_job": 1,
        "toy": 1,
        "probe": 1,
        "probe_series": 1,
        "probe_clusters": 1,
        "probe_trend": 1,
        "probe_interventions": 1,
        "probe_trace": 1,
    }
)

#: (kind, from version) -> function that lifts the plain data by one version.
CONVERTERS: Mapping[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = MappingProxyType({})

_PACKAGES = ("depthscale", "numpy", "scipy", "torch", "transformers", "accelerate", "tokenizers")


def versions() -> dict[str, str]:
    """Versions of what a result depends on; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def result_path(directory: Path, kind: str) -> Path:
    """Where a run or study directory keeps its result of ``kind``."""
    return directory / "results" / f"{kind}.json"


def write_result(directory: Path, kind: str, data: Mapping[str, Any]) -> Path:
    """Write ``data`` as the directory's result of ``kind`` and return its path.

    A number that is not finite is written as null: JSON has no other word for it.
    """
    document = {
        "kind": kind,
        "schema_version": SCHEMA_VERSIONS[kind],
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        **data,
    }
    path = result_path(directory, kind)
    atomic_write_text(path, json.dumps(finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def read_result(directory: Path, kind: str) -> dict[str, Any]:
    """The directory's result of ``kind``, lifted to today's schema.

    Raises:
        ResultError: the file is missing, damaged, of another kind, or newer than this version of depthscale.
    """
    path = result_path(directory, kind)
    lifted = read_versioned_json(
        path,
        kind,
        SCHEMA_VERSIONS[kind],
        absent=f"no {kind} result at {path}; run the command that makes it first",
        again="delete it and run the command again",
        foreign=f"is not a {kind} result",
    )
    version = lifted["schema_version"]
    while version < SCHEMA_VERSIONS[kind]:
        lifted = CONVERTERS[kind, version](lifted)
        version += 1
    return lifted


def finite(value: Any) -> Any:
    """``value`` with every non-finite float replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

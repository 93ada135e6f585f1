"""Losses compare only where runs read one text with one tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from depthscale.errors import ResultError


def require_one_text(subject: str, runs: Iterable[tuple[object, Mapping[str, Any]]], remedy: str) -> None:
    """Refuse runs of several texts or tokenizers.

    Args:
        subject: what the runs belong to, as in "the runs of runs/demo".
        runs: name, or folder, of each, and ``data`` of its result.
        remedy: what to do about it.

    Raises:
        ResultError: there is more than one.
    """
    listed = list(runs)
    for key, what in (("corpus_sha256", "text"), ("tokenizer_sha256", "tokenizers")):
        found = {data[key]: name for name, data in listed}
        if len(found) > 1:
            one_each = ", ".join(f"{name} has {str(value)[:12]}" for value, name in found.items())
            raise ResultError(f"{subject} read different {what} ({one_each}), so their losses do not compare; {remedy}")

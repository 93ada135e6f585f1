"""Records that are kept as they are made, so that a long measurement goes on where it was stopped."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthscale.errors import ResultError
from depthscale.runs.files import atomic_write_text
from depthscale.runs.metrics import append_metric, read_metrics
from depthscale.runs.results import finite


class Ledger:
    """Records by key, in a file of one JSON object a line; in memory only where no file is named.

    Args:
        path: the file; None keeps nothing.
        identity: what the records depend on (model, text, settings). A file of another identity is refused.

    Raises:
        ResultError: the file belongs to another measurement, or is damaged before its last line.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self.path, self._prefix = path, ""
        self._records: dict[str, dict[str, Any]] = {}
        plain = json.loads(json.dumps(finite(identity)))
        if path is None:
            return
        if path.exists():
            head, *records = read_metrics(path) or [{}]
            if head.get("identity") != plain:
                differing = sorted(
                    name
                    for name in {*plain, *(head.get("identity") or {})}
                    if plain.get(name) != (head.get("identity") or {}).get(name)
                )
                raise ResultError(
                    f"{path} was begun with another {', '.join(differing) or 'measurement'}; name another folder with"
                    " --out, or delete the file to measure anew"
                )
            self._records = {record["key"]: record for record in records}
        # Written anew, so that a line cut short by a crash does not swallow the next one.
        lines = [{"identity": plain}, *self._records.values()]
        atomic_write_text(path, "".join(json.dumps(line) + "\n" for line in lines))

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._records

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._records[self._prefix + key]

    def scope(self, name: str) -> Ledger:
        """The same file, in which keys begin with ``name/``: for the same measurement on something else."""
        view = copy.copy(self)
        view._prefix = f"{self._prefix}{name}/"
        return view

    def add(self, key: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a record and return it as a reader of the file would see it."""
        kept: dict[str, Any] = json.loads(json.dumps(finite({"key": self._prefix + key, **record})))
        self._records[kept["key"]] = kept
        if self.path is not None:
            append_metric(self.path, kept)
        return kept

"""What a benchmark found, printed and kept; the benchmarks beside it import it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthscale.runs.files import atomic_write_text


def write_record(record: Mapping[str, Any], output: Path | None) -> None:
    """Print a record as JSON, and write it to ``output`` where one is named."""
    text = json.dumps(record, indent=1) + "\n"
    sys.stdout.write(text)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(output, text)

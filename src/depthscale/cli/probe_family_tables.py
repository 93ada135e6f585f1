"""The table of a family's trend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_family(result: Mapping[str, Any]) -> None:
    """Slopes with their intervals, or why there are none."""
    table = Table(title=f"Trend over {len(result['models'])} models on {result['corpus']}: value = c L^slope")
    for heading, justify in (("mean of", "left"), ("layers", "left"), ("slope", "right"), ("95 %", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    notes = list(result["notes"])
    for trend in result["trends"]:
        layers = "all" if trend["ends"] else "without first and last"
        if trend["slope"] is None:
            table.add_row(trend["quantity"], layers, "-", "-")
            notes.append(f"no slope of {trend['quantity']}, {layers}: {trend['reason']}")
            continue
        low, high = (f"{end:.3f}" if end is not None else "open" for end in (trend["lower"], trend["upper"]))
        table.add_row(trend["quantity"], layers, f"{trend['slope']:.3f}", f"{low} to {high}")
    console = Console()
    console.print(table)
    for note in notes:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True)

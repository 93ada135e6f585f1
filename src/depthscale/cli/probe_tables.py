"""The table of what ``depthscale probe`` measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

#: Quantity -> heading and decimals.
_COLUMNS = {
    "hidden_state_norm": ("norm", 2),
    "update_norm": ("update", 2),
    "state_angle": ("angle h", 3),
    "update_angle": ("angle Dh", 3),
    "angle_to_end": ("to end", 3),
    "logit_lens_loss": ("logit lens", 3),
    "last_block_lens_loss": ("last block", 3),
}


def print_probe(result: Mapping[str, Any]) -> None:
    """Means by layer, and what stands behind them."""
    model, data, quantities = result["model"], result["data"], result["quantities"]
    at = "" if model["revision"] is None else f" at {model['revision']}"
    shape = f"{model['num_blocks']} blocks, {model['num_visits']} visits, width {model['width']}"
    table = Table(
        title=f"{model['name']}{at}: {shape}",
        caption=f"means over {data['tokens']:,} tokens of {data['documents']:,} documents; l: raw output of visit l, 0"
        f" the embedding output; Dh = h_l+1 - h_l; angles in radians (pi/2 = {math.pi / 2:.3f}); exit losses in nats",
    )
    table.add_column("l", justify="right")
    shown = [name for name in _COLUMNS if name in quantities]
    for name in shown:
        table.add_column(_COLUMNS[name][0], justify="right")
    for layer in range(model["num_visits"] + 1):
        cells = [str(layer)]
        for name in shown:
            means = quantities[name]["mean"]
            mean = means[layer] if layer < len(means) else None
            cells.append("" if mean is None else f"{mean:.{_COLUMNS[name][1]}f}")
        table.add_row(*cells)
    console = Console()
    console.print(table)
    for name, reason in result["not_available"].items():
        console.print(f"{name} is not available: {reason}", soft_wrap=True)

"""Coverage of every kind of interval at the 203-row design of the public depth table, by simulation.

    python benchmarks/laws_coverage.py TABLE.csv [--simulations 300] [--output docs/results/laws/coverage.json]

TABLE.csv is ``chinchilla_depth.csv`` of arXiv 2602.05970's code (columns d_model, n_layers, num_tokens, loss). The
fitted law is the truth, its residuals are the noise, drawn in three ways (see ``depthscale.laws.coverage``).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from record import write_record

from depthscale.laws import LAWS, ColumnMap, fit, read_table, simulate_coverage
from depthscale.laws.coverage import Noise

COLUMNS = "width=d_model,depth=n_layers,tokens=num_tokens,group=d_model+n_layers"
NAMES = ("L_0", "alpha_m", "alpha_l", "alpha_D")


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = read_table(arguments.table, ColumnMap.parse(COLUMNS)).below_loss_rank(40)
    found = fit(LAWS["width_depth_tokens"], rows)
    results = [
        simulate_coverage(found, NAMES, noise, arguments.simulations, arguments.replicates).to_dict()
        for noise in get_args(Noise)
    ]
    record = {
        "law": found.law.name,
        "parameters": found.parameters,
        "num_rows": rows.num_rows,
        "num_groups": int(rows.group_codes.max()) + 1,
        "data_sha256": rows.digest,
        "seed": 0,
        "coverage": results,
    }
    write_record(record, arguments.output)


if __name__ == "__main__":
    main()

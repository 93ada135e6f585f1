"""Fits of laws beside what is used elsewhere, as ratios within one run: BFGS grid, unbatched refits, Adam.

    python benchmarks/laws_fits.py [--full] [--output FILE]

Rows are made here at the design of the public tables (240 and 203 rows), so the script needs no data.
``--full`` runs 4,500 BFGS starts, 400 refits and 50,000 Adam steps instead of 90, 40 and 2,000. What is multiplied up
from fewer is named so: ``..._scaled_from_90``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import write_record
from scipy.optimize import minimize
from scipy.special import huber, logsumexp
from spread import spread

from depthscale.laws import (
    CHINCHILLA_FLOPS,
    LAWS,
    Fit,
    Objective,
    Observations,
    bootstrap,
    fit,
    frontier_exponent_quantity,
    optimal_size_quantity,
    parameter,
    profile,
)

CHINCHILLA, DEPTH = LAWS["chinchilla"], LAWS["width_depth_tokens"]
HUBER = Objective("log_huber", 1e-3)
TARGETS = {
    "one certified Chinchilla fit": 0.1,
    "all profiles of it": 0.5,
    "4,000 certified refits of it": 30.0,
    "width-depth-tokens with 1,000 replicates": 10.0,
}


def chinchilla_rows() -> Observations:
    """240 rows along isoFLOP lines with heavy-tailed residuals, as read off a figure."""
    generator = np.random.default_rng(0)
    flops = np.exp(generator.uniform(np.log(6e18), np.log(3e21), 240))
    sizes = np.sqrt(flops / 120) * np.exp(generator.uniform(-1.2, 1.2, 240))
    columns = {"parameters": sizes, "tokens": flops / (6 * sizes)}
    truth = {"E": 1.8172, "A": 477.83, "B": 2143.4, "alpha": 0.34731, "beta": 0.36717}
    return Observations(columns, CHINCHILLA.predict(truth, columns) * np.exp(0.004 * generator.standard_t(3, 240)))


def depth_rows() -> Observations:
    """203 rows of 39 architectures whose width and depth move together (correlation 0.92)."""
    generator = np.random.default_rng(1)
    shape = generator.integers(39, size=203)
    widths = np.linspace(np.log(512), np.log(5120), 39)
    depths = 3.2 + 0.45 * (widths - widths.mean()) + 0.12 * generator.standard_normal(39)
    width, depth = np.round(np.exp(widths[shape])), np.round(np.exp(depths[shape]))
    tokens = np.exp(generator.uniform(np.log(1e9), np.log(1e11), 203))
    columns = {"width": width, "depth": depth, "tokens": tokens}
    truth = dict(zip(DEPTH.parameters, (1.7536, 274.72, 6.7212, 529.25, 0.94548, 1.32513, 0.29909), strict=True))
    loss = DEPTH.predict(truth, columns) * np.exp(0.0055 * generator.standard_normal(203))
    return Observations(columns, loss, groups=shape)


def bfgs_grid(data: Observations, num_starts: int) -> tuple[float, dict[str, float]]:
    """The usual recipe: BFGS with numerical gradients from a grid of starts on the summed Huber loss.

    Source: the grid of Hoffmann et al., arXiv 2203.15556, appendix D.3 (6 x 6 x 5 x 5 x 5 = 4,500 starts).
    """
    logs, target = np.log([data.column("parameters"), data.column("tokens")]), np.log(data.loss)

    def value(theta: np.ndarray) -> float:
        a, b, e, alpha, beta = theta
        terms = np.stack([a - alpha * logs[0], b - beta * logs[1], np.broadcast_to(e, target.shape)])
        return float(huber(1e-3, logsumexp(terms, axis=0) - target).sum())

    grid = [
        (a, b, e, alpha, beta)
        for alpha in np.arange(0, 2.5, 0.5)
        for beta in np.arange(0, 2.5, 0.5)
        for e in np.arange(-1, 1.5, 0.5)
        for a in np.arange(0, 30, 5)
        for b in np.arange(0, 30, 5)
    ]
    picked = np.random.default_rng(0).permutation(len(grid))[:num_starts]
    results = [minimize(value, grid[i], method="BFGS") for i in picked]
    best = min(results, key=lambda r: r.fun)
    a, b, e, alpha, beta = best.x
    return float(best.fun), {
        "E": float(np.exp(e)),
        "A": float(np.exp(a)),
        "B": float(np.exp(b)),
        "alpha": alpha,
        "beta": beta,
    }


def unbatched_refits(found: Fit, count: int) -> int:
    """Each resample through SciPy's BFGS from the optimum; returns how many report success."""
    data = found.data
    logs, target = np.log([data.column("parameters"), data.column("tokens")]), np.log(data.loss)
    p = found.parameters
    start = np.array([np.log(p["A"]), np.log(p["B"]), np.log(p["E"]), p["alpha"], p["beta"]])
    generator, good = np.random.default_rng(0), 0
    for _ in range(count):
        rows = generator.integers(len(target), size=len(target))
        x, y = logs[:, rows], target[rows]

        def value(theta: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> float:
            terms = np.stack(
                [theta[0] - theta[3] * x[0], theta[1] - theta[4] * x[1], np.broadcast_to(theta[2], y.shape)]
            )
            return float(huber(1e-3, logsumexp(terms, axis=0) - y).sum())

        good += bool(minimize(value, start, method="BFGS").success)
    return good


def adam(data: Observations, num_steps: int) -> None:
    """Adam on the seven parameters of width-depth-tokens, NumPy."""
    logs = np.log(np.stack([data.column(n) for n in DEPTH.columns], axis=1) * [1.0, 100.0, 1e-6])
    theta = np.array([np.log(500.0), np.log(1000.0), np.log(10.0), 1.0, 1.0, 0.33, 1.7])
    mean, square = np.zeros(7), np.zeros(7)
    for step in range(1, num_steps + 1):
        terms = np.exp(theta[:3] - theta[3:6] * logs)
        predicted = terms.sum(axis=1) + theta[6]
        pull = 2 * np.log(predicted / data.loss) / predicted / data.num_rows
        gradient = np.concatenate([terms.T @ pull, -(terms * logs).T @ pull, [pull.sum()]])
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        theta = theta - 1e-3 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)


def timed(work: Callable[[], Any], repeats: int = 1) -> tuple[list[float], Any]:
    """Wall time of every repeat, and the last result."""
    seconds, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return seconds, result


def scaled(name: str, seconds: Sequence[float], size: int, full_size: int) -> tuple[str, float]:
    """A peer's median time at full size; its name says where a smaller run was multiplied up."""
    at_size = statistics.median(seconds) * full_size / size
    return (name if size == full_size else f"{name}_scaled_from_{size}", at_size)


def run(full: bool) -> dict[str, Any]:
    """All figures."""
    data, depth = chinchilla_rows(), depth_rows()
    one, found = timed(lambda: fit(CHINCHILLA, data, HUBER), 20)
    quantities = [parameter(found, name) for name in CHINCHILLA.parameters]
    quantities.append(frontier_exponent_quantity(CHINCHILLA, CHINCHILLA_FLOPS))
    quantities += [optimal_size_quantity(CHINCHILLA, CHINCHILLA_FLOPS, c, 1e21) for c in CHINCHILLA.columns]
    profiles, _ = timed(lambda: profile(found, quantities), 5)
    batched, draws = timed(lambda: bootstrap(found, 4000), 5)
    replicates, depth_draws = timed(lambda: bootstrap(fit(DEPTH, depth), 1000, clusters=True), 5)
    one_depth, _ = timed(lambda: fit(DEPTH, depth), 20)
    seconds = dict(zip(TARGETS, map(spread, (one, profiles, batched, replicates)), strict=True))
    starts, refits, steps = (4500, 400, 50_000) if full else (90, 40, 2_000)
    grid_seconds, (grid_value, _) = timed(lambda: bfgs_grid(data, starts))
    refit_seconds, good = timed(lambda: unbatched_refits(found, refits))
    adam_seconds, _ = timed(lambda: adam(depth, steps), 3)
    peers = dict(
        [
            scaled("BFGS from 4,500 starts", grid_seconds, starts, 4500),
            scaled("4,000 refits one at a time, BFGS", refit_seconds, refits, 4000),
            scaled("50,000 Adam steps", adam_seconds, steps, 50_000),
        ]
    )
    beside = zip(
        peers.items(), ("one certified fit", "batched", "one certified fit"), (one, batched, one_depth), strict=True
    )
    return {
        "seconds": seconds,
        "targets": TARGETS,
        "met": {name: seconds[name]["median"] <= limit for name, limit in TARGETS.items()},
        "discarded": {"Chinchilla": draws.num_discarded, "width-depth-tokens": depth_draws.num_discarded},
        "peer_seconds": peers,
        "peers_at_full_size": full,
        "ratios": {
            f"{name} over {ours}": spread([peer / own for own in times]) for (name, peer), ours, times in beside
        },
        "objective": {"certified": found.value, "BFGS grid": grid_value},
        "BFGS refits that report success": good / refits,
    }


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="peers at full size (minutes)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    write_record(run(arguments.full), arguments.output)


if __name__ == "__main__":
    main()

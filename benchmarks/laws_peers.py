"""Two packages that fit Chinchilla's law, beside ours on the same rows in one run.

    python3.12 -m venv peers
    peers/bin/pip install -e . chinchilla simple-scaling-laws
    peers/bin/python benchmarks/laws_peers.py [--full] [--output FILE]

``chinchilla``            BFGS in extended precision from a grid of starts, without replicates
``simple-scaling-laws``   a separable power law with a wild cluster bootstrap of 1,000 draws (Python 3.12 or later)

A package that is not installed is left out and said to be. Each peer minimizes its own objective, so that ours is
given the parameters that it ends at: the certificate says whether they are a minimum of the peer's own kind of loss.
``--full`` starts ``chinchilla`` from 4,500 points instead of 36; a time multiplied up from fewer is named so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from laws_fits import CHINCHILLA, HUBER, chinchilla_rows, scaled, timed
from record import write_record
from spread import spread

from depthscale.laws import Fit, Objective, Observations, bootstrap, examine, fit

SQUARES = Objective("raw_squares")
NUM_REPLICATES = 1000
FULL_STARTS = 4500


def beside_chinchilla(data: Observations, full: bool) -> dict[str, Any]:
    """The package's grid of starts against one certified fit of the same Huber loss."""
    package = importlib.import_module("chinchilla")
    axes = (5, 5, 6, 6, 5) if full else (1, 3, 2, 2, 3)
    spans = ((0.0, 2.0), (0.0, 2.0), (0.0, 25.0), (0.0, 25.0), (-1.0, 1.0))
    alpha, beta, a, b, e = (np.linspace(*span, count) for span, count in zip(spans, axes, strict=True))
    starts = int(np.prod(axes))
    with tempfile.TemporaryDirectory() as folder:
        peer = package.Chinchilla(
            folder,
            param_grid={"e": e, "a": a, "b": b, "alpha": alpha, "beta": beta},
            loss_fn=lambda true, predicted: log_huber(np.log(true) - np.log(predicted)),
            log_level=50,
        )
        for parameters, tokens, loss in zip(data.column("parameters"), data.column("tokens"), data.loss, strict=True):
            peer.database.append(N=float(parameters), D=float(tokens), loss=float(loss))
        peer_seconds, _ = timed(lambda: peer.fit(parallel=False))
    ended = {name: float(getattr(peer, name)) for name in CHINCHILLA.parameters}
    own_seconds, own = timed(lambda: fit(CHINCHILLA, data, HUBER), 5)
    name, peer_seconds = scaled(f"{FULL_STARTS} starts", peer_seconds, starts, FULL_STARTS)
    return {
        "peer_seconds": {name: peer_seconds},
        "own_seconds": spread(own_seconds),
        "ratio": spread([peer_seconds / own for own in own_seconds]),
        **endpoints(own, ended),
    }


def beside_simple_scaling_laws(data: Observations, full: bool) -> dict[str, Any]:
    """Fit and replicates of the package against a certified fit and as many certified refits."""
    package = importlib.import_module("simple_scaling_laws")
    polars = importlib.import_module("polars")
    rows = np.arange(data.num_rows)
    frame = polars.DataFrame(
        {
            "training_run_id": [f"run-{row}" for row in rows],
            "test_set_id": ["report"] * data.num_rows,
            "model_size__parameters": data.column("parameters"),
            "dataset_size__tokens": data.column("tokens"),
            "test_loss__cross_entropy": data.loss,
        }
    )
    draws = NUM_REPLICATES if full else 100
    peer_seconds, model = timed(lambda: package.fit(frame, law="separable-power", n_draws=draws, seed=0))
    ended = {name: float(value) for name, value in model.params("test_loss__cross_entropy").items()}
    # The package counts each column in units of its geometric mean.
    for coefficient, exponent, column in (("A", "alpha", "parameters"), ("B", "beta", "tokens")):
        ended[coefficient] *= float(np.exp(ended[exponent] * np.log(data.column(column)).mean()))

    def own() -> Fit:
        found = fit(CHINCHILLA, data, SQUARES)
        bootstrap(found, NUM_REPLICATES)
        return found

    own_seconds, found = timed(own, 5)
    name, peer_seconds = scaled(f"{NUM_REPLICATES} replicates", peer_seconds, draws, NUM_REPLICATES)
    return {
        "peer_seconds": {name: peer_seconds},
        "own_seconds": spread(own_seconds),
        "ratio": spread([peer_seconds / own for own in own_seconds]),
        **endpoints(found, ended),
    }


def log_huber(residual: np.ndarray) -> np.ndarray:
    """Huber's loss of a log ratio, at the published delta."""
    size = np.abs(residual)
    return np.where(size <= HUBER.delta, residual**2 / 2, HUBER.delta * (size - HUBER.delta / 2))


def endpoints(own: Fit, ended: dict[str, float]) -> dict[str, Any]:
    """Both ends on our objective, and what the certificate says of the peer's."""
    examined = examine(own.law, own.data, ended, own.objective)
    return {
        "own": {"parameters": own.parameters, "objective": own.value, "certified": own.certificate.holds},
        "peer": {
            "parameters": ended,
            "objective": examined.value,
            "certified": examined.certificate.holds,
            "reasons": list(examined.certificate.reasons),
        },
    }


PEERS: dict[str, tuple[str, Callable[[Observations, bool], dict[str, Any]]]] = {
    "chinchilla": ("chinchilla", beside_chinchilla),
    "simple-scaling-laws": ("simple_scaling_laws", beside_simple_scaling_laws),
}


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="peers at full size (minutes)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    data = chinchilla_rows()
    results: dict[str, Any] = {"rows": data.num_rows, "full": arguments.full}
    for name, (module, measure) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            results[name] = "not installed"
            continue
        with contextlib.redirect_stdout(sys.stderr):
            results[name] = measure(data, arguments.full)
    write_record(results, arguments.output)


if __name__ == "__main__":
    main()

"""Per-visit gradients and kappa beside an ordinary forward and backward pass, as ratios within one run.

    python benchmarks/per_visit_gradients.py [--repeats N] [--output FILE]

The jobs take turns and ratios are taken within a turn, so that a machine that slows down slows both sides alike;
printed are their median, lowest and highest. The peers for one gradient per visit: one forward pass and as many full
backward passes as visits, each through the whole graph and kept for one visit; the same with each backward pass cut to
what its visit needs; as many ordinary passes (forward and backward) as visits; and as many of those with one visit
attached.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from spread import spread
from torch import Tensor

from depthscale.alignment.measure import looped_forward, measure_looped_model
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.alignment.sketch import sketch_visits
from depthscale.alignment.sublayers import block_names, looped_sublayers
from depthscale.alignment.sums import VisitSumsReceiver
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM

SHAPES = {
    "tiny (width 64, K=2, R=4, 8 x 64 tokens)": {"width": 64, "blocks": 2, "rounds": 4, "batch": (8, 64)},
    "d=256, K=4, R=8, 4 x 128 tokens": {"width": 256, "blocks": 4, "rounds": 8, "batch": (4, 128)},
}
BASE = "forward + backward"
TARGETS = {"streaming G": 1.15, "kappa, one probe": 2.2}
#: Streaming G at R = 8 beside what it replaces.
SPEEDUP_TARGETS = {"R backward passes": 6.0}


def make(width: int, blocks: int, rounds: int, batch: tuple[int, int]) -> tuple[LoopedLMForCausalLM, dict[str, Tensor]]:
    """A post-norm model with moderate scales and a batch of random tokens."""
    torch.manual_seed(0)
    config = LoopedLMConfig(
        vocab_size=256,
        hidden_size=width,
        num_attention_heads=4,
        plan=[{"blocks": blocks, "rounds": rounds}],
        norm_placement="post",
        residual_scales=[{"skip": 2.0, "gain": 0.5}],
    )
    ids = torch.randint(256, batch)
    return LoopedLMForCausalLM(config), {"input_ids": ids, "labels": ids}


def ordinary(model: LoopedLMForCausalLM, batch: dict[str, Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    looped_forward(model, batch).loss.backward()


def streaming(model: LoopedLMForCausalLM, batch: dict[str, Tensor]) -> None:
    sublayers = looped_sublayers(model)
    names = [name for sublayer in sublayers for name in sublayer.parameters]
    with VisitRecorder(model, block_names(model), names) as recorder:
        loss = looped_forward(model, batch).loss
        receiver = VisitSumsReceiver(recorder, sublayers)
        receiver.finish(recorder.backward(loss, receiver))


def exact(model: LoopedLMForCausalLM, batch: dict[str, Tensor]) -> None:
    kept: list[Tensor] = []
    with VisitRecorder(model) as recorder:
        recorder.backward(looped_forward(model, batch).loss, lambda name, visit, gradient: kept.append(gradient))


def one_visit_attached(model: LoopedLMForCausalLM, batch: dict[str, Tensor], rounds: int) -> None:
    """For every round a pass in which only that round's parameters require gradient."""
    for round_ in range(rounds):

        def stand(name: str, visit: VisitKey, parameter: Tensor, round_: int = round_) -> Tensor:
            return parameter.detach().requires_grad_(visit.call == round_)

        with VisitRecorder(model, only=[n for n, _ in model.named_parameters() if ".blocks." in n], stand=stand):
            model.zero_grad(set_to_none=True)
            looped_forward(model, batch).loss.backward()


def retained_graph(model: LoopedLMForCausalLM, batch: dict[str, Tensor], rounds: int, whole: bool) -> list[Any]:
    """One forward pass, and for every round a backward pass, through the ``whole`` graph or to the round's leaves."""
    leaves: list[list[Tensor]] = [[] for _ in range(rounds)]

    def stand(name: str, visit: VisitKey, parameter: Tensor) -> Tensor:
        leaf = parameter.detach().requires_grad_()
        leaves[visit.call].append(leaf)
        return leaf

    with VisitRecorder(model, only=[n for n, _ in model.named_parameters() if ".blocks." in n], stand=stand):
        loss = looped_forward(model, batch).loss
        if not whole:
            return [torch.autograd.grad(loss, found, retain_graph=True) for found in leaves]
        every = [leaf for found in leaves for leaf in found]
        kept = []
        for found in leaves:
            gradients = torch.autograd.grad(loss, every, retain_graph=True)
            chosen = {id(leaf) for leaf in found}
            kept.append([g for leaf, g in zip(every, gradients, strict=True) if id(leaf) in chosen])
        return kept


def measure(shape: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    """Seconds of each job in every repeat, after one warm-up; within a repeat the jobs run one after another."""
    model, batch = make(**shape)
    rounds = shape["rounds"]
    jobs: dict[str, Callable[[], Any]] = {
        BASE: lambda: ordinary(model, batch),
        "streaming G": lambda: streaming(model, batch),
        "exact G": lambda: exact(model, batch),
        "sketched G": lambda: sketch_visits(model, lambda: looped_forward(model, batch).loss, looped_sublayers(model)),
        "kappa, one probe": lambda: measure_looped_model(model, batch, num_probes=1),
        "R backward passes": lambda: retained_graph(model, batch, rounds, whole=True),
        "R backward passes, each to its visit": lambda: retained_graph(model, batch, rounds, whole=False),
        "R forward and backward passes": lambda: [ordinary(model, batch) for _ in range(rounds)],
        "R forward and backward passes, one visit attached": lambda: one_visit_attached(model, batch, rounds),
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


def ratio(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Of the ratio within a repeat, over the repeats."""
    return spread([time / other for time, other in zip(times, others, strict=True)])


def words(found: Mapping[str, float]) -> str:
    """Such as "1.12 x (1.08 to 1.20)"."""
    return f"{found['median']:6.2f} x ({found['smallest']:.2f} to {found['largest']:.2f})"


def main() -> None:
    """Measure, print and optionally write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "repeats": arguments.repeats, "shapes": {}}
    for name, shape in SHAPES.items():
        seconds = measure(shape, arguments.repeats)
        ratios = {job: ratio(times, seconds[BASE]) for job, times in seconds.items()}
        speedups = {job: ratio(seconds[job], seconds["streaming G"]) for job in seconds if job.startswith("R ")}
        medians = {job: statistics.median(times) for job, times in seconds.items()}
        document["shapes"][name] = {"seconds": medians, "ratios": ratios, "speedups": speedups}
        sys.stdout.write(f"{name}\n")
        for job, found in ratios.items():
            target = f"   (target at most {TARGETS[job]})" if job in TARGETS else ""
            sys.stdout.write(f"  {job:50s} {1e3 * medians[job]:9.1f} ms  {words(found)}{target}\n")
        for job, found in speedups.items():
            target = f"   (target at least {SPEEDUP_TARGETS[job]:g} at R = 8)" if job in SPEEDUP_TARGETS else ""
            sys.stdout.write(f"  {job:50s} over streaming G {words(found)}{target}\n")
    if arguments.output:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

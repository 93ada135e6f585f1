"""One cell of the table: a reasoner under one rule, rate and seed, trained and asked."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from depthscale.runs.results import versions

from .model import Reasoner, Shape, build
from .puzzles import Puzzle, Puzzles, as_tensors, augmented, levels_of
from .sudoku import geometry

EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Training:
    """How a cell is trained."""

    steps: int
    batch: int
    lr: float
    seed: int
    warmup_steps: int
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    min_lr_ratio: float = 0.1
    log_every: int = 50


def train_cell(shape: Shape, rule: str, training: Training, puzzles: Puzzles, split: str) -> dict[str, Any]:
    """Train one model and measure it on a held-out split; plain data.

    The seed draws the initial weights and the order and names of the puzzles; cells of two rules with one seed see the
    same boards in the same order.
    """
    start, processor = time.monotonic(), time.process_time()
    model, counts, scales = build(shape, rule, training.seed)
    curve, divergence = _train(model, training, puzzles["train"])
    return {
        "rule": rule,
        "split": split,
        "shape": asdict(shape),
        "training": asdict(training),
        "num_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "visits": [asdict(group) for group in counts.groups],
        "num_gradient_sublayer_visits": counts.num_gradient_sublayer_visits,
        "scales": {g.name: asdict(s) for g, s in zip(counts.groups, scales.groups, strict=True)},
        "outcome": "diverged" if divergence else "finished",
        "curve": curve,
        "levels": {
            level: evaluate(model, [p for p in puzzles[split] if p.level == level]) for level in levels_of(shape.box)
        },
        "seconds": time.monotonic() - start,
        "processor_seconds": time.process_time() - processor,
        "num_threads": torch.get_num_threads(),
        "versions": versions(),
    }


@torch.inference_mode()
def evaluate(model: Reasoner, puzzles: Sequence[Puzzle]) -> dict[str, Any]:
    """Loss and share of blank cells that are right, and share of boards with every blank right."""
    total, right, blanks, whole = 0.0, 0, 0, 0
    for first in range(0, len(puzzles), EVALUATION_BATCH):
        given, solved = as_tensors(puzzles[first : first + EVALUATION_BATCH])
        logits = model(given)
        blank = given == 0
        hit = (logits.argmax(dim=-1) + 1 == solved) & blank
        total += _loss(logits, given, solved).item() * int(blank.sum())
        right, blanks = right + int(hit.sum()), blanks + int(blank.sum())
        whole += int((hit == blank).all(dim=1).sum())
    return {
        "boards": len(puzzles),
        "blanks": blanks,
        "loss_nats": total / blanks,
        "cell_accuracy": right / blanks,
        "board_accuracy": whole / len(puzzles),
    }


def learning_rate(training: Training, step: int) -> float:
    """Linear warm-up, then a cosine down to ``min_lr_ratio``; ``step`` counts from 0."""
    if step < training.warmup_steps:
        return training.lr * (step + 1) / training.warmup_steps
    way = (step - training.warmup_steps) / max(1, training.steps - training.warmup_steps)
    return training.lr * (training.min_lr_ratio + (1 - training.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * way)))


def _train(model: Reasoner, training: Training, puzzles: Sequence[Puzzle]) -> tuple[list[list[float]], str | None]:
    given, solved = as_tensors(puzzles)
    side = geometry(model.shape.box).side
    generator = torch.Generator().manual_seed(training.seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = model.matrices()
    decaying = {id(matrix) for matrix in matrices}
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": [p for p in parameters if id(p) not in decaying], "weight_decay": 0.0},
        ],
        lr=training.lr,
        betas=(0.9, 0.95),
    )
    curve: list[list[float]] = []
    recent = 0.0
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        rows = torch.randint(len(given), (training.batch,), generator=generator)
        boards, answers = augmented(given[rows], solved[rows], side, generator)
        loss = _loss(model(boards), boards, answers)
        if not torch.isfinite(loss):
            return curve, f"loss was not finite at step {step}"
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
        optimizer.step()
        recent += loss.item()
        if (step + 1) % training.log_every == 0:
            curve.append([step + 1, recent / training.log_every])
            recent = 0.0
    return curve, None


def _loss(logits: Tensor, given: Tensor, solved: Tensor) -> Tensor:
    """Mean cross-entropy over blank cells, nats."""
    blank = given == 0
    return functional.cross_entropy(logits[blank], solved[blank] - 1)

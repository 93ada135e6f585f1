"""``evaluate`` beside bare forward passes over the same batches, as a ratio within one run.

    python benchmarks/evaluate_overhead.py [--repeats 7] [--rows 512] [--output FILE]

Bare passes run the same model on batches that were collated beforehand and add their losses up. What ``evaluate`` adds
is reading and collating rows, and the sums. The two are timed in turn, so that a busy moment hits both; the ratio is
taken within a pair. Target: at most 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from record import write_record

from depthscale.evaluation.loss import evaluate_loss
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.training.dataset import PackedCollator, PackedDataset

TARGET = 1.05
BATCH_ROWS = 16
CONTEXT_LENGTH = 64


def make_model() -> LoopedLMForCausalLM:
    """The demonstration's shape at R = 4: the smaller the model, the more overhead shows."""
    torch.manual_seed(0)
    config = LoopedLMConfig(
        vocab_size=1024,
        hidden_size=64,
        num_attention_heads=4,
        plan=[{"blocks": 2, "rounds": 4}],
        norm_placement="post",
    )
    return LoopedLMForCausalLM(config).eval()


def make_rows(num_rows: int) -> PackedDataset:
    """Random tokens in documents of 500."""
    stream = np.random.default_rng(0).integers(0, 1024, num_rows * CONTEXT_LENGTH).astype(np.uint16)
    starts = np.arange(0, len(stream), 500)
    return PackedDataset(stream, starts, CONTEXT_LENGTH, attend_across_documents=False, pad_last_row=True, pad_id=0)


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Time both in turn, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, rows = make_model(), make_rows(arguments.rows)
    collate = PackedCollator(attend_across_documents=False)
    batches = [
        collate([rows[row] for row in range(start, min(start + BATCH_ROWS, len(rows)))])
        for start in range(0, len(rows), BATCH_ROWS)
    ]

    @torch.inference_mode()
    def bare() -> float:
        return sum(model(**batch, num_items_in_batch=1).loss.item() for batch in batches)

    def evaluate() -> float:
        result = evaluate_loss(model, rows, collate, batch_rows=BATCH_ROWS)
        return result.loss_nats * result.num_tokens

    # Also the warm-up: both must add up to the same loss, or the comparison means nothing.
    if abs(bare() / evaluate() - 1) > 1e-6:
        raise SystemExit("evaluate and bare passes give different losses")
    pairs = [(seconds(evaluate), seconds(bare)) for _ in range(arguments.repeats)]
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    record = {
        "evaluate_seconds": statistics.median(mine for mine, _ in pairs),
        "bare_seconds": statistics.median(theirs for _, theirs in pairs),
        "ratio": statistics.median(ratios),
        "ratio_smallest": ratios[0],
        "ratio_largest": ratios[-1],
        "repeats": arguments.repeats,
        "rows": arguments.rows,
        "target": TARGET,
        "holds": statistics.median(ratios) <= TARGET,
        "num_threads": 1,
        "torch": torch.__version__,
    }
    write_record(record, arguments.output)


if __name__ == "__main__":
    main()

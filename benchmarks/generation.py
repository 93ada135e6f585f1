"""Greedy generation with a cache: a looped model beside transformers' Llama of K * R untied layers of its shape.

    python benchmarks/generation.py [--repetitions 7] [--json FILE]

Both have random weights, so both write the same number of tokens. Repetitions are interleaved in one process and
each gives one ratio of speeds, so that a machine that is busy for a while slows both alike. The second table shows
the time of a token by the length of the text before it, beside what attention over that text takes alone: reading
all keys and values is the one cost that has to grow.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.cache import CACHE_FIELD
from depthscale.nn.config import NORM_PLACEMENTS

PEER = "llama"
ATTENTION = "attention"
TARGET_RATIO = 1.0
#: Growth of the time per token without the attention kernel's own.
TARGET_GROWTH_BEYOND_ATTENTION = 1.05


def build_models(options: argparse.Namespace, context: int) -> dict[str, PreTrainedModel]:
    """The looped model under each norm placement, and the peer."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": options.vocab_size,
        "hidden_size": options.hidden_size,
        "intermediate_size": options.hidden_size * 8 // 3,
        "num_attention_heads": options.heads,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
    }
    plan = [{"blocks": options.blocks, "rounds": options.rounds}]
    models: dict[str, PreTrainedModel] = {
        placement: LoopedLMForCausalLM(LoopedLMConfig(norm_placement=placement, plan=plan, **shape)).eval()
        for placement in options.placements.split(",")
    }
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    models[PEER] = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=options.blocks * options.rounds, **shape, **tokens)
    ).eval()
    return models


def seconds(model: PreTrainedModel, prompt: torch.Tensor, new_tokens: int) -> float:
    """Wall time of one greedy text."""
    started = time.perf_counter()
    sequences = model.generate(prompt, max_new_tokens=new_tokens, do_sample=False)
    assert sequences.shape == (len(prompt), prompt.shape[1] + new_tokens)
    return time.perf_counter() - started


def measure_speed(models: dict[str, PreTrainedModel], options: argparse.Namespace, batch: int) -> list[dict[str, Any]]:
    """Tokens per second of each model, and its ratio to the peer's in the same repetition."""
    prompt = torch.randint(options.vocab_size, (batch, options.prompt), generator=torch.Generator().manual_seed(1))
    for model in models.values():
        seconds(model, prompt, 4)
    taken: dict[str, list[float]] = {name: [] for name in models}
    for repetition in range(options.repetitions):
        # The order turns round, so that none always runs after the same one.
        names = list(models) if repetition % 2 == 0 else list(models)[::-1]
        for name in names:
            taken[name].append(seconds(models[name], prompt, options.new_tokens))
    rows = []
    for name, times in taken.items():
        ratios = [peer / own for peer, own in zip(taken[PEER], times, strict=True)]
        rows.append(
            {
                "batch": batch,
                "model": name,
                "tokens_per_second": batch * options.new_tokens / statistics.median(times),
                "ratio": statistics.median(ratios),
                "ratio_lowest": min(ratios),
                "ratio_highest": max(ratios),
            }
        )
    return rows


def attention_seconds(lengths: list[int], options: argparse.Namespace) -> list[float]:
    """Wall time of the attention kernel alone: one query at every visit, over ``lengths`` keys and values."""
    visits = options.blocks * options.rounds
    head_dim = options.hidden_size // options.heads
    slots = torch.randn(2, visits, 1, options.heads, options.length, head_dim)
    query = torch.randn(1, options.heads, 1, head_dim)
    taken = []
    for length in lengths:
        times = []
        for _ in range(3):
            started = time.perf_counter()
            for keys, values in zip(*slots, strict=True):
                functional.scaled_dot_product_attention(query, keys[..., :length, :], values[..., :length, :])
            times.append(time.perf_counter() - started)
        taken.append(statistics.median(times))
    return taken


@torch.no_grad()
def measure_growth(models: dict[str, PreTrainedModel], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of one more token at batch 1 after texts of eight lengths.

    Every turn asks each model for one token at every length, so that a machine whose speed drifts slows all lengths
    alike; the least of the turns counts, as whatever else the machine does only adds to it.
    """
    lengths = [options.length * part // 8 for part in range(1, 9)]
    text = torch.randint(options.vocab_size, (1, options.length), generator=torch.Generator().manual_seed(1))
    caches: dict[tuple[str, int], DynamicCache] = {}
    for name, model in models.items():
        for length in lengths:
            caches[name, length] = DynamicCache()
            model(text[:, : length - 1], **{CACHE_FIELD: caches[name, length]}, use_cache=True)
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in caches}
    attention = []
    for _ in range(options.turns):
        attention.append(attention_seconds(lengths, options))
        for name, model in models.items():
            # The first token untimed: it brings the model's weights back into the processor's cache.
            for length in (lengths[0], *lengths):
                cache = caches[name, length]
                started = time.perf_counter()
                model(text[:, -1:], **{CACHE_FIELD: cache}, use_cache=True)
                taken[name, length].append(time.perf_counter() - started)
                cache.crop(-1)
            del taken[name, lengths[0]][-2]
    own = [1e3 * min(values) for values in zip(*attention, strict=True)]
    rows: list[dict[str, Any]] = [
        {"model": ATTENTION, "milliseconds_per_token": own, "growth": own[-1] / own[0], "growth_beyond_attention": None}
    ]
    for name in models:
        parts = [1e3 * min(taken[name, length]) for length in lengths]
        rows.append(
            {
                "model": name,
                "milliseconds_per_token": parts,
                "growth": parts[-1] / parts[0],
                "growth_beyond_attention": (parts[-1] - own[-1]) / (parts[0] - own[0]),
            }
        )
    return rows


def verdict(speed: list[dict[str, Any]], growth: list[dict[str, Any]]) -> dict[str, Any]:
    """The looped models against the peer, whose own row is no part of what is judged."""
    lowest_ratio = min(row["ratio"] for row in speed if row["model"] != PEER)
    beyond = max(row["growth_beyond_attention"] for row in growth if row["model"] not in (PEER, ATTENTION))
    return {
        "lowest_ratio": lowest_ratio,
        "ratio_met": lowest_ratio >= TARGET_RATIO,
        "highest_growth_beyond_attention": beyond,
        "growth_met": beyond <= TARGET_GROWTH_BEYOND_ATTENTION,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--placements", default=",".join(NORM_PLACEMENTS))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--length", type=int, default=512, help="of the longest text after which one token is timed")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--turns", type=int, default=40, help="of one token at each of eight lengths")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models = build_models(options, context=max(options.length, options.prompt + options.new_tokens))

    speed = [row for batch in options.batches.split(",") for row in measure_speed(models, options, int(batch))]
    growth = measure_growth(models, options)
    write = sys.stdout.write
    write(f"{options.prompt} -> {options.new_tokens} tokens, {options.repetitions} interleaved repetitions\n")
    write(f"{'batch':>5} {'model':10} {'tokens/s':>10} {'x llama':>8}   lowest .. highest\n")
    for row in speed:
        spread = f"{row['ratio_lowest']:.2f} .. {row['ratio_highest']:.2f}"
        write(f"{row['batch']:5} {row['model']:10} {row['tokens_per_second']:10.1f} {row['ratio']:8.2f}   {spread}\n")
    write(f"\nms per token after eighths of {options.length} tokens, batch 1, least of {options.turns} turns\n")
    for row in growth:
        parts = " ".join(f"{part:7.2f}" for part in row["milliseconds_per_token"])
        beyond = row["growth_beyond_attention"]
        words = "" if beyond is None else f", without attention {beyond:.2f}"
        write(f"{row['model']:10} {parts}   last/first {row['growth']:.2f}{words}\n")
    judged = verdict(speed, growth)
    write(f"\ntargets: ratio >= {TARGET_RATIO:g} {judged['ratio_met']} (lowest {judged['lowest_ratio']:.2f}),")
    write(f" growth without attention <= {TARGET_GROWTH_BEYOND_ATTENTION:g} {judged['growth_met']}")
    write(f" (highest {judged['highest_growth_beyond_attention']:.2f})\n")
    if options.json is not None:
        environment = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": platform.processor() or platform.machine(),
        }
        arguments = {name: value for name, value in vars(options).items() if name != "json"}
        content = {
            "options": arguments,
            "environment": environment,
            "speed": speed,
            "growth": growth,
            "verdict": judged,
        }
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What the probe costs beside a bare forward pass, and beside plain formulas on ``output_hidden_states=True``.

    python benchmarks/probe_profile.py [--repeats 7] [--rows 8] [--output FILE]

Four ways over the same batch, timed in turn so that a busy moment hits all; ratios are taken within a turn. Nobody
makes logits.

    bare    the base model's forward pass
    local   norms, updates and adjacent angles while it runs, running statistics included;  target: <= 1.15 x bare
    all     the same and everything that refers to the end, a micro-batch of rows at a time
    plain   output_hidden_states=True and the same quantities as one writes them down;  target: all at least as fast

Peak memory is the largest sum of bytes of tensors that are alive at once, above a bare pass's; counted, not sampled.
Targets: at most three hidden states for ``local``, at most half of ``plain``'s for ``all``. ``plain_by_layer`` is the
plain way without stacking the states, a harder one for memory. The exit losses of one row through both lenses, states
included, are held against one layer's logits; target: below two.

transformer-lens and nnsight are timed over the same weights where they are installed, keeping every block's output and
reducing nothing; transformer-lens goes on through the head, which it cannot leave out.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Nothing is fetched; transformer-lens would look for a config of the same name.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from live_tensors import PeakLiveBytes
from record import write_record
from spread import spread
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from depthscale.probing.catalog import names_of
from depthscale.probing.checks import preflight
from depthscale.probing.located import LocatedModel, locate
from depthscale.probing.profile import Profile
from depthscale.probing.quantities import measure_tokens
from depthscale.probing.states import TokenBatch, run_base
from depthscale.training.tokenizer import byte_tokenizer

WIDTH, LAYERS, TOKENS, VOCABULARY = 512, 12, 512, 32768
LOCAL = names_of("local")
ALL = names_of("local", "end")


def make_model() -> LocatedModel:
    """GPT-2 of random weights; 38 million parameters in its blocks."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=8, n_positions=TOKENS)
    return preflight(locate(GPT2LMHeadModel(config).eval())).located


def make_batch(rows: int) -> TokenBatch:
    """Random tokens without padding."""
    return TokenBatch(torch.randint(0, VOCABULARY, (rows, TOKENS), generator=torch.Generator().manual_seed(0)))


def measured(located: LocatedModel, batch: TokenBatch, names: Sequence[str]) -> Profile:
    """The probe's own way."""
    profile = Profile(TOKENS)
    for tokens in measure_tokens(located, batch, names):
        profile.add(tokens)
    return profile


@torch.no_grad()
def plain(located: LocatedModel, batch: TokenBatch) -> dict[str, Tensor]:
    """All states at once, then every formula over the stack."""
    states, raw_last = library_states(located, batch)
    h = torch.stack([*states[:-1], raw_last]).float()
    d, total = h[1:] - h[:-1], h[-1] - h[0]
    size, step = h.norm(dim=-1), d.norm(dim=-1)
    turned = angle(h[:-1], h[1:])
    return {
        "hidden_state_norm": size,
        "update_norm": step,
        "relative_update_norm": step / size[:-1],
        "state_angle": turned,
        "update_angle": angle(d[:-1], d[1:]),
        "block_influence": 1 - turned.cos(),
        "angle_to_end": angle(h[:-1], h[-1:]),
        "angle_to_normed_end": angle(h, states[-1][None].float()),
        "projection_on_total": ((h - h[0]) * total).sum(-1) / total.square().sum(-1),
        "update_total_cosine": torch.nn.functional.cosine_similarity(d, total[None], dim=-1),
    }


@torch.no_grad()
def plain_by_layer(located: LocatedModel, batch: TokenBatch) -> list[tuple[Tensor, ...]]:
    """The same formulas layer by layer."""
    states, raw_last = library_states(located, batch)
    h = [*states[:-1], raw_last]
    total = h[-1] - h[0]
    found = []
    for layer in range(len(h) - 1):
        d = h[layer + 1] - h[layer]
        turned = angle(h[layer], h[layer + 1])
        found.append(
            (
                h[layer].norm(dim=-1),
                d.norm(dim=-1),
                d.norm(dim=-1) / h[layer].norm(dim=-1),
                turned,
                angle(h[layer] - h[layer - 1], d) if layer else turned,
                1 - turned.cos(),
                angle(h[layer], h[-1]),
                angle(h[layer], states[-1]),
                ((h[layer] - h[0]) * total).sum(-1) / total.square().sum(-1),
                torch.nn.functional.cosine_similarity(d, total, dim=-1),
            )
        )
    return found


def library_states(located: LocatedModel, batch: TokenBatch) -> tuple[Sequence[Tensor], Tensor]:
    """Hidden states as the library gives them, and the raw last one, which it does not give."""
    raw: list[Tensor] = []
    handle = located.blocks[-1].register_forward_hook(lambda module, args, output: raw.append(output))
    try:
        output = located.base(batch.input_ids, output_hidden_states=True, use_cache=False)
    finally:
        handle.remove()
    return output.hidden_states, raw[0]


def angle(x: Tensor, y: Tensor) -> Tensor:
    """As one writes it down."""
    return torch.nn.functional.cosine_similarity(x, y, dim=-1).clamp(-1, 1).acos()


def check_agreement(located: LocatedModel, batch: TokenBatch) -> None:
    """A comparison of different numbers means nothing."""
    small = batch.rows(0, 1)
    (mine,) = measure_tokens(located, small, ALL)
    for name, values in plain(located, small).items():
        theirs = values[:, :, :-1].flatten(1)
        if not torch.allclose(mine.values[name], theirs, rtol=1e-3, atol=2e-3):
            raise SystemExit(f"{name} differs from the plain formula")


def ways(located: LocatedModel, batch: TokenBatch) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    found: dict[str, Callable[[], Any]] = {
        "bare": lambda: run_base(located, batch),
        "local": lambda: measured(located, batch, LOCAL),
        "all": lambda: measured(located, batch, ALL),
        "plain": lambda: plain(located, batch),
        "plain_by_layer": lambda: plain_by_layer(located, batch),
    }
    for name, make in (("transformer_lens", transformer_lens_way), ("nnsight", nnsight_way)):
        if importlib.util.find_spec(name) is not None:
            found[name] = make(located, batch)
    return found


def transformer_lens_way(located: LocatedModel, batch: TokenBatch) -> Callable[[], Any]:
    """Its cache of every block's output. Its pass goes on through the head, which it has no way to leave out."""
    from transformer_lens.model_bridge import TransformerBridge  # type: ignore[import-not-found]

    # It puts its own modules into the model that it is given.
    bridge = TransformerBridge.boot_transformers(
        "gpt2", hf_model=copy.deepcopy(located.model), tokenizer=byte_tokenizer()
    )

    @torch.no_grad()
    def run() -> Any:
        return bridge.run_with_cache(batch.input_ids, names_filter=lambda name: name.endswith("hook_resid_post"))

    return run


def nnsight_way(located: LocatedModel, batch: TokenBatch) -> Callable[[], Any]:
    """Every block's output saved in one trace of the base model."""
    from nnsight import NNsight  # type: ignore[import-not-found]

    wrapped = NNsight(copy.deepcopy(located.base))
    input_ids = batch.input_ids

    @torch.no_grad()
    def run() -> list[Any]:
        kept: list[Any] = []
        with wrapped.trace(input_ids, use_cache=False):
            # The library reads this block's source, so it stays a plain loop.
            for block in wrapped.h:
                kept.append(block.output.save())
        return kept

    return run


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_bytes(function: Callable[[], object]) -> int:
    """Tensors alive at once during one call, weights not included."""
    with PeakLiveBytes() as counted:
        function()
    return counted.peak


def main() -> None:
    """Time all ways in turn, measure memory, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    located, batch = make_model(), make_batch(arguments.rows)
    check_agreement(located, batch)
    timed = ways(located, batch)
    turns = [{name: seconds(function) for name, function in timed.items()} for _ in range(arguments.repeats + 1)]
    turns = turns[1:]  # the first is the warm-up
    memory = {name: peak_bytes(function) for name, function in timed.items()}
    exits = peak_bytes(lambda: measured(located, batch.rows(0, 1), names_of("exit")))
    state_bytes = batch.input_ids.numel() * WIDTH * 4
    logits_bytes = TOKENS * VOCABULARY * 4
    extra = {name: memory[name] - memory["bare"] for name in timed}
    tokens = batch.input_ids.numel()
    record = {
        "model": {"family": "gpt2", "width": WIDTH, "layers": LAYERS, "rows": arguments.rows, "tokens_per_row": TOKENS},
        "tokens_per_second": {name: tokens / statistics.median(turn[name] for turn in turns) for name in timed},
        "local_over_bare": spread([turn["local"] / turn["bare"] for turn in turns]),
        "plain_over_all": spread([turn["plain"] / turn["all"] for turn in turns]),
        "plain_by_layer_over_all": spread([turn["plain_by_layer"] / turn["all"] for turn in turns]),
        "extra_memory_in_hidden_states": {name: extra[name] / state_bytes for name in timed},
        "all_over_plain_extra_memory": extra["all"] / extra["plain"],
        "all_over_plain_by_layer_extra_memory": extra["all"] / extra["plain_by_layer"],
        "exit_memory_in_logits_of_one_layer": exits / logits_bytes,
        "not_installed": [name for name in ("transformer_lens", "nnsight") if name not in timed],
        "repeats": arguments.repeats,
        "num_threads": 1,
        "torch": torch.__version__,
    }
    record["holds"] = {
        "local at most 1.15 x bare": record["local_over_bare"]["median"] <= 1.15,
        "local within 3 hidden states": record["extra_memory_in_hidden_states"]["local"] <= 3,
        "all as fast as plain": record["plain_over_all"]["median"] >= 1.0,
        "all within half of plain's memory": record["all_over_plain_extra_memory"] <= 0.5,
        "exits below two logits": record["exit_memory_in_logits_of_one_layer"] < 2,
    }
    write_record(record, arguments.output)


if __name__ == "__main__":
    main()

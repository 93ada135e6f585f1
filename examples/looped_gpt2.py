"""DeepLoop for blocks of another library: GPT-2's attention and MLP in a post-norm loop with finished scales.

    python examples/looped_gpt2.py

The model is tiny and random, so nothing is downloaded; with pretrained weights the init gain would have no meaning.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2Model

from depthscale.alignment.kappa import Alignment
from depthscale.alignment.measure import ForwardPass, measure_alignment
from depthscale.alignment.retrofit import ScaledResidual, apply_init_gain
from depthscale.alignment.sublayers import Sublayer
from depthscale.alignment.tracing import trace_visits
from depthscale.plan import VisitCounts
from depthscale.residual import GroupScales, ResidualScales, apply_rule

WIDTH, NUM_BLOCKS, VOCABULARY = 32, 2, 101


class FirstOutput(nn.Module):
    """GPT-2's attention returns its output and the attention weights; a residual wants the output."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden_state: Tensor) -> Tensor:
        output: Tensor = self.attention(hidden_state)[0]
        return output


class LoopedGPT2(nn.Module):
    """Embeddings and blocks of a GPT-2, its pre-norm residuals replaced by scaled post-norm ones, in a loop."""

    def __init__(self, num_rounds: int, scales: GroupScales) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=NUM_BLOCKS, n_head=2, n_positions=64,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
            # GPT-2's 0.02 is far below Xavier's at this width: branches would vanish beside a stream of RMS 1.
            initializer_range=WIDTH**-0.5,
        )  # fmt: skip
        gpt2 = GPT2Model(config)
        self.tokens, self.positions, self.num_rounds = gpt2.wte, gpt2.wpe, num_rounds
        self.blocks = nn.ModuleList(
            nn.Sequential(
                ScaledResidual(FirstOutput(block.attn), skip=scales.skip, after=block.ln_1),
                ScaledResidual(block.mlp, skip=scales.skip, after=block.ln_2),
            )
            for block in gpt2.h
        )
        apply_init_gain(self, gained_weights(self), scales.gain)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits ``[batch, tokens, vocabulary]``."""
        return functional.linear(self.final_states(input_ids), self.tokens.weight)

    def final_states(self, input_ids: Tensor) -> Tensor:
        """What the head reads, ``[batch, tokens, width]``."""
        positions = self.positions(torch.arange(input_ids.shape[1]))
        hidden_state = functional.rms_norm(self.tokens(input_ids) + positions, (WIDTH,))
        for _ in range(self.num_rounds):
            for block in self.blocks:
                hidden_state = block(hidden_state)
        return hidden_state


def gained_weights(model: LoopedGPT2) -> list[str | tuple[str, tuple[slice, slice]]]:
    """Value, output and MLP matrices; GPT-2 stores them transposed and fuses q, k and v: value is the last third."""
    value = (slice(None), slice(2 * WIDTH, 3 * WIDTH))
    names: list[str | tuple[str, tuple[slice, slice]]] = []
    for index in range(len(model.blocks)):
        attention, mlp = f"blocks.{index}.0.sublayer.attention", f"blocks.{index}.1.sublayer"
        names += [(f"{attention}.c_attn.weight", value), f"{attention}.c_proj.weight"]
        names += [f"{mlp}.c_fc.weight", f"{mlp}.c_proj.weight"]
    return names


def build(num_rounds: int, rule: str) -> tuple[LoopedGPT2, VisitCounts, ResidualScales]:
    """Count visits in a dry run of the unscaled model, then build it with the rule's numbers."""
    torch.manual_seed(0)
    counts = trace_visits(LoopedGPT2(num_rounds, GroupScales()), token_ids())
    scales = apply_rule(rule, counts)
    torch.manual_seed(0)
    return LoopedGPT2(num_rounds, scales.groups[0]), counts, scales


def token_ids() -> Tensor:
    return torch.randint(VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(0))


def measure(model: LoopedGPT2, scales: ResidualScales) -> Alignment:
    """kappa of every attention and MLP on a batch of random tokens."""
    ids = token_ids()

    def forward() -> ForwardPass:
        states = model.final_states(ids)
        logits = functional.linear(states, model.tokens.weight)
        return ForwardPass(states, functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))

    unit = scales.groups[0].relative_branch
    sublayers = [
        Sublayer(
            f"block{index}.{kind}",
            kind,
            (tuple(n for n, p in model.named_parameters() if n.startswith(f"blocks.{index}.{part}.") and p.ndim == 2),),
            unit,
        )
        for index in range(NUM_BLOCKS)
        for part, kind in enumerate(("attention", "mlp"))
    ]
    return measure_alignment(model, forward, sublayers)


def main() -> None:
    """Print counts, scales and kappa over the rounds."""
    for rule in ("unscaled", "deepnorm", "deeploop"):
        for num_rounds in (1, 4):
            model, counts, scales = build(num_rounds, rule)
            numbers = scales.groups[0]
            sys.stdout.write(
                f"{rule}, {counts.num_blocks} blocks x {num_rounds} rounds: skip {numbers.skip:.3f},"
                f" gain {numbers.gain:.3f}, kappa {measure(model, scales).kappa:.2f}\n"
            )


if __name__ == "__main__":
    main()

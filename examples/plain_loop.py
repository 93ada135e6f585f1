"""A loop that is no transformer: trace its visits, take a rule's numbers, apply them, measure how aligned it is.

    python examples/plain_loop.py

Nothing here knows of attention: what is needed is a module whose blocks are called several times.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from depthscale.alignment.kappa import Alignment
from depthscale.alignment.measure import ForwardPass, measure_alignment
from depthscale.alignment.retrofit import ScaledResidual, apply_init_gain
from depthscale.alignment.sublayers import module_sublayers
from depthscale.alignment.tracing import trace_visits
from depthscale.residual import GroupScales, deeploop, unscaled


class Loop(nn.Module):
    """``num_blocks`` two-layer networks, visited ``num_rounds`` times; post-norm, skip and gain from a rule."""

    def __init__(self, num_blocks: int, num_rounds: int, width: int, scales: GroupScales) -> None:
        super().__init__()
        self.num_rounds = num_rounds
        self.blocks = nn.ModuleList(
            ScaledResidual(
                nn.Sequential(
                    nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
                ),
                skip=scales.skip,
                after=nn.RMSNorm(width),
            )
            for _ in range(num_blocks)
        )
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.xavier_normal_(parameter)
                apply_init_gain(self, [name], scales.gain)

    def forward(self, hidden_state: Tensor) -> Tensor:
        for _ in range(self.num_rounds):
            for block in self.blocks:
                hidden_state = block(hidden_state)
        return hidden_state


def measure(num_rounds: int, scaled: bool, width: int = 32, num_blocks: int = 2) -> Alignment:
    """kappa of a loop on random vectors, with DeepLoop's scales or with none."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(16, width), torch.randn(16, width)
    # Counting needs no scales: trace an unscaled loop, then build the one that the rule asks for.
    counts = trace_visits(Loop(num_blocks, num_rounds, width, GroupScales()), inputs)
    scales = (deeploop if scaled else unscaled)(counts)
    loop = Loop(num_blocks, num_rounds, width, scales.groups[0])

    def forward() -> ForwardPass:
        states = loop(inputs)
        return ForwardPass(states, (states - targets).square().mean())

    return measure_alignment(loop, forward, module_sublayers(loop, [f"blocks.{index}" for index in range(num_blocks)]))


def main() -> None:
    """Print kappa over the rounds."""
    for scaled in (False, True):
        sys.stdout.write(f"{'deeploop' if scaled else 'unscaled'}: ")
        sys.stdout.write(", ".join(f"R={r} kappa {measure(r, scaled).kappa:.2f}" for r in (1, 2, 4, 8)) + "\n")


if __name__ == "__main__":
    main()

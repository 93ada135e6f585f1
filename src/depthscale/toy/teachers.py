"""Teachers: deep residual MLPs whose blocks are independent, tied, or correlated in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from depthscale.toy.config import TeacherConfig
from depthscale.toy.randomness import correlated_uniform, generator
from depthscale.toy.residual_pass import ResidualPass, StackWeights, rms_norm
from depthscale.toy.shapes import StudentShape


@dataclass(frozen=True)
class Teachers:
    """Several teachers of one kind side by side.

    Attributes:
        config: what they are.
        weights: replicates are the teachers.
        heads: [teachers, width, classes]: W_head^T, for the losses that have one.
    """

    config: TeacherConfig
    weights: StackWeights
    heads: Float[Tensor, "teachers width classes"]

    @property
    def shape(self) -> StudentShape:
        """As a stack: every block is one visit."""
        return StudentShape(blocks=self.config.blocks)

    def make_pass(self, batch: int, dtype: torch.dtype = torch.float32) -> ResidualPass:
        """Memory for passes over ``batch`` inputs."""
        config = self.config
        return ResidualPass(self.shape, len(config.seeds), batch, config.width, config.hidden, False, dtype)

    def outputs(
        self, memory: ResidualPass, inputs: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "teachers batch width"]:
        """RMSNorm(h_L) of inputs that are not normed yet."""
        return rms_norm(memory.forward(self.weights, rms_norm(inputs)[None]))


def make_teachers(config: TeacherConfig, fixed_head: bool) -> Teachers:
    """Draw one teacher per seed: default Linear initialization, W2 times 1 / sqrt(blocks).

    Args:
        config: sizes, correlation and seeds.
        fixed_head: the head that students are given, N(0, 1) / sqrt(width), in place of a default Linear.

    Source: arXiv 2602.05970's code; the correlation dial between its two ends is ours.
    """
    drawn = [_one(config, seed) for seed in config.seeds]
    weights = StackWeights(*(torch.stack(parts, dim=1) for parts in zip(*drawn, strict=True)))
    heads = torch.stack([_head(config, seed, fixed_head) for seed in config.seeds])
    return Teachers(config, weights, heads)


def _one(config: TeacherConfig, seed: int) -> Sequence[Tensor]:
    width, hidden, blocks = config.width, config.hidden, config.blocks
    up = _draw(config, seed, "up", width**-0.5, (width, hidden))
    bias = _draw(config, seed, "bias", width**-0.5, (1, hidden))
    down = _draw(config, seed, "down", hidden**-0.5, (hidden, width))
    return torch.cat([up, bias], dim=1), down * blocks**-0.5


def _draw(config: TeacherConfig, seed: int, name: str, bound: float, shape: tuple[int, ...]) -> Tensor:
    source = generator(seed, f"teacher {name}")
    return correlated_uniform(source, bound, config.blocks, shape, config.rho)


def _head(config: TeacherConfig, seed: int, fixed_head: bool) -> Tensor:
    source, shape = generator(seed, "teacher head"), (config.width, config.classes)
    if fixed_head:
        return torch.randn(*shape, generator=source) * config.width**-0.5
    return correlated_uniform(source, config.width**-0.5, 1, shape, 0.0)[0]

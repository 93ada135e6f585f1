"""Looped models in a training loop of your own, in torchtitan's order: meta device, FSDP2, storage, initial weights.

    torchrun --nproc_per_node 2 examples/fsdp2_training.py
    python examples/fsdp2_training.py                        one process

No Trainer is involved. Two models take the same road: this package's, and a plain loop that knows nothing of it. Both
are built without memory, sharded, given storage, drawn, trained, saved half way and resumed by a second copy that never
drew its weights. Gains act on shards; blocks are gathered once a step, however often they are visited.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional

from depthscale import (
    DepthPlan,
    LoopedLMConfig,
    LoopedLMForCausalLM,
    ScaledResidual,
    apply_init_gain,
    apply_rule,
    forget_init_gain,
    require_placement,
    shard_looped,
)
from depthscale.errors import PlanError

WIDTH, VOCABULARY, ROWS, TOKENS = 32, 97, 4, 16
PLAN = DepthPlan.looped(2, 3)

Step = Callable[[nn.Module, Tensor], Tensor]


class PlainLoop(nn.Module):
    """Two-layer networks in a post-norm loop over embedded tokens, as anybody might write it."""

    def __init__(self, rule: str = "deeploop") -> None:
        super().__init__()
        scales = apply_rule(rule, PLAN.counts())
        require_placement(scales, "post")
        self.scales = scales.groups[0]
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            ScaledResidual(
                nn.Sequential(
                    nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=False)
                ),
                skip=self.scales.skip,
                after=nn.RMSNorm(WIDTH),
            )
            for _ in range(PLAN.num_blocks)
        )
        # Without memory this only announces what will be multiplied, so that a checkpoint can be loaded right away.
        self.apply_gain()

    def apply_gain(self) -> None:
        """Multiply initial weights of the blocks' matrices by beta: nothing happens to weights that have it already."""
        matrices = [name for name, p in self.named_parameters() if name.startswith("blocks.") and p.ndim == 2]
        apply_init_gain(self, matrices, self.scales.gain)

    def init_weights(self) -> None:
        """Draw every weight, then apply the gain, as torchtitan's models do once they have storage."""
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        for name, parameter in self.blocks.named_parameters():
            if parameter.ndim == 2:
                nn.init.xavier_normal_(parameter)
            else:
                assert "after" in name, "only the norms have vectors"
                nn.init.ones_(parameter)
        forget_init_gain(self)
        self.apply_gain()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits ``[batch, tokens, vocabulary]``."""
        hidden_state = functional.rms_norm(self.embedding(input_ids), (WIDTH,))
        for _ in range(PLAN.num_rounds):
            for block in self.blocks:
                hidden_state = block(hidden_state)
        return functional.linear(hidden_state, self.embedding.weight)


def looped_lm(rule: str = "deeploop") -> LoopedLMForCausalLM:
    """This package's model, whose matrices are drawn with the gain in their standard deviation."""
    scales = apply_rule(rule, PLAN.counts())
    config = LoopedLMConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_attention_heads=2,
        intermediate_size=85,
        norm_placement="post",
        plan=PLAN.to_dict()["segments"],
        residual_scales=[dataclasses.asdict(group) for group in scales.groups],
    )
    return LoopedLMForCausalLM(config)


def looped_lm_loss(model: nn.Module, input_ids: Tensor) -> Tensor:
    loss: Tensor = model(input_ids, labels=input_ids).loss
    return loss


def plain_loss(model: nn.Module, input_ids: Tensor) -> Tensor:
    logits = model(input_ids)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


#: Name -> (model without weights, its loss).
MODELS: dict[str, tuple[Callable[[], nn.Module], Step]] = {
    "looped_lm": (looped_lm, looped_lm_loss),
    "plain_loop": (PlainLoop, plain_loss),
}


def start(build: Callable[[], nn.Module]) -> nn.Module:
    """A model that has storage on every process for its own shards, and no weights yet."""
    with torch.device("meta"):
        model = build()
    shard_looped(model)
    model.to_empty(device="cpu")
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def batch(step: int) -> Tensor:
    """This process's rows of the step's batch: the same tokens in all, however many processes share them."""
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(step))
    return ids.chunk(dist.get_world_size())[dist.get_rank()]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Step, steps: range) -> list[float]:
    """One optimizer step for each of ``steps``; the losses, averaged over the processes."""
    losses = []
    for step in steps:
        loss = loss_of(model, batch(step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every process writes its own shards."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every process reads its own shards, in place."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def train_and_resume(name: str, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of steps 3 to 5, unbroken and resumed from a checkpoint after step 2."""
    build, loss_of = MODELS[name]
    torch.manual_seed(0)
    model = start(build)
    model.init_weights()
    optimizer = optimizer_of(model)
    train(model, optimizer, loss_of, range(3))
    save(folder, model, optimizer)
    unbroken = train(model, optimizer, loss_of, range(3, 6))

    resumed = start(build)
    optimizer = optimizer_of(resumed)
    load(folder, resumed, optimizer)
    if isinstance(resumed, PlainLoop):
        resumed.apply_gain()  # in its place in the program, and without effect: the weights are marked
    return unbroken, train(resumed, optimizer, loss_of, range(3, 6))


def refusal() -> str:
    """What is said of DeepLoop's scales on a pre-norm block."""
    try:
        require_placement(apply_rule("deeploop", PLAN.counts()), "pre")
    except PlanError as error:
        return str(error)
    raise AssertionError("a pre-norm block took a skip scale")


def connect() -> None:
    """Join the processes that torchrun started, or be the only one."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def main() -> None:
    """Train both models, resume them, and print the losses side by side."""
    connect()
    torch.set_num_threads(1)
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    for name in MODELS:
        unbroken, resumed = train_and_resume(name, Path(str(shared[0])) / name)
        if dist.get_rank() == 0:
            numbers = " ".join(f"{loss:.6f}" for loss in unbroken)
            again = " ".join(f"{loss:.6f}" for loss in resumed)
            sys.stdout.write(f"{name} on {dist.get_world_size()} processes: {numbers}; resumed: {again}\n")
    if dist.get_rank() == 0:
        sys.stdout.write(f"deeploop on a pre-norm block: {refusal()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

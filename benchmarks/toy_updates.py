"""Student updates per second, all replicates of a depth at once beside a plain loop that trains one student at a time.

    python benchmarks/toy_updates.py [--repeats 5] [--depths 6 12 16 24 32 48] [--temperatures 16] [--output FILE]

The paper's setting: batch 1,024, width 32, a teacher of 128 blocks, KL with the student's own head, Adam. The plain
loop is the usual one: modules, autograd, the teacher's pass for every student. It is timed eager and with its blocks
compiled (one graph for all blocks: compiling the teacher whole takes minutes). One thread each; the three are timed in
turn and a ratio is taken within a turn. Times are CPU seconds of the process, which a busy machine disturbs least. The
rate over the grid is that of all depths trained equally long. Targets: 4 beside eager, 2.5 beside compiled.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from record import write_record
from spread import spread
from torch import Tensor, nn

from depthscale.toy.config import LossConfig, TeacherConfig, TrainConfig
from depthscale.toy.losses import make_targets
from depthscale.toy.randomness import normal_inputs
from depthscale.toy.residual_pass import rms_norm
from depthscale.toy.shapes import StudentShape
from depthscale.toy.students import StudentGroup
from depthscale.toy.teachers import make_teachers

TARGET_EAGER, TARGET_COMPILED = 4.0, 2.5
WIDTH, HIDDEN, CLASSES, TEACHER_BLOCKS, BATCH, RATE = 32, 128, 128, 128, 1024, 6e-4


class Block(nn.Module):
    """x + W2 relu(W1 RMSNorm(x) + b1)^2."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        return block_step(x, self.up.weight, self.up.bias, self.down.weight)


def block_step(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    """The block's arithmetic, as a function of its weights."""
    normed = nn.functional.rms_norm(x, (WIDTH,))
    return x + nn.functional.linear(torch.relu(nn.functional.linear(normed, up, bias)) ** 2, down)


class Stack(nn.Module):
    """Teacher or student of the plain loop."""

    def __init__(self, blocks: int, is_teacher: bool, step: Callable[..., Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.step = step
        for block in self.blocks:
            block.down.weight.data.mul_(blocks**-0.5 if is_teacher else 0.0)
        if not is_teacher:
            self.head.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = nn.functional.rms_norm(x, (WIDTH,))
        for block in self.blocks:
            x = self.step(x, block.up.weight, block.up.bias, block.down.weight)
        return self.head(nn.functional.rms_norm(x, (WIDTH,)))


def plain_update(depth: int, step: Callable[..., Tensor], teacher: Stack) -> Callable[[], None]:
    """One update of one student, as a function to be timed."""
    student = Stack(depth, False, step)
    adam = torch.optim.Adam(student.parameters(), lr=RATE)

    def update() -> None:
        inputs = torch.randn(BATCH, WIDTH)
        with torch.no_grad():
            target = torch.log_softmax(teacher(inputs), dim=-1)
        found = torch.log_softmax(student(inputs), dim=-1)
        loss = nn.functional.kl_div(found, target, reduction="batchmean", log_target=True)
        adam.zero_grad()
        loss.backward()
        adam.step()

    return update


def batched_update(depth: int, temperatures: Sequence[float]) -> Callable[[], None]:
    """One update of all students of one depth."""
    teacher = TeacherConfig(rho=0.0, seeds=(0,))
    loss = LossConfig(kind="kl_own_head", temperatures=tuple(temperatures))
    train = TrainConfig(steps=1_000_000, batch=BATCH, rate=RATE)
    teachers = make_teachers(teacher, fixed_head=False)
    group = StudentGroup(StudentShape(depth), 1.0, teachers, loss, train)
    memory, number = teachers.make_pass(BATCH), iter(range(train.steps))

    def update() -> None:
        step = next(number)
        inputs = normal_inputs(0, "training", step, BATCH, WIDTH)
        targets = make_targets(loss, 1, teachers.heads, teachers.outputs(memory, inputs))
        group.step(rms_norm(inputs)[None], targets, RATE, step)

    return update


def seconds(update: Callable[[], None]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    update()
    return time.process_time() - start


def main() -> None:
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 12, 16, 24, 32, 48])
    parser.add_argument("--temperatures", type=int, default=16)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count = arguments.temperatures
    temperatures = [10 ** (-2 + 2 * i / max(count - 1, 1)) for i in range(count)]
    compiled_step = torch.compile(block_step, fullgraph=True, dynamic=False)
    teachers = {
        name: Stack(TEACHER_BLOCKS, True, step) for name, step in (("eager", block_step), ("compiled", compiled_step))
    }
    updates = {
        depth: {
            "batched": batched_update(depth, temperatures),
            "eager": plain_update(depth, block_step, teachers["eager"]),
            "compiled": plain_update(depth, compiled_step, teachers["compiled"]),
        }
        for depth in arguments.depths
    }
    for ways in updates.values():  # warm-up, and where graphs are compiled
        for update in ways.values():
            update()
            update()
    turns: list[dict[int, dict[str, float]]] = []
    for _ in range(arguments.repeats):
        turn: dict[int, dict[str, float]] = {}
        for depth, ways in updates.items():
            taken = {name: seconds(update) for name, update in ways.items()}
            turn[depth] = {**taken, "batched": taken["batched"] / count}
        turns.append(turn)

    def ratios(baseline: str, depths: Sequence[int]) -> list[float]:
        return [sum(t[d][baseline] for d in depths) / sum(t[d]["batched"] for d in depths) for t in turns]

    grid = {name: spread(ratios(name, arguments.depths)) for name in ("eager", "compiled")}
    record = {
        "updates_per_second": {
            name: len(arguments.depths) / statistics.median(sum(t[d][name] for d in arguments.depths) for t in turns)
            for name in ("batched", "eager", "compiled")
        },
        "ratio_over_the_grid": grid,
        "ratio_by_depth": {depth: {name: spread(ratios(name, [depth])) for name in grid} for depth in arguments.depths},
        "replicates": count,
        "repeats": arguments.repeats,
        "targets": {"eager": TARGET_EAGER, "compiled": TARGET_COMPILED},
        "holds": {
            "eager": grid["eager"]["median"] >= TARGET_EAGER,
            "compiled": grid["compiled"]["median"] >= TARGET_COMPILED,
        },
        "num_threads": 1,
        "torch": torch.__version__,
    }
    write_record(record, arguments.output)


if __name__ == "__main__":
    main()

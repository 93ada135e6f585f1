"""One job from its settings to its result: all students side by side on one stream of inputs.

Until its rate falls a run of m steps is the same as a longer one. At each milestone m the job branches off, lets the
rate fall as a run of m steps would, measures, and goes back: the result at m is that of a run meant to end there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscale.errors import ResultError, RunInterruptedError
from depthscale.runs.interruption import Interruption
from depthscale.runs.layout import METRICS_FILE
from depthscale.runs.metrics import append_metric, keep_until
from depthscale.runs.results import write_result
from depthscale.toy.checkpoint import STATE_FILE, load_state, save_state
from depthscale.toy.config import StudentsConfig, ToyJob
from depthscale.toy.losses import make_targets
from depthscale.toy.randomness import normal_inputs
from depthscale.toy.residual_pass import ResidualPass, rms_norm
from depthscale.toy.signatures import signatures, tolerance
from depthscale.toy.students import StudentGroup
from depthscale.toy.teachers import Teachers, make_teachers

#: Inputs that signatures are measured on.
SIGNATURE_INPUTS = 2048
#: Lines of metrics a job writes.
_METRIC_LINES = 200

Progress = Callable[[int, str], None]


class JobRunner:
    """A job in progress.

    Args:
        job: settings.
        directory: where state, metrics and result lie.
    """

    def __init__(self, job: ToyJob, directory: Path) -> None:
        self.job, self.directory = job, directory
        self.teachers = make_teachers(job.teacher, job.loss.kind == "kl_teacher_head")
        self.families: list[tuple[StudentsConfig, int]] = []
        self.groups: list[StudentGroup] = []
        for family in job.students:
            for depth in family.depths:
                for factor in family.rate_factors:
                    group = StudentGroup(family.shape(depth), factor, self.teachers, job.loss, job.train)
                    self.groups.append(group)
                    self.families.append((family, depth))
        #: Test losses by end: split -> group -> replicate.
        self.measured: dict[str, dict[str, list[list[float]]]] = {}
        self.step = 0
        self.seconds = 0.0
        self._teacher_memory = self.teachers.make_pass(job.train.batch)
        # Rates are chosen on one split and reported on another.
        chooses = any(len(family.rate_factors) > 1 for family in job.students)
        self._splits = {name: self._test_states(name) for name in (("report", "tuning") if chooses else ("report",))}

    def run(self, interruption: Interruption, progress: Progress) -> Path:
        """Train from where the state left off to the end; the result's path.

        Raises:
            RunInterruptedError: a signal came; the state is kept.
            CheckpointError: the state in the directory is of other settings, or damaged.
        """
        settings = self.job.model_dump_json()
        self._make_directory()
        saved = load_state(self.directory, self.groups, settings)
        if saved is not None:
            self.step, kept = saved
            self.measured, self.seconds = kept["measured"], kept["seconds"]
        metrics = self.directory / METRICS_FILE
        keep_until(metrics, self.step)
        train, last_save = self.job.train, time.monotonic()
        every = max(1, train.steps // _METRIC_LINES)
        branches = train.branches()
        while self.step < train.steps:
            begun = time.monotonic()
            for end in branches.get(self.step, ()):
                self._branch(end, interruption)
                self._end_if_asked(interruption, settings)
            losses = self._update(self.step, train.steps)
            self.step += 1
            self.seconds += time.monotonic() - begun
            if self.step % every == 0:
                append_metric(metrics, {"step": self.step, "loss": [each.tolist() for each in losses]})
                progress(self.step, f"loss {float(torch.cat(losses).nanmedian()):.3g}")
            self._end_if_asked(interruption, settings)
            if time.monotonic() - last_save > train.checkpoint_seconds:
                self._save(settings)
                last_save = time.monotonic()
        self._measure(train.steps)
        path = write_result(self.directory, "toy_job", self._result())
        (self.directory / STATE_FILE).unlink(missing_ok=True)
        return path

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise ResultError(f"cannot make {self.directory}: {reason}; choose another --out") from error

    def _save(self, settings: str) -> None:
        kept = {"measured": self.measured, "seconds": self.seconds}
        save_state(self.directory, self.step, self.groups, kept, settings)

    def _end_if_asked(self, interruption: Interruption, settings: str) -> None:
        if interruption.signal_number is not None:
            self._save(settings)
            message = f"interrupted at step {self.step}; give the same command again to go on"
            raise RunInterruptedError(message, interruption.signal_number)

    # -- training -----------------------------------------------------------------------------------

    def _update(self, step: int, end: int) -> list[Tensor]:
        """One update of every group, as a run of ``end`` steps makes it."""
        train = self.job.train
        inputs = normal_inputs(train.data_seed, "training", step, train.batch, self.job.teacher.width)
        states = self.teachers.outputs(self._teacher_memory, inputs)
        targets = make_targets(self.job.loss, len(train.seeds), self.teachers.heads, states)
        normed, rate = rms_norm(inputs)[None], train.rate_at(step, end)
        return [group.step(normed, targets, rate, step) for group in self.groups]

    def _branch(self, end: int, interruption: Interruption) -> None:
        """Measure a run of ``end`` steps and go back; nothing where that is done, or where a signal cuts it short."""
        if str(end) in self.measured:
            return
        before = [group.snapshot() for group in self.groups]
        for step in range(self.step, end):
            # A branch may take hours: a worker that is asked to end has a minute.
            if interruption.requested:
                break
            self._update(step, end)
        else:
            self._measure(end)
        for group, saved in zip(self.groups, before, strict=True):
            group.restore(saved)

    # -- measuring ----------------------------------------------------------------------------------

    def _measure(self, end: int) -> None:
        self.measured[str(end)] = {
            split: [self._losses(group, split).tolist() for group in self.groups] for split in self._splits
        }

    def _losses(self, group: StudentGroup, split: str, schedule: Any = None, batches: int | None = None) -> Tensor:
        train, found = self.job.train, []
        for index in range(train.test_batches if batches is None else batches):
            inputs, states = self._splits[split][index]
            targets = make_targets(self.job.loss, len(train.seeds), self.teachers.heads, states)
            found.append(group.losses(inputs, targets, schedule))
        return torch.stack(found).double().mean(dim=0)

    def _test_states(self, split: str) -> list[tuple[Tensor, Tensor]]:
        train = self.job.train
        memory = self.teachers.make_pass(train.test_batch)
        found = []
        for index in range(train.test_batches):
            inputs = normal_inputs(train.data_seed, split, index, train.test_batch, self.job.teacher.width)
            found.append((rms_norm(inputs)[None], self.teachers.outputs(memory, inputs)))
        return found

    # -- result -------------------------------------------------------------------------------------

    def _result(self) -> dict[str, Any]:
        job = self.job
        inputs = normal_inputs(job.train.data_seed, "signatures", 0, SIGNATURE_INPUTS, job.teacher.width)
        normed = rms_norm(inputs)[None]
        updates = sum(len(group.replicates) for group in self.groups) * job.train.steps
        return {
            "name": job.name,
            "job": job.model_dump(mode="json"),
            "ends": list(job.train.ends),
            "units": {"loss": "mean squared difference" if job.loss.kind == "mse" else "nats", "angle": "radians"},
            "signature_inputs": SIGNATURE_INPUTS,
            "teachers": [
                {"seed": seed, **found}
                for seed, found in zip(
                    job.teacher.seeds, signatures(teacher_states(self.teachers, normed)), strict=True
                )
            ],
            "students": [
                record
                for number, (group, (family, depth)) in enumerate(zip(self.groups, self.families, strict=True))
                for record in self._records(number, group, family, depth, normed)
            ],
            "seconds": self.seconds,
            "updates": updates,
            "num_threads": torch.get_num_threads(),
        }

    def _records(
        self, number: int, group: StudentGroup, family: StudentsConfig, depth: int, inputs: Tensor
    ) -> list[dict[str, Any]]:
        job, shape = self.job, group.shape
        tolerances = tolerance(lambda schedule: self._losses(group, "report", schedule, batches=1), shape.schedule)
        untrained = StudentGroup(shape, 1.0, self.teachers, job.loss, job.train)
        starts = self._losses(untrained, "report", batches=1).tolist()
        # Beside the start on the same inputs, or a student that hardly moved could pass for a diverged one.
        beside_starts = self._losses(group, "report", batches=1).tolist()
        records = []
        for r, replicate in enumerate(group.replicates):
            losses = {
                split: {end: by_split[split][number][r] for end, by_split in self.measured.items()}
                for split in self._splits
            }
            last = losses["report"][str(job.train.steps)]
            diverged_at = int(group.diverged_at[r])
            diverged = diverged_at >= 0 or not math.isfinite(last) or not beside_starts[r] <= starts[r]
            records.append(
                {
                    "family": family.name,
                    "depth": depth,
                    "blocks": shape.blocks,
                    "rounds": shape.rounds,
                    "order": shape.order,
                    "rule": shape.rule,
                    "num_parameters": shape.num_parameters(job.teacher.width, job.teacher.hidden),
                    "deeper_than_teacher": depth > job.teacher.blocks,
                    "rate_factor": group.rate_factor,
                    "teacher_seed": replicate.teacher,
                    "temperature": None if job.loss.kind == "mse" else replicate.temperature,
                    "seed": replicate.seed,
                    "outcome": "diverged" if diverged else "finished",
                    "diverged_at": diverged_at if diverged_at >= 0 else None,
                    "loss_untrained": starts[r],
                    "losses": losses,
                    "signature": None if diverged else signatures(group.states(inputs, r))[0],
                    "tolerance": None if diverged else tolerances[r],
                }
            )
        return records


def teacher_states(teachers: Teachers, normed: Tensor) -> list[Tensor]:
    """Every state of every teacher in float64, h_0 first."""
    config = teachers.config
    memory = ResidualPass(
        teachers.shape, len(config.seeds), normed.shape[1], config.width, config.hidden, False, dtype=torch.float64
    )
    trace: list[Tensor] = []
    memory.forward(teachers.weights.double(), normed.double(), trace=trace)
    return trace

"""How long an arm trains that is to spend as much as another cell: steps from exact FLOPs or from measured seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from depthscale.errors import ConfigError
from depthscale.runs.comparison_config import CellKey
from depthscale.runs.study_config import ArmConfig, StudyFile
from depthscale.studies.run_cost import run_cost

#: Seconds of one training step of a cell, as measured by a probe.
SecondsPerStep = Mapping[CellKey, float]


def cells_to_probe(file: StudyFile) -> list[CellKey]:
    """Cells whose seconds per step must be known before the study's steps are."""
    waiting = [arm for arm in file.study.arms if arm.waits_for_match and arm.match and arm.match.spend == "time"]
    return list(dict.fromkeys(key for arm in waiting for key in _sides(file, arm)))


def with_matched_steps(
    file: StudyFile, vocab_size: int, seconds_per_step: SecondsPerStep | None = None
) -> tuple[StudyFile, list[dict[str, Any]]]:
    """The study with the steps of every matched arm computed, and on what basis each was.

    FLOPs: steps = steps of the other cell * its FLOPs per step / this arm's FLOPs per step, rounded. Time: the same
    with measured seconds per step.

    Raises:
        ConfigError: an arm is to match time and no measurement is at hand, or FLOPs where rounds are drawn at random,
            or what it may spend ends within its warm-up.
    """
    arms, notes = [], []
    for arm in file.study.arms:
        if not arm.waits_for_match or arm.match is None:
            arms.append(arm)
            continue
        own, other = _sides(file, arm)
        seed = file.study.seeds[0]
        config, rival = file.cell_config(own, seed), file.cell_config(other, seed)
        cost, matched = run_cost(config, vocab_size), run_cost(rival, vocab_size)
        if arm.match.spend == "flops":
            if config.train.rounds is not None or rival.train.rounds is not None:
                raise ConfigError(
                    f"arm '{arm.name}' matches the FLOPs of '{other.arm}', and those of rounds drawn at random are not"
                    " known beforehand; match time, or leave train.rounds out"
                )
            step, step_matched = (float(c.flops_per_token * c.tokens_per_step) for c in (cost, matched))
            unit = "FLOPs per step, counted"
        else:
            if seconds_per_step is None:
                raise ConfigError(f"arm '{arm.name}' matches measured time, which is not measured yet")
            step, step_matched = seconds_per_step[own], seconds_per_step[other]
            unit = "seconds per step, measured by a probe of both on this machine"
        steps = round(matched.steps * step_matched / step)
        if steps <= config.train.warmup_steps:
            raise ConfigError(
                f"arm '{arm.name}' may spend {steps} steps to match '{other.arm}' at {other.rounds} rounds, which is"
                f" not beyond its warm-up of {config.train.warmup_steps}; give the study more steps or shorten"
                " train.warmup_steps"
            )
        arms.append(arm.model_copy(update={"train": {**arm.train, "steps": steps}}))
        notes.append(
            {
                "arm": arm.name,
                "rounds": own.rounds,
                "steps": steps,
                "matches": {"arm": other.arm, "rounds": other.rounds, "steps": matched.steps},
                "spend": arm.match.spend,
                "unit": unit,
                "per_step": step,
                "per_step_matched": step_matched,
            }
        )
    return file.with_study(arms=tuple(arms)), notes


def _sides(file: StudyFile, arm: ArmConfig) -> tuple[CellKey, CellKey]:
    """The arm's own cell and the one whose spending it matches, at the base run's length."""
    assert arm.match is not None
    return CellKey(arm.name, file.study.rounds_of(arm.name)[0]), CellKey(arm.match.arm, arm.match.rounds)

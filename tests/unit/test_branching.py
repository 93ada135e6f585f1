"""Decay branches equal the run made alone, and refuse another run's state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import observe
from rich.console import Console
from safetensors.torch import load_file
from tiny_run import make_run

from depthscale.errors import ConfigError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides
from depthscale.runs.metrics import read_metrics
from depthscale.training.run import train_run

WSD = ("train.schedule=wsd", "train.warmup_steps=2", "train.decay_fraction=0.5", "train.log_every=1")


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Ten steps, flat until the fifth; a run of six steps decays from the third.
    return make_run(tmp_path_factory.mktemp("trunk"), *WSD, "train.steps=10", "train.branch_at=[3]")


def shorter(trunk: Path, *overrides: str) -> RunConfig:
    tables = with_overrides(read_toml(trunk / "config.toml"), ["train.steps=6", "train.branch_at=[]", *overrides])
    return validate(RunConfig, tables, "branch")


def test_a_branch_is_the_run_made_alone_bit_for_bit(trunk: Path) -> None:
    alone = train_run(shorter(trunk), trunk.parent / "alone")
    branch = train_run(shorter(trunk, "branch.run=../run"), trunk.parent / "branch")
    assert branch["final"] == alone["final"]
    weights = [load_file(trunk.parent / name / "checkpoint" / "model.safetensors") for name in ("alone", "branch")]
    assert all(bool((weights[0][name] == weights[1][name]).all()) for name in weights[0])
    records = [read_metrics(trunk.parent / name / "metrics.jsonl") for name in ("alone", "branch")]
    losses = [[(r["step"], r["loss_nats"], r["lr"]) for r in found if r["kind"] == "train"] for found in records]
    assert losses[0] == losses[1]
    # Only the decay was trained: the records say where the branch was taken up.
    assert [record["step"] for record in records[1] if record["kind"] == "resumed"] == [3]


def test_without_a_state_to_go_on_from_the_branch_begins_at_its_first_step(trunk: Path, tmp_path: Path) -> None:
    console = Console(record=True, quiet=False, file=(tmp_path / "said").open("w"))
    result = train_run(shorter(trunk, "branch.run=../nothing"), trunk.parent / "orphan", console=console)
    assert result["step"] == 6
    assert "begins at its first step" in console.export_text()


def test_a_branch_that_was_killed_while_it_began_begins_again(trunk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trunk's state is linked file by file; a part of it must not pass for a damaged checkpoint."""
    link, made = os.link, []

    def killed(source: str, target: str, **named: object) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(target)
        link(source, target)

    config = shorter(trunk, "branch.run=../run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            train_run(config, trunk.parent / "killed")
    result = train_run(config, trunk.parent / "killed", resume=True)
    assert (result["step"], result["resumed"]) == (6, 1)


@pytest.mark.slow  # two processes of their own
def test_two_processes_branch_off_together(trunk: Path) -> None:
    """The first one sets the state up; the other must wait for it, however long that takes."""
    seen = observe(Path(__file__).with_name("branching_worker.py"), trunk.parent / "seen.json")
    assert seen == {"step": 6, "resumed": 1, "taken_up": [3, 3]}


def test_a_branch_of_another_run_is_refused(trunk: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not this run up to step 3: a branch may differ in train\.steps"):
        train_run(shorter(trunk, "branch.run=../run", "train.lr=1e-4"), trunk.parent / "other")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("train.schedule=cosine", "branch.run=../run"), "set train.schedule to 'wsd'"),
        (("train.branch_at=[1]",), "within the flat part, steps 2 to 3"),
        (("train.schedule=cosine", "train.branch_at=[3]"), "no flat part"),
        (("train.warmup_steps=4", "branch.run=../run"), "within the warm-up of 4"),
    ],
)
def test_what_cannot_branch_is_one_line(trunk: Path, overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shorter(trunk, *overrides)

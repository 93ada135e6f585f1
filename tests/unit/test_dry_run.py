"""``depthscale train --dry-run``: what a recipe would be and cost, without memory, network or tokenizer."""

import math
import re
from pathlib import Path

import pytest
import torch
from command_line import one_line, run
from scipy import stats
from torch.utils.flop_counter import FlopCounterMode

from depthscale.budget.hardware import ACCELERATORS, accelerator, device_hours
from depthscale.errors import DataError, PlanError
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides
from depthscale.runs.study_config import StudyFile
from depthscale.studies.recipe_paper import SIZES, paper_size
from depthscale.studies.recipe_resolution import resolution_sentences
from depthscale.training.dry_run import dry_run
from depthscale.training.model import model_config
from depthscale.training.tokenizer import byte_tokenizer

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(size: str, *overrides: str) -> StudyFile:
    path = RECIPES / f"gpt2-{size}-looped.toml"
    return validate(StudyFile, with_overrides(read_toml(path), overrides), str(path))


@pytest.mark.parametrize(
    ("size", "parameters", "nominal"),
    # By hand: K blocks of four d x d and three d x f matrices, two gains of d and two of 128; V x d; two outer gains.
    [("small", 123_555_072, 124e6), ("medium", 353_461_248, 350e6)],
)
def test_the_recipes_have_the_papers_size(size: str, parameters: int, nominal: float) -> None:
    for rounds in (1, 7):
        cost = dry_run(recipe(size).run_config("pre", rounds, seed=1), num_processes=8)
        assert cost.parameters == parameters
        assert cost.parameters == pytest.approx(nominal, rel=0.01)
        assert cost.tokens == 100_000 * 480 * 1_024
    heads = {"small": 6, "medium": 8}[size]
    config = recipe(size).run_config("deeploop", 7, seed=1)
    assert config.model.num_attention_heads == heads
    assert config.model.resolved_head_dim == 128
    assert config.model.resolved_intermediate_size == 8 * config.model.hidden_size // 3
    found = paper_size(config.plan.blocks, config.model.hidden_size)
    assert found is not None
    assert found.name == size


def test_flops_are_those_that_torch_counts_on_the_meta_device() -> None:
    config = recipe("small").run_config("deeploop", 3, seed=1)
    with torch.device("meta"):
        model = LoopedLMForCausalLM(model_config(config, byte_tokenizer(), 50_257))
        tokens = torch.zeros(1, 1_024, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    cost = dry_run(config)
    # The counter takes fused attention's backward pass at 2.5 times its forward, the budget at 2.
    assert cost.flops_per_token == pytest.approx(counter.get_total_flops() / 1_024, rel=0.02)
    assert cost.training_flops == cost.flops_per_token * cost.tokens


def test_cost_grows_with_rounds_and_parameters_do_not() -> None:
    costs = {rounds: dry_run(recipe("small").run_config("deeploop", rounds, seed=1)) for rounds in (1, 3, 5, 7)}
    assert len({cost.parameters for cost in costs.values()}) == 1
    steps = [costs[r + 2].flops_per_token - costs[r].flops_per_token for r in (1, 3, 5)]
    assert steps[0] == steps[1] == steps[2] > 0
    assert costs[7].memory_bytes > costs[1].memory_bytes > costs[1].state_bytes == 16 * costs[1].parameters


def test_muon_holds_one_moment_of_a_matrix() -> None:
    adamw = dry_run(recipe("small").run_config("pre", 1, seed=1))
    muon = dry_run(recipe("small", "train.optimizer=muon").run_config("pre", 1, seed=1))
    assert adamw.state_bytes - muon.state_bytes == 4 * 12 * (4 * 768**2 + 3 * 768 * 2048)


def test_hours_follow_from_peak_and_utilization() -> None:
    # 3.6e18 FLOP at half of 989e12 FLOP/s.
    assert device_hours(3.6e18, accelerator("H200"), 0.5) == pytest.approx(3.6e18 / (0.5 * 989e12) / 3600)
    assert {device.peak_flops for device in ACCELERATORS.values()} == {989e12}
    with pytest.raises(PlanError, match="did you mean 'H200'"):
        accelerator("H20")
    for utilization in (0.0, 1.1, math.nan):
        with pytest.raises(PlanError, match="utilization came as"):
            device_hours(1.0, accelerator("H100"), utilization)


def test_one_seed_resolves_none_of_the_papers_gains() -> None:
    # Facts: 2.8077 - 2.7917, 2.7910 - 2.7679, 2.7700 - 2.7514 and so on: 0.015 to 0.028 nats.
    small, medium = SIZES
    assert [round(gain, 4) for gain in small.rule_gains().values()] == [0.0160, 0.0231, 0.0186]
    assert [round(gain, 4) for gain in medium.rule_gains().values()] == [0.0152, 0.0196, 0.0278]
    one = " ".join(resolution_sentences(small, num_seeds=1))
    assert "cannot resolve the paper's 0.0160 to 0.0231 nats" in one
    assert "is not known" in one
    five = " ".join(resolution_sentences(small, num_seeds=5))
    # The spread at which the exact test of five pairs has 80 % power, from the noncentral t distribution.
    spread = float(five.split("spread by at most ")[1].split(" ")[0])
    noncentrality = 0.0160 * math.sqrt(5) / spread
    assert stats.nct.sf(stats.t.ppf(0.975, 4), 4, noncentrality) == pytest.approx(0.8, abs=0.01)
    assert "no verdict is given" in " ".join(resolution_sentences(small, num_seeds=3))


def test_the_verb_prints_every_cell_beside_the_paper_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    assert run(monkeypatch, "train", str(RECIPES / "gpt2-small-looped.toml"), "--dry-run", "--processes", "8") == 0
    printed = capsys.readouterr().out
    for expected in ("123,555,072 parameters", "12 rows x 5 accumulated x 8 processes", "2.8627", "2.7514", "H200"):
        assert expected in printed
    for expected in ("40% of the bfloat16 peak", "989 TFLOP/s", "assumed, not measured", "cannot resolve"):
        assert expected in printed
    assert printed.count("deeploop") == 4
    assert list(tmp_path.iterdir()) == []


def test_more_seeds_cost_more_and_may_resolve_the_papers_gains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    path = str(RECIPES / "gpt2-small-looped.toml")
    hours = {}
    for seeds in ("[1]", "[1,2,3,4,5]"):
        assert (
            run(monkeypatch, "train", path, "--dry-run", "--set", f"study.seeds={seeds}", "--set", "train.lr=1e-3") == 0
        )
        said = " ".join(capsys.readouterr().out.split())
        (found,) = re.findall(r"All rows, (\d) seeds? each: ([\d.]+) on H100", said)
        hours[int(found[0])] = float(found[1])
    assert hours[5] == pytest.approx(5 * hours[1], rel=1e-3)
    assert "5 seeds resolve the paper's 0.0160 to 0.0231 nats" in said
    settings = ("--set", "study.seeds=[1,2,3,4,5]", "--seed", "7")
    assert run(monkeypatch, "train", path, "--dry-run", *settings) == 0
    assert "All rows, 1 seed each" in " ".join(capsys.readouterr().out.split()), "one seed was asked for"


def test_one_cell_and_a_plain_run_can_be_sized_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(RECIPES / "gpt2-medium-looped.toml")
    assert run(monkeypatch, "train", path, "--dry-run", "--arm", "pre", "--rounds", "7") == 0
    assert "2.5558" in (printed := capsys.readouterr().out)
    assert "2.6253" not in printed
    (tmp_path / "run.toml").write_text(
        "[plan]\nblocks = 2\n[model]\nhidden_size = 64\nnum_attention_heads = 4\n"
        "[train]\nsteps = 10\nbatch_rows = 2\nlr = 0.1\n"
    )
    assert run(monkeypatch, "train", str(tmp_path / "run.toml"), "--dry-run") == 0
    assert "paper" not in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arm", "deeplop"), "unknown arm 'deeplop'; did you mean 'deeploop'?"),
        (("--processes", "7"), "7 processes cannot share 480 rows evenly"),
        (("--set", "train.batch_rows=7"), "480 is no multiple of batch_rows 7"),
        (("--set", "model.vocab_size=0"), "model.vocab_size = 0"),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert run(monkeypatch, "train", str(RECIPES / "gpt2-small-looped.toml"), "--dry-run", *arguments) == 2
    assert words in one_line(capsys.readouterr().err)


def test_a_choice_of_cell_needs_a_study_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text("[plan]\nblocks = 2\n")
    assert run(monkeypatch, "train", str(tmp_path / "run.toml"), "--rounds", "2", "--seed", "1") == 2
    assert "is no study file, so --rounds, --seed choose nothing; use --set" in one_line(capsys.readouterr().err)


def test_a_vocabulary_that_is_not_stated_is_asked_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = recipe("small").run_config("pre", 1, seed=1).model_dump(exclude_none=True)
    del tables["model"]["vocab_size"]
    config = validate(RunConfig, tables, "test")
    with pytest.raises(DataError, match=r"openai-community/gpt2.* cannot be loaded .*set model.vocab_size"):
        dry_run(config)
    tables["data"]["tokenizer"] = "bytes"
    assert dry_run(validate(RunConfig, tables, "test")).parameters == 123_555_072 - (50_257 - 257) * 768

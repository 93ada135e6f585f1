"""``depthscale intervene`` and ``depthscale trace`` on a tiny model in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest
import torch
from probe_models import VOCABULARY
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from depthscale.probing.trace_prompts import ROLES
from depthscale.runs.results import read_result

torch.set_num_threads(1)

TEXT = "The Space Needle is in downtown Seattle. Bread is made of flour and water.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six layers, a tokenizer of single bytes, a corpus and prompts."""
    folder = tmp_path_factory.mktemp("evidence")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", *letters])}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = token_decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(folder / "model")
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "corpus").mkdir()
    for number in range(8):
        (folder / "corpus" / f"{number}.txt").write_text(f"{number} {TEXT}" * 2)
    prompts = [
        {"prompt": "The Space Needle is in", "subject": "Space Needle", "answer": "Seattle"},
        {"prompt": "Bread is made of", "subject": "Bread", "answer": "flour"},
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return folder


def intervene(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    return command_line.run(
        monkeypatch,
        "intervene",
        str(folder / "model"),
        *("--corpus", str(folder / "corpus"), "--tokens", "96", "--context", "17", "--draws", "1"),
        *("--similarity-tokens", "40", "--out", str(folder / "out"), *more),
    )


def test_interventions_end_in_a_verdict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert intervene(folder, monkeypatch) == 0
    printed = capsys.readouterr()
    result = read_result(folder / "out", "probe_interventions")
    assert " ".join(result["verdict"]["sentence"].split()) in " ".join(printed.out.split())
    assert result["num_tokens"] == 96
    assert result["model"]["num_visits"] == 6
    # A verdict on a model that was never trained would be one on nothing.
    assert result["verdict"]["regime"] is None
    assert set(result["evidence"]) == {"model", "random directions", "untrained", "shuffled"}
    assert all(result["evidence"].values())
    assert (folder / "out" / "figures" / "drops-bulk.svg").exists()
    assert (folder / "out" / "figures" / "drops-bulk.png").exists()


def test_a_measurement_goes_on_where_it_stopped_and_another_one_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(folder / "other")
    cheap = ("--no-nulls", "--similarity-tokens", "0", "--out", out)
    assert intervene(folder, monkeypatch, *cheap, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    ledger = folder / "other" / "interventions.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    assert intervene(folder, monkeypatch, *cheap, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["interventions"] == first["interventions"]
    assert again["verdict"] == first["verdict"]
    assert len(ledger.read_text().splitlines()) == len(lines)
    assert intervene(folder, monkeypatch, *cheap, "--seed", "1") == 2
    message = command_line.one_line(capsys.readouterr().err.splitlines(keepends=True)[-1])
    assert "name another folder with --out" in message


def test_a_trace_says_where_the_subject_acts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("trace", str(folder / "model"), str(folder / "prompts.jsonl"), "--out", str(folder / "out"))
    assert command_line.run(monkeypatch, *arguments, "--draws", "3", "--bos", "always") == 0
    assert "Restored effect" in capsys.readouterr().out
    result = read_result(folder / "out", "probe_trace")
    first = result["prompts"][0]
    assert first["tokens"][0] == "<s>"
    assert "".join(first["tokens"][slice(*first["subject"])]).strip() == "Space Needle"
    assert len(first["effects"]) == 6
    assert {role["role"] for role in result["roles"]} <= set(ROLES)
    assert (folder / "out" / "figures" / "trace-map-1.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("intervene", "nowhere/such-model"), "nowhere/such-model"),
        (("intervene", "{model}", "--bos", "sometimes"), "bos"),
        (("intervene", "{model}", "--corpus", "{empty}"), "empty"),
        (("trace", "{model}", "{empty}/none.jsonl"), "cannot read prompts"),
        (("trace", "{model}", "{long}"), "expected at most 64, the model's number of positions"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "empty").mkdir(exist_ok=True)
    long = folder / "long.jsonl"
    long.write_text(
        json.dumps({"prompt": "Bread is made of flour. " * 4 + "Bread is made of", "subject": "Bread", "answer": "it"})
    )
    filled = [one.format(model=folder / "model", empty=folder / "empty", long=long) for one in arguments]
    assert command_line.run(monkeypatch, *filled, "--out", str(folder / "bad")) == 2
    error = capsys.readouterr().err.splitlines(keepends=True)
    assert words in command_line.one_line(error[-1])

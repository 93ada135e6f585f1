"""``depthscale generate``: what goes where, and how bad input ends."""

import json
from pathlib import Path

import command_line
import pytest
import torch

from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate
from depthscale.training.run import train_run

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps: what it writes is nearly noise, but it writes."""
    folder = tmp_path_factory.mktemp("generate")
    words = ["the", "cat", "sat", "on", "a", "mat", "while", "one", "old", "dog", "ran"]
    texts = [" ".join(words[(index + step) % 11] for step in range(0, 60, 1 + index % 7)) for index in range(60)]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps({"text": f"{n} {text}"}) for n, text in enumerate(texts)))
    config = {
        "plan": {"blocks": 1, "rounds": 2},
        "model": {"hidden_size": 32, "num_attention_heads": 2},
        "data": {
            "corpus": str(folder / "corpus.jsonl"),
            "tokenizer": "bytes",
            "context_length": 48,
            "tuning_fraction": 0.1,
            "report_fraction": 0.1,
        },
        "train": {"steps": 30, "batch_rows": 4, "lr": 1e-2, "eval_rows": 4},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
        train_run(validate(RunConfig, config, "test"), folder / "run")
    return folder / "run"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return command_line.run(monkeypatch, "generate", *arguments)


def test_the_new_text_goes_to_stdout_streamed_or_not(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for target in (run_directory, run_directory / "checkpoint"):
        for stream in ("--stream", "--no-stream"):
            arguments = (str(target), "--prompt", "the cat", "--max-new-tokens", "20", stream)
            assert run(monkeypatch, *arguments) == 0
            shown = capsys.readouterr()
            texts.append(shown.out)
            assert " tokens/s" in shown.err
    assert len(set(texts)) == 1
    assert texts[0].endswith("\n")
    assert len(texts[0]) > 1


def test_without_a_number_the_text_fills_what_room_the_context_has(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default of 100 tokens once refused every prompt of a model with a small context."""
    assert run(monkeypatch, str(run_directory), "--prompt", "the cat") == 0
    number = int(capsys.readouterr().err.split(" tokens, ")[0].splitlines()[-1])
    assert 0 < number <= 48 - len("the cat")


def test_tokens_may_leave_the_loop_by_a_rule(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def text(*arguments: str) -> tuple[str, str]:
        assert run(monkeypatch, str(run_directory), "--prompt", "the cat", "--max-new-tokens", "12", *arguments) == 0
        shown = capsys.readouterr()
        return shown.out, shown.err

    for threshold, rounds in (("1e9", 1), ("0", 6)):
        # A signal is never exactly 0 here, nor above a billion: all leave at once, or none before the last round.
        found, said = text("--exit-rule", "entropy", "--exit-threshold", threshold, "--rounds", "6")
        assert found == text("--rounds", str(rounds))[0]
        assert f"{rounds}.00 rounds a token" in said


def test_draws_follow_the_seed_and_rounds_change_the_text(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def text(*arguments: str) -> str:
        assert run(monkeypatch, str(run_directory), "--prompt", "the cat", "--max-new-tokens", "30", *arguments) == 0
        return capsys.readouterr().out

    hot = ("--temperature", "1.5")
    assert text(*hot, "--seed", "1") == text(*hot, "--seed", "1") != text(*hot, "--seed", "2")
    assert text(*hot, "--rounds", "2") == text(*hot) != text(*hot, "--rounds", "6")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x" * 60], "60 tokens, which leaves no room in this model's context of 48; shorten it to 47"),
        (["--prompt", "x" * 20, "--max-new-tokens", "40"], "ask for at most 28 new tokens"),
        (["--prompt", "x", "--rounds", "0"], "rounds came as 0; expected at least 1"),
        (["--prompt", "x", "--rounds", "5000"], "rounds came as 5000; expected at most 4096"),
        (["--prompt", "x", "--exit-rule", "kl"], "--exit-rule and --exit-threshold go together"),
        (["--prompt", "x", "--exit-threshold", "1"], "--exit-rule and --exit-threshold go together"),
        (["--prompt", "x", "--exit-rule", "k", "--exit-threshold", "1"], "unknown exit rule 'k'"),
        (["--prompt", "x", "--exit-rule", "kl", "--exit-threshold", "-1"], "the exit threshold came as -1"),
        (["--prompt", "x", "--exit-rule", "kl", "--exit-threshold", "nan"], "the exit threshold came as nan"),
        (["--prompt", "x", "--exit-rule", "kl", "--exit-threshold", "1", "--temperature", "1"], "leave out"),
        (
            ["--prompt", "x" * 20, "--exit-rule", "kl", "--exit-threshold", "1", "--max-new-tokens", "40"],
            "ask for at most 28 new tokens",
        ),
        (["--prompt", "x", "--max-new-tokens", "0"], "max_new_tokens came as 0"),
        (["--prompt", "x", "--temperature", "-1"], "temperature came as -1"),
        (["--prompt", "x", "--temperature", "nan"], "temperature came as nan"),
        (["--prompt", "x", "--temperature", "1e-30"], "temperature came as 1e-30"),
        (["--prompt", "x", "--seed", "-1"], "seed came as -1"),
        (["--prompt", "a\udcffb"], "not valid text at character 1"),
    ],
)
def test_bad_input_ends_in_one_line(
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert run(monkeypatch, str(run_directory), *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    line = shown.err.strip().splitlines()[-1]
    assert line.startswith("depthscale: ")
    assert words in line
    assert "Traceback" not in shown.err


def test_a_folder_without_a_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(tmp_path), "--prompt", "x") == 2
    assert "no checkpoint or run at" in capsys.readouterr().err

"""Run directories from loops of other people, and what compare, fit and report make of them."""

import math
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from command_line import run
from tiny_run import make_run

from depthscale import RunRecorder, unigram_entropy_nats
from depthscale.errors import ConfigError, ResultError
from depthscale.laws.run_directories import read_runs
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate, write_toml
from depthscale.runs.layout import run_name
from depthscale.runs.metrics import read_metrics
from depthscale.runs.results import read_result
from depthscale.runs.study_config import StudyFile
from depthscale.studies.study_document import write_study
from depthscale.studies.study_runs import read_study

STEPS, CONTEXT, ROWS = 20, 64, 4
TABLES: dict[str, Any] = {
    "plan": {"blocks": 2, "rounds": 3},
    "model": {"hidden_size": 32, "num_attention_heads": 2, "norm_placement": "post", "rule": "deeploop"},
    "data": {"corpus": "their corpus", "tokenizer": "their tokenizer", "context_length": CONTEXT},
    "train": {"steps": STEPS, "batch_rows": ROWS, "lr": 5e-3},
}
FACTS: dict[str, Any] = {
    "corpus_sha256": "ab" * 32,
    "tokenizer_sha256": "cd" * 32,
    "vocab_size": 512,
    "unigram_loss_nats": 5.0,
    "train_tokens": 10_000,
}


def recorder(directory: Path, config: Any = TABLES, **changes: Any) -> RunRecorder:
    return RunRecorder(directory, config=config, **{**FACTS, **changes})


def loop(recording: RunRecorder, loss: float = 3.0, steps: range = range(1, STEPS + 1)) -> None:
    """What anybody's training loop would say."""
    for step in steps:
        recording.log(step, tokens=step * ROWS * CONTEXT, loss=loss + 3 * math.exp(-step / 4), lr=5e-3, grad_norm=0.7)
        if step % 5 == 0 and step < STEPS:
            recording.evaluate("tuning", loss=loss + 3 * math.exp(-step / 4), num_tokens=900)
    recording.evaluate("tuning", loss=loss + 0.01, num_tokens=900, num_bytes=2700)
    recording.evaluate("report", loss=loss, num_tokens=900, num_bytes=2700)


def write_run(directory: Path, config: Any = TABLES, loss: float = 3.0, **changes: Any) -> dict[str, Any]:
    with recorder(directory, config, **changes) as recording:
        loop(recording, loss)
    return read_result(directory, "training")


def tree(value: Any) -> Any:
    return {key: tree(item) for key, item in value.items()} if isinstance(value, Mapping) else None


def test_a_recorded_run_holds_what_a_run_of_our_own_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    ours = read_result(make_run(tmp_path), "training")
    theirs = write_run(tmp_path / "theirs")
    expected, found = tree(ours), tree(theirs)
    assert found.pop("recorded") is None
    for only_ours in ("visits", "groups"):
        assert expected.pop(only_ours) is not None
        assert found.pop(only_ours) is None
    described = ("corpus", "corpus_sha256", "tokenizer", "tokenizer_sha256", "vocab_size", "context_length")
    assert set(described) < set(found["data"]) < set(expected["data"])
    del expected["data"], found["data"], expected["versions"], found["versions"]
    assert found == expected
    # The same plan, shape and rule are counted alike by both.
    same = [name for name in ours["budget"] if "flops_per_token" in name] + ["head_share"]
    widened = write_run(tmp_path / "same", vocab_size=ours["model"]["vocab_size"])
    for name in [*same, "parameters", "parameters_non_embedding"]:
        assert widened["budget"][name] == ours["budget"][name], name
    assert widened["plan"] == ours["plan"]
    assert widened["model"]["scales"] == ours["model"]["scales"]
    assert {path.name for path in (tmp_path / "same").iterdir()} == {"config.toml", "metrics.jsonl", "results"}


def test_the_numbers_of_a_recorded_run(tmp_path: Path) -> None:
    training = write_run(tmp_path / "run")
    assert training["outcome"] == "finished"
    assert training["step"] == training["steps_planned"] == STEPS
    assert training["tokens"] == STEPS * ROWS * CONTEXT
    assert training["data"]["epochs"] == training["tokens"] / 10_000
    assert training["final"]["report"]["loss_nats"] == 3.0
    assert training["final"]["report"]["bits_per_byte"] == pytest.approx(3.0 / math.log(2) / 3)
    assert training["final"]["tuning"]["loss_nats"] == 3.01
    assert training["uniform_loss_nats"] == math.log(512)
    assert training["budget"]["training_flops"] == training["budget"]["flops_per_token_training"] * training["tokens"]
    kinds = [record["kind"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert kinds.count("train") == STEPS
    assert kinds.count("evaluation") == 5


def test_counts_of_ones_own_replace_ours(tmp_path: Path) -> None:
    training = write_run(tmp_path / "run", budget={"parameters": 1e6, "flops_per_token_training": 2e6})
    assert training["budget"]["parameters"] == 1e6
    assert training["budget"]["training_flops"] == 2e6 * training["tokens"]
    with pytest.raises(ConfigError, match="did you mean 'parameters'"):
        recorder(tmp_path / "other", budget={"parameter": 1.0})
    drawn = {**TABLES, "train": {**TABLES["train"], "rounds": {"distribution": "uniform", "maximum": 4}}}
    with pytest.raises(ConfigError, match="only your loop knows which were drawn"):
        recorder(tmp_path / "other", drawn)
    assert write_run(tmp_path / "drawn", drawn, budget={"flops_per_token_training": 3e6})["outcome"] == "finished"


def test_a_stuck_and_a_diverged_run_are_results(tmp_path: Path) -> None:
    assert write_run(tmp_path / "stuck", loss=5.1)["outcome"] == "stuck"
    with recorder(tmp_path / "diverged") as recording:
        recording.log(1, tokens=256, loss=6.0)
        recording.log(2, tokens=512, loss=math.nan)
        assert recording.divergence is None
        recording.log(3, tokens=768, loss=12.5)
        assert recording.divergence is not None
    training = read_result(tmp_path / "diverged", "training")
    assert training["outcome"] == "diverged"
    assert training["outcome_reason"] == "training loss 12.5 exceeds 2 times its start, 6"
    assert training["optimization"]["steps_non_finite"] == 1
    assert training["final"]["report"]["loss_nats"] is None
    with recorder(tmp_path / "given up") as recording:
        recording.log(1, tokens=256, loss=6.0)
        recording.diverged("5 non-finite steps in a row")
    assert read_result(tmp_path / "given up", "training")["outcome_reason"] == "5 non-finite steps in a row"


def test_a_broken_off_run_has_no_result_and_goes_on(tmp_path: Path) -> None:
    def break_off() -> None:
        with recorder(tmp_path / "run") as recording:
            for step in range(1, 13):
                recording.log(step, tokens=step * 256, loss=6.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert not (tmp_path / "run" / "results").exists()
    with pytest.raises(ResultError, match="resume_from"):
        recorder(tmp_path / "run")
    other = {**TABLES, "train": {**TABLES["train"], "lr": 1e-3}}
    with pytest.raises(ConfigError, match="differs from the configuration"):
        recorder(tmp_path / "run", other, resume_from=10)
    with recorder(tmp_path / "run", resume_from=10) as recording:
        loop(recording, steps=range(11, STEPS + 1))
    training = read_result(tmp_path / "run", "training")
    assert training["resumed"] == 1
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records if record["kind"] == "train"] == [*range(1, STEPS + 1)]
    with pytest.raises(ResultError, match="already holds a run that is finished"):
        recorder(tmp_path / "run", resume_from=10)


def test_half_a_schedule_is_no_result(tmp_path: Path) -> None:
    def cut() -> None:
        with recorder(tmp_path / "cut") as recording:
            for step in range(1, 4):
                recording.log(step, tokens=step * 256, loss=6.0)

    def blind() -> None:
        with recorder(tmp_path / "blind") as recording:
            recording.log(STEPS, tokens=STEPS * 256, loss=3.0)
            recording.evaluate("tuning", loss=3.0)

    def mute() -> None:
        with recorder(tmp_path / "mute"):
            pass

    for end, message in ((cut, "ended at step 3 of 20"), (blind, r"without evaluate\('report'"), (mute, "no step")):
        with pytest.raises(ResultError, match=message):
            end()
    for name in ("cut", "blind", "mute"):
        assert not (tmp_path / name / "results").exists()


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'plan.blocks'"):
        recorder(tmp_path / "run", {**TABLES, "plan": {"block": 2}})
    with recorder(tmp_path / "run") as recording:
        with pytest.raises(ResultError, match="unknown split 'reports'; did you mean 'report'"):
            recording.evaluate("reports", loss=3.0)  # type: ignore[arg-type]
        recording.log(5, tokens=1280, loss=3.0)
        with pytest.raises(ResultError, match="step 5 came after step 5"):
            recording.log(5, tokens=1280, loss=3.0)
        recording.diverged("as the test asked")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("mine")
    with pytest.raises(ResultError, match="other files and no run"):
        recorder(tmp_path / "mine")


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    with recorder(tmp_path / "run", rank=1) as recording:
        loop(recording)
    assert not (tmp_path / "run").exists()


def test_a_recorder_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from depthscale import RunRecorder; assert 'torch' not in sys.modules;"
        f"RunRecorder({str(tmp_path / 'run')!r}, config={TABLES!r}, **{FACTS!r}).__enter__();"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert (tmp_path / "run" / "config.toml").exists()


def test_the_unigram_entropy_is_that_of_the_frequencies() -> None:
    assert unigram_entropy_nats([7, 7, 7, 0]) == pytest.approx(math.log(3))


def test_fit_takes_runs_trained_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directories = []
    for width in (32, 64, 128):
        for steps in (20, 40, 80):
            tables = {**TABLES, "model": {**TABLES["model"], "hidden_size": width},
                      "train": {**TABLES["train"], "steps": steps}}  # fmt: skip
            directory = tmp_path / f"w{width}-t{steps}"
            with recorder(directory, tables) as recording:
                loss = 1.5 + 20 / width + 200 / (steps * 256) ** 0.5
                recording.log(steps, tokens=steps * 256, loss=loss)
                recording.evaluate("tuning", loss=loss)
                recording.evaluate("report", loss=loss)
            directories.append(directory)
    rows = read_runs(directories)
    assert len(rows.data.loss) == 9
    assert sorted(set(rows.data.column("width"))) == [32, 64, 128]
    assert rows.data.column("tokens").max() == 80 * 256
    assert rows.card.tokenizer == "their tokenizer"
    arguments = ("--law", "chinchilla", "--bootstrap", "0", "--no-validation", "--out", str(tmp_path / "fit"))
    assert run(monkeypatch, "fit", *map(str, directories), *arguments) == 0, capsys.readouterr().err
    assert read_result(tmp_path / "fit", "fit")["sources"]
    other = tmp_path / "other text"
    write_run(other, corpus_sha256="ef" * 32)
    assert run(monkeypatch, "fit", *map(str, [*directories, other]), *arguments) == 2
    assert "read different text" in capsys.readouterr().err


def test_report_takes_a_run_trained_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run")
    assert run(monkeypatch, "report", str(tmp_path / "run")) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "their corpus" in page
    assert "3.0000 nats per token" in page


def study_of(tables: dict[str, Any]) -> StudyFile:
    study = {
        "name": "elsewhere",
        "arms": [
            {"name": "pre", "model": {"norm_placement": "pre", "rule": "unscaled"}},
            {"name": "deeploop"},
        ],
        "baseline": "pre",
        "rounds": [3],
        "seeds": [0, 1, 2, 3, 4],
    }
    return validate(StudyFile, {**tables, "study": study}, "test")


def test_a_study_compares_runs_trained_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, directory, noise = study_of(TABLES), tmp_path / "study", random.Random(0)
    write_study(directory, file)
    for cell in file.study.cells():
        for seed in file.study.seeds:
            config: RunConfig = file.cell_config(cell, seed)
            loss = {"pre": 3.1, "deeploop": 3.0}[cell.arm] + 0.05 * seed + noise.gauss(0, 0.003)
            write_run(directory / "runs" / run_name(cell.arm, cell.rounds, seed), config, loss=loss)
    study = read_study(directory)
    assert sum(1 for _ in study.runs()) == 10
    assert run(monkeypatch, "report", str(directory)) == 0
    comparison = read_result(directory, "comparison")
    (pair,) = [pair for pair in comparison["pairs"] if len(pair["differences"]) == 5]
    assert pair["interval"]["mean"] == pytest.approx(-0.1, abs=0.01)
    page = (directory / "report.html").read_text()
    assert "deeploop" in page
    # Nothing is left to train: compare only judges, on a machine that need not have the text.
    (directory / "report.html").unlink()
    asked = tmp_path / "asked.toml"
    write_toml(asked, file)
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "empty"))
    assert not Path(file.data_config().corpus).exists()
    assert run(monkeypatch, "compare", str(asked), "--out", str(directory)) == 0
    assert (directory / "report.html").exists()


def test_runs_of_another_text_are_refused_in_a_study(tmp_path: Path) -> None:
    file, directory = study_of(TABLES), tmp_path / "study"
    write_study(directory, file)
    for seed, corpus in ((0, "ab" * 32), (1, "ef" * 32)):
        cell = file.study.cells()[0]
        config = file.cell_config(cell, seed)
        write_run(directory / "runs" / run_name(cell.arm, cell.rounds, seed), config, corpus_sha256=corpus)
    with pytest.raises(ResultError, match="read different text"):
        read_study(directory)


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "your-own-trainer.md").read_text()
    record, study = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    theirs: dict[str, Any] = {
        "corpus_sha256": "ab" * 32,
        "tokenizer_sha256": "cd" * 32,
        "token_counts": [5, 3, 2],
        "train_one_step": lambda: 1.0,
        "loss_on": lambda split: 0.9,
        "tuning": None,
        "report": None,
    }
    exec(record, theirs)
    assert read_result(Path("runs/mine"), "training")["outcome"] == "finished"

    plan = study_of(TABLES).model_dump(mode="json", exclude_none=True)
    Path("study.toml").write_text(tomli_w.dumps(plan))
    exec(study, {"study_directory": tmp_path / "study", "train_and_record": write_run})
    assert sum(1 for _ in read_study(tmp_path / "study").runs()) == 10

"""Export: a folder that loads without depthscale, with a card that shows only what was measured."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import SafetensorError
from tiny_run import make_run

from depthscale.errors import CheckpointError, ResultError
from depthscale.evaluation.checkpoint import load_model, load_model_and_tokenizer
from depthscale.evaluation.export import export_model, model_card
from depthscale.evaluation.results import evaluation_result
from depthscale.evaluation.rounds import trained_rounds
from depthscale.evaluation.target import find_target
from depthscale.runs.results import write_result
from depthscale.training.held_out import held_out_data

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    patch = pytest.MonkeyPatch()
    patch.setenv("DEPTHSCALE_CACHE", str(folder / "cache"))
    yield make_run(folder)
    patch.undo()


CLEAN_LOAD = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "depthscale" or name.startswith("depthscale."):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = torch.tensor([tokenizer.encode("def read_table(table):")])
with torch.no_grad():
    torch.save([ids, model(ids).logits, model(ids, rounds=5).logits], sys.argv[2])
assert "depthscale" not in sys.modules
"""


def test_the_exported_folder_loads_without_depthscale_and_computes_the_same(run: Path, tmp_path: Path) -> None:
    folder = export_model(find_target(run), tmp_path / "exported")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", CLEAN_LOAD, str(folder), str(tmp_path / "seen.pt")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ids, logits, deeper = torch.load(tmp_path / "seen.pt", weights_only=True)
    model = load_model(run / "checkpoint").eval()
    with torch.no_grad():
        torch.testing.assert_close(logits, model(ids).logits, rtol=0, atol=1e-6)
        torch.testing.assert_close(deeper, model(ids, rounds=5).logits, rtol=0, atol=1e-6)


def test_the_folder_is_ready_for_the_hub(run: Path, tmp_path: Path) -> None:
    folder = export_model(find_target(run), tmp_path / "exported")
    names = {path.name for path in folder.iterdir()}
    wanted = {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "README.md",
        "looped_lm.py",
    }
    assert wanted <= names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)
    config = json.loads((folder / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"].endswith("LoopedLMForCausalLM")
    # An exported folder is a checkpoint like any other.
    assert find_target(folder).run_directory is None
    again = export_model(find_target(folder), tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert "belongs to no run" in (again / "README.md").read_text()


def test_the_card_shows_the_runs_own_numbers_and_their_hash(run: Path) -> None:
    target = find_target(run)
    model = load_model(target.checkpoint)
    training = json.loads((run / "results" / "training.json").read_text())
    card = model_card(target, model.config, model.num_parameters())
    _, front, body = card.split("---\n", 2)
    metadata = yaml.safe_load(front)
    report = training["final"]["report"]
    found = {metric["type"]: metric["value"] for metric in metadata["model-index"][0]["results"][0]["metrics"]}
    assert found == {"loss": report["loss_nats"], "bits_per_byte": report["bits_per_byte"]}
    assert f"{report['loss_nats']:.4f} nats per token" in body
    assert training["data"]["corpus_sha256"] in body
    assert "licence" in body
    assert "trust_remote_code=True" in body
    assert "Over rounds" not in body  # not measured yet
    files = (run / "results" / "training.json").read_bytes() + (run / "config.toml").read_bytes()
    assert hashlib.sha256(files).hexdigest() in body

    held_out = held_out_data(target, None, 64)
    result = evaluation_result(
        model,
        target,
        held_out,
        "report",
        rounds=[1, 2, 6],
        exits=False,
        trained=trained_rounds(model.config, None),
        batch_rows=8,
    )
    write_result(run, "evaluation", result)
    body = model_card(target, model.config, model.num_parameters())
    for kept, recomputed in zip(result["rounds"]["kept"], result["rounds"]["recomputed"], strict=True):
        mark = "" if kept["rounds"] == 3 else "*"
        row = f"| {kept['rounds']}{mark} | {kept['loss_nats']:.4f} | {kept['bits_per_byte']:.4f} |"
        assert f"{row} {recomputed['loss_nats']:.4f} |" in body
    assert kept["loss_nats"] != recomputed["loss_nats"]


def a_result(run: Path, **more: object) -> dict[str, object]:
    data = json.loads((run / "results" / "training.json").read_text())["data"]
    return {
        "run_sha256": find_target(run).run_sha256(),
        "corpus": data["corpus"],
        "corpus_sha256": data["corpus_sha256"],
        "split": "report",
        "notes": [],
        **more,
    }


def evaluation_of(run: Path, **more: object) -> dict[str, object]:
    point = {"rounds": 3, "in_training": True, "loss_nats": 1.25, "bits_per_byte": 2.5}
    return a_result(run, max_rows=None, rounds={"kept": [point], "recomputed": None}, exits=None, **more)


def tasks_of(run: Path, **more: object) -> dict[str, object]:
    score = {"task": "local_cloze", "num_fewshot": 0, "metric": "acc", "value": 0.75, "standard_error": 0.125}
    return a_result(run, limit=None, scores=[{**score, "num_items": 12}], **more)


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """A copy of the run whose results a test may change."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "results" / "evaluation.json").unlink(missing_ok=True)
    return tmp_path / "run"


def card_of(run: Path) -> str:
    model = load_model(run / "checkpoint")
    return model_card(find_target(run), model.config, model.num_parameters())


def test_the_card_shows_no_number_of_other_weights(own: Path) -> None:
    write_result(own, "evaluation", evaluation_of(own, run_sha256="0" * 64))
    write_result(own, "tasks", tasks_of(own, run_sha256=None))
    card = card_of(own)
    assert "Over rounds" not in card
    assert "local_cloze" not in card
    write_result(own, "evaluation", evaluation_of(own))
    write_result(own, "tasks", tasks_of(own))
    card = card_of(own)
    assert "| 3 | 1.2500 | 2.5000 |" in card
    assert "| local_cloze | 0 | acc | 0.7500 | 0.1250 | 12 |" in card


def test_the_card_says_which_text_its_numbers_are_of(own: Path) -> None:
    """Another corpus is named with its hash and its notes, and no folder of this machine is published."""
    write_result(own, "tasks", tasks_of(own))
    other = {"corpus": "/home/someone/secret/other.jsonl", "corpus_sha256": "f" * 64, "notes": ["it is not the run's"]}
    write_result(own, "evaluation", evaluation_of(own, **other))
    card = card_of(own)
    above = card[: card.index("| R |")].splitlines()[-2]
    assert "report split of `other.jsonl`, another text than the training corpus" in above
    assert "f" * 64 in above
    assert "Note: it is not the run's." in card
    above = card[: card.index("| task |")].splitlines()[-2]
    assert "report split of `corpus`:" in above
    assert "another text" not in above
    assert str(own.parent) not in card
    assert "/home/someone" not in card
    assert yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"][0]["dataset"]["type"] == "corpus"


@pytest.mark.parametrize("content", ["{", '{"kind": "evaluation", "schema_version": 1, "run_sha256": "HASH"}'])
def test_a_damaged_result_is_named(own: Path, tmp_path: Path, content: str) -> None:
    path = own / "results" / "evaluation.json"
    path.write_text(content.replace("HASH", str(find_target(own).run_sha256())))
    with pytest.raises(ResultError, match=r"results/evaluation\.json is damaged"):
        export_model(find_target(own), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_tokenizer_beyond_the_vocabulary_is_refused(own: Path, tmp_path: Path) -> None:
    """A tokenizer of another run beside the weights."""
    tokenizer = load_model_and_tokenizer(own / "checkpoint")[1]
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(own / "checkpoint")
    with pytest.raises(CheckpointError, match="the model's vocabulary is 300; put the tokenizer it was trained with"):
        export_model(find_target(own), tmp_path / "exported")


def test_a_folder_with_files_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        export_model(find_target(run), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ],
)
def test_an_export_that_fails_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full)
    with pytest.raises(CheckpointError, match="No space left"):
        export_model(find_target(run), tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_what_is_no_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint or run at"):
        find_target(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        find_target(tmp_path)
    assert find_target(run / "checkpoint").run_directory == run

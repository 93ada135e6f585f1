"""Export: a folder that loads without depthscale, with a card that shows only what was measured."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tiny_run import make_run

from depthscale.errors import CheckpointError
from depthscale.evaluation.checkpoint import load_model
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


def test_a_folder_with_files_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        export_model(find_target(run), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "file").read_text() == "mine"


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

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

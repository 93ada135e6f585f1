"""Checkpoints: every weight once, all of them or an error, and loadable without depthscale."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

import depthscale.nn
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM, LoopedLMModel
from depthscale.nn.attention import rotary_tables

torch.set_num_threads(1)

FOLDER = Path(depthscale.nn.__file__).parent


def build(**more: Any) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "norm_placement": "sandwich",
        "plan": [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 3, "inject": True}],
        "residual_scales": [{"skip": 1.5, "gain": 0.7}, {"skip": 2.5, "gain": 0.3}],
        "qk_norm": True,
    }
    return LoopedLMForCausalLM(LoopedLMConfig(**{**arguments, **more})).eval()


def tokens() -> torch.Tensor:
    return torch.randint(0, 97, (2, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    build().save_pretrained(tmp_path)
    return tmp_path


def rewrite(checkpoint: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("auto", [False, True])
def test_a_round_trip_gives_the_same_logits_and_tying(tmp_path: Path, tied: bool, auto: bool) -> None:
    model = build(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    again = (AutoModelForCausalLM if auto else LoopedLMForCausalLM).from_pretrained(tmp_path)
    assert type(again) is LoopedLMForCausalLM
    assert not again.training
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    # One training step later both ends of a tied matrix are still one.
    again(tokens(), labels=tokens()).loss.backward()
    torch.optim.SGD(again.parameters(), lr=0.1).step()
    assert torch.equal(again.lm_head.weight, again.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("tied", [True, False])
def test_each_physical_weight_is_saved_once(tmp_path: Path, tied: bool) -> None:
    model = build(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as saved:
        keys = set(saved.keys())
        size = sum(saved.get_tensor(key).numel() for key in keys)
    assert size == sum(parameter.numel() for parameter in model.parameters())
    assert keys == {name for name, _ in model.named_parameters()}
    assert ("lm_head.weight" in keys) == (not tied)
    assert not list(model.buffers())
    assert model.num_parameters() == size


def test_the_base_model_loads_from_either_checkpoint(tmp_path: Path) -> None:
    for tied in (True, False):
        model = build(tie_word_embeddings=tied)
        model.save_pretrained(tmp_path)
        base = AutoModel.from_pretrained(tmp_path)
        assert type(base) is LoopedLMModel
        expected = model.model(tokens()).last_hidden_state
        assert torch.equal(base(tokens()).last_hidden_state, expected)


# -- meta device --------------------------------------------------------------------------------------------


def test_a_model_made_on_the_meta_device_computes_the_same_once_loaded() -> None:
    model = build()
    with torch.device("meta"):
        empty = LoopedLMForCausalLM(model.config)
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu")
    filled.tie_weights()
    filled.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(filled.eval()(tokens()).logits, model(tokens()).logits)


def test_nothing_but_weights_is_needed_after_loading(checkpoint: Path) -> None:
    """from_pretrained makes the model on the meta device: scales and rotary tables must not depend on what it wipes."""
    loaded, model = LoopedLMForCausalLM.from_pretrained(checkpoint), build()
    assert not list(loaded.buffers())
    for mine, theirs in zip(loaded.model.blocks, model.model.blocks, strict=True):
        assert mine.attention_residual.skip_scale == theirs.attention_residual.skip_scale
        assert type(mine.mlp_residual.skip_scale) is float
    tables = rotary_tables(torch.arange(5000)[None], loaded.config.head_dim, loaded.config.rope_theta)
    assert all(table.isfinite().all() and table.abs().max() <= 1 for table in tables)
    exact = torch.arange(5000, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    torch.testing.assert_close(tables[0][0, 0, :, :4].double(), exact.cos(), rtol=0, atol=1e-3)


def test_from_config_initializes_with_the_gains(checkpoint: Path) -> None:
    config = LoopedLMConfig.from_pretrained(checkpoint)
    torch.manual_seed(0)
    again = AutoModelForCausalLM.from_config(config)
    assert torch.equal(again.eval()(tokens()).logits, build()(tokens()).logits)


# -- compiled models ------------------------------------------------------------------------------------------


def test_saved_compiled_loads_plain(tmp_path: Path) -> None:
    model, plain = build(), build()
    model.compile_blocks(backend="eager")
    assert torch.equal(model(tokens()).logits, plain(tokens()).logits)
    model.save_pretrained(tmp_path)
    plain.load_state_dict(model.state_dict(), strict=True)
    assert load_file(tmp_path / "model.safetensors").keys() == {name for name, _ in plain.named_parameters()}
    again = LoopedLMForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(tokens()).logits, plain(tokens()).logits)


# -- what is not a whole checkpoint -----------------------------------------------------------------------------


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize(
    "key",
    [
        "model.embed_tokens.weight",
        "model.embedding_norm.weight",
        "model.blocks.2.attention.v_proj.weight",
        "model.blocks.0.mlp_residual.inner_norm.weight",
    ],
)
def test_a_dropped_key_fails(checkpoint: Path, key: str, auto: bool) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights[key]
    rewrite(checkpoint, weights)
    with pytest.raises(ValueError, match=f"the checkpoint lacks '{key}'") as caught:
        (AutoModelForCausalLM if auto else LoopedLMForCausalLM).from_pretrained(checkpoint)
    assert "\n" not in str(caught.value)


def test_a_key_too_many_fails(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.blocks.3.attention.v_proj.weight"] = torch.zeros(32, 32)
    rewrite(checkpoint, weights)
    with pytest.raises(ValueError, match=r"has no place for 'model\.blocks\.3\.attention"):
        LoopedLMForCausalLM.from_pretrained(checkpoint)


def test_a_plan_of_other_depth_fails(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    config["plan"][1]["blocks"] = 3
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"lacks 'model\.blocks\.3.* and \d+ more"):
        LoopedLMForCausalLM.from_pretrained(checkpoint)


def test_a_weight_of_another_shape_fails(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.embed_tokens.weight"] = torch.zeros(50, 32)
    rewrite(checkpoint, weights)
    with pytest.raises(RuntimeError, match="mismatched"):
        LoopedLMForCausalLM.from_pretrained(checkpoint)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_fails(checkpoint: Path, kept: float) -> None:
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(SafetensorError):
        LoopedLMForCausalLM.from_pretrained(checkpoint)


def test_a_corrupt_header_fails(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8:40] = b"\xff" * 32
    path.write_bytes(bytes(data))
    with pytest.raises(SafetensorError):
        LoopedLMForCausalLM.from_pretrained(checkpoint)


def test_a_missing_file_fails(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        LoopedLMForCausalLM.from_pretrained(checkpoint)


def test_loading_info_still_comes_when_asked_for(checkpoint: Path) -> None:
    model, info = LoopedLMForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    assert isinstance(model, LoopedLMForCausalLM)
    assert not info["missing_keys"]


# -- the folder on its own ------------------------------------------------------------------------------------


def test_the_folder_imports_only_torch_transformers_and_itself() -> None:
    allowed = {"torch", "transformers"} | set(sys.stdlib_module_names)
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # A copy beside the weights is flat, so only "from .sibling import" keeps working there.
                assert node.level <= 1, path
                found = set() if node.level else {str(node.module).split(".")[0]}
                if node.level:
                    assert (FOLDER / f"{node.module}.py").is_file(), (path, node.module)
            else:
                continue
            assert found <= allowed, (path, found)


WITHOUT_DEPTHSCALE = """
import sys
sys.modules["depthscale"] = None  # any import of it raises ImportError
elsewhere, checkpoint = sys.argv[1:]
sys.path.insert(0, elsewhere)
import torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
expected = torch.load(elsewhere + "/expected.pt", weights_only=True)

def check(model, module):
    assert type(model).__module__.startswith(module), type(model)
    assert torch.equal(model(expected["ids"]).logits, expected["logits"])

remote = AutoModelForCausalLM.from_pretrained(checkpoint, trust_remote_code=True)
check(remote, "transformers_modules")
remote.save_pretrained(elsewhere + "/again")
check(AutoModelForCausalLM.from_pretrained(elsewhere + "/again", trust_remote_code=True), "transformers_modules")

import borrowed
check(borrowed.LoopedLMForCausalLM.from_pretrained(checkpoint), "borrowed")
check(AutoModelForCausalLM.from_pretrained(checkpoint), "borrowed")
"""


def test_checkpoints_load_without_depthscale(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the code that save_pretrained put beside the weights, and by a copy of this folder under another name."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(FOLDER, elsewhere / "borrowed", ignore=shutil.ignore_patterns("__pycache__"))
    torch.save({"ids": tokens(), "logits": build()(tokens()).logits}, elsewhere / "expected.pt")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DEPTHSCALE, str(elsewhere), str(checkpoint)],
        env={**os.environ, "HF_HOME": str(elsewhere), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        cwd=elsewhere,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]


# -- the Trainer ------------------------------------------------------------------------------------------------


def train(folder: Path, rows: list[dict[str, torch.Tensor]], parts: int) -> LoopedLMForCausalLM:
    model = build(norm_placement="post")
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=2,
        per_device_train_batch_size=len(rows) // 2 // parts,
        gradient_accumulation_steps=parts,
        learning_rate=0.1,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return model


def test_the_trainer_accumulates_exactly(tmp_path: Path) -> None:
    """Two steps of 8 rows at once, and of 8 single rows with unequally many labels, end in the same weights."""
    generator = torch.Generator().manual_seed(2)
    rows = []
    for row in range(16):
        ids = torch.randint(0, 97, (11,), generator=generator)
        labels = ids.clone()
        labels[: 1 + row % 9] = -100
        rows.append({"input_ids": ids, "labels": labels, "document_ids": torch.arange(11) // 6})
    whole, parts, start = train(tmp_path, rows, 1), train(tmp_path, rows, 8), build(norm_placement="post")
    moved = 0.0
    for mine, theirs, before in zip(whole.parameters(), parts.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        moved = max(moved, (mine - before).abs().max().item())
    assert moved > 1e-3

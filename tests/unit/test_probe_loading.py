"""Loading: whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_models import make_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from depthscale.probing.errors import ProbingError
from depthscale.probing.loading import ModelSource, load_for_probing, weight_hashes
from depthscale.training.tokenizer import byte_tokenizer


def save(folder: Path, name: str = "gpt2", **config: Any) -> PreTrainedModel:
    model = make_model(name)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return model


def source(folder: Path, **options: Any) -> ModelSource:
    return ModelSource(str(folder), **options)


@pytest.mark.parametrize("name", ["gpt2", "pythia", "opt_350m", "gemma2", "looped_post"])
def test_every_weight_comes_back(tmp_path: Path, name: str) -> None:
    model = save(tmp_path, name)
    loaded = load_for_probing(source(tmp_path))
    assert loaded.weights_format == "safetensors"
    assert not loaded.model.training
    assert weight_hashes(loaded.model) == weight_hashes(model)
    assert all(name.endswith("weight") for name in weight_hashes(model).matrices)
    half = load_for_probing(source(tmp_path, dtype="bfloat16")).model
    assert next(half.parameters()).dtype == torch.bfloat16


def test_a_missing_weight_is_an_error_and_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ProbingError, match=r"lack 'transformer.h.1.mlp.c_fc.weight', which would be drawn at random"):
        load_for_probing(source(tmp_path))


def test_a_missing_head_of_an_untied_model_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ProbingError, match=r"lack 'lm_head.weight'"):
        load_for_probing(source(tmp_path))


def test_a_head_that_is_not_tied_as_configured_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, "llama", tie_word_embeddings=True)
    with pytest.raises(ProbingError, match="came untied from the embedding; its config says tied"):
        load_for_probing(source(tmp_path))


def test_bin_weights_need_the_users_word(tmp_path: Path) -> None:
    model = save(tmp_path, "opt")
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ProbingError, match="pass --allow-bin to read them through torch's weights_only=True"):
        load_for_probing(source(tmp_path))
    loaded = load_for_probing(source(tmp_path, allow_bin=True))
    assert loaded.weights_format == "bin"
    assert weight_hashes(loaded.model) == weight_hashes(model)


class Harmful:
    """What a pickle could do."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harmed"),))


def test_no_code_in_bin_weights_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({**model.state_dict(), "more": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ProbingError, match="cannot be loaded"):
        load_for_probing(source(tmp_path, allow_bin=True))
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, {}, r"are quantized \(gptq\)"),
        ({"model_type": "no_such_model"}, {}, "the config of .* cannot be read"),
        ({}, {"dtype": "float8"}, "expected auto or one of float32"),
        ({}, {"revision": "step3"}, "is no model: expected a folder"),
    ],
)
def test_what_cannot_be_probed(tmp_path: Path, config: dict[str, Any], options: dict[str, Any], words: str) -> None:
    save(tmp_path, **config)
    with pytest.raises(ProbingError, match=words):
        load_for_probing(source(tmp_path, **options))


def test_nothing_is_left_on_the_meta_device(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(ProbingError, match="was left on the meta device; use a --device-map that keeps all in memory"):
        load_for_probing(source(tmp_path, device_map="meta"))
    loaded = load_for_probing(source(tmp_path, device_map="cpu"))
    assert next(loaded.model.parameters()).device.type == "cpu"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ProbingError, match="no model at"):
        load_for_probing(source(tmp_path / "nowhere"))
    with pytest.raises(ProbingError, match="is neither a folder here nor to be had from the Hub"):
        load_for_probing(ModelSource("somebody/some-model"))
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ProbingError, match="holds no weights"):
        load_for_probing(source(tmp_path))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ProbingError, match="name one with --gguf-file"):
        load_for_probing(source(tmp_path))


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    make_model("gpt2").save_pretrained(tmp_path / "bare")
    with pytest.raises(ProbingError, match="name one with --tokenizer"):
        load_for_probing(source(tmp_path / "bare"))
    save(tmp_path / "whole", "opt")
    loaded = load_for_probing(source(tmp_path / "bare", tokenizer=str(tmp_path / "whole")))
    assert loaded.tokenizer("a", add_special_tokens=False)["input_ids"] == [97]


def test_a_revision_of_a_folder_is_its_subfolder(tmp_path: Path) -> None:
    model = save(tmp_path / "step10")
    loaded = load_for_probing(source(tmp_path, revision="step10"))
    assert weight_hashes(loaded.model) == weight_hashes(model)

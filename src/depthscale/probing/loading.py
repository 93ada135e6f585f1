"""Load any causal language model whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import HfApi, scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import depthscale.nn  # noqa: F401 - makes LoopedLM known to the Auto classes
from depthscale.errors import MissingExtraError, first_line
from depthscale.probing.errors import ProbingError
from depthscale.runs.layout import CHECKPOINT

WeightsFormat = Literal["safetensors", "bin", "gguf"]

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

#: The extra whose package reads GGUF files.
GGUF_EXTRA = "gguf"

_HUB_TIMEOUT_SECONDS = 10.0
_MODEL_SUFFIXES = (".safetensors", ".bin", ".gguf", ".json")


@dataclass(frozen=True)
class ModelSource:
    """Which weights are meant and how they are loaded.

    Attributes:
        name: Hub id, folder, or run directory of depthscale.
        revision: branch, tag or commit of the Hub; of a local folder, the subfolder of that name.
        dtype: ``float32``, ``float64``, ``bfloat16``, ``float16``, or ``auto`` for the weights' own.
        device_map: as transformers takes it; None is the CPU.
        gguf_file: name of a GGUF file in the repository or folder, whose weights are taken out of their quantization.
        allow_bin: also take ``.bin`` weights, read by torch's ``weights_only=True``, where there are no safetensors.
        tokenizer: another place for the tokenizer.
        trust_remote_code: run code that comes with the weights.
    """

    name: str
    revision: str | None = None
    dtype: str = "float32"
    device_map: str | None = None
    gguf_file: str | None = None
    allow_bin: bool = False
    tokenizer: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer.

    Attributes:
        source: as asked.
        model: every weight read, none on the meta device.
        tokenizer: of the same source, unless another was named.
        weights_format: of the files.
    """

    source: ModelSource
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    weights_format: WeightsFormat


def load_for_probing(source: ModelSource) -> LoadedModel:
    """Load weights and tokenizer, and refuse whatever would silently change what is measured.

    Raises:
        ProbingError: nothing there (or offline), only ``.bin`` weights without ``allow_bin``, quantized weights, a
            missing weight, a weight left on the meta device, a head not tied as the config says, or no tokenizer.
        MissingExtraError: a GGUF file came and the package that reads it is not installed.
    """
    if source.dtype != "auto" and source.dtype not in DTYPES:
        raise ProbingError(f"--dtype came as '{source.dtype}'; expected auto or one of {', '.join(DTYPES)}")
    place, revision = _place(source)
    files, local = _files(source, place, revision)
    common: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": source.trust_remote_code,
        "local_files_only": local,
    }
    weights_format = _weights_format(source, files)
    if weights_format != "gguf":
        _refuse_quantized(_config(source, place, common), source.name)
    model = _model(source, place, common, weights_format)
    tokenizer = _tokenizer(source, place, common)
    _require_fitting(tokenizer, model, source)
    return LoadedModel(source, model.eval(), tokenizer, weights_format)


@dataclass(frozen=True)
class WeightHashes:
    """What tells two checkpoints of one model apart.

    Attributes:
        whole: SHA-256 over all parameters by name.
        matrices: SHA-256 of each parameter of two or more dimensions, by name; a tied one counts once. Vectors are
            left out: norm gains in half precision stay at exactly 1 for many steps.
    """

    whole: str
    matrices: Mapping[str, str]


def weight_hashes(model: nn.Module) -> WeightHashes:
    """Hash every parameter's type, shape and bytes."""
    hashes, matrices = {}, {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().cpu().contiguous()
        digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        hashes[name] = digest.hexdigest()
        if tensor.ndim >= 2:
            matrices[name] = hashes[name]
    lines = "".join(f"{name} {value}\n" for name, value in sorted(hashes.items()))
    return WeightHashes(hashlib.sha256(lines.encode()).hexdigest(), matrices)


def local_fingerprint(source: ModelSource) -> str | None:
    """SHA-256 over name, size and time of change of a local model's files, without reading one.

    Returns:
        None for a model of the Hub, and for one that is no longer there.
    """
    try:
        folder = Path(_place(source)[0])
    except ProbingError:
        return None
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in _MODEL_SUFFIXES:
            status = file.stat()
            digest.update(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _place(source: ModelSource) -> tuple[str, str | None]:
    path = Path(source.name).expanduser()
    if not path.exists():
        if source.name.count("/") > 1 or source.name.startswith((".", "/", "~")):
            raise ProbingError(f"no model at '{source.name}'; expected a folder with config.json, or a Hub id")
        return source.name, source.revision
    folder = path / CHECKPOINT if (path / CHECKPOINT / "config.json").is_file() else path
    if source.revision is not None:
        folder = folder / source.revision
    if not folder.is_dir() or not (source.gguf_file or (folder / "config.json").is_file()):
        raise ProbingError(f"'{folder}' is no model: expected a folder with config.json and weights")
    return str(folder), None


def _files(source: ModelSource, place: str, revision: str | None) -> tuple[list[str], bool]:
    """Names of the files, and whether they are all on this machine."""
    if Path(place).is_dir():
        return [file.name for file in Path(place).iterdir()], True
    try:
        # Asked once, with a time limit: loading itself tries again for most of a minute offline.
        info = HfApi().model_info(place, revision=revision, timeout=_HUB_TIMEOUT_SECONDS)
        return [sibling.rfilename for sibling in info.siblings or []], False
    # The client lets through errors of its own, of its transport and of the operating system.
    except Exception as error:
        if cached := _cached_files(place, revision):
            return cached, True
        at = "" if revision is None else f" at revision {revision}"
        raise ProbingError(
            f"model '{source.name}'{at} is neither a folder here nor to be had from the Hub: not there, or offline"
            f" ({first_line(error)}); give the path of a folder"
        ) from error


def _cached_files(name: str, revision: str | None) -> list[str]:
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return [
        file.file_name
        for repo in repos
        if repo.repo_id == name
        for found in repo.revisions
        if (revision or "main") in {*found.refs, found.commit_hash}
        for file in found.files
    ]


def _weights_format(source: ModelSource, files: list[str]) -> WeightsFormat:
    if source.gguf_file is not None:
        return "gguf"
    if any(name.endswith(".safetensors") for name in files):
        return "safetensors"
    if any(name.endswith(".bin") for name in files):
        if source.allow_bin:
            return "bin"
        raise ProbingError(
            f"{source.name} has its weights in .bin files only, which are pickles; pass --allow-bin to read them"
            " through torch's weights_only=True"
        )
    if any(name.endswith(".gguf") for name in files):
        raise ProbingError(f"{source.name} has its weights in GGUF files; name one with --gguf-file")
    raise ProbingError(f"{source.name} holds no weights; expected .safetensors files")


def _config(source: ModelSource, place: str, common: Mapping[str, Any]) -> Any:
    try:
        return AutoConfig.from_pretrained(place, **common)
    except (OSError, ValueError, KeyError) as error:
        raise ProbingError(f"the config of {source.name} cannot be read: {first_line(error)}") from error


def _refuse_quantized(config: Any, name: str) -> None:
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        kind = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ProbingError(
            f"the weights of {name} are quantized ({kind}), which moves every angle; probe the original, or a GGUF file"
            " with --gguf-file, which is taken out of its quantization"
        )


def _model(source: ModelSource, place: str, common: Mapping[str, Any], weights_format: WeightsFormat) -> nn.Module:
    options: dict[str, Any] = {
        **common,
        "dtype": source.dtype if source.dtype == "auto" else DTYPES[source.dtype],
        "output_loading_info": True,
    }
    if weights_format == "gguf":
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtraError("probe --gguf-file", GGUF_EXTRA, "gguf")
        options["gguf_file"] = source.gguf_file
    else:
        options["use_safetensors"] = weights_format == "safetensors"
        options["weights_only"] = True
    if source.device_map is not None:
        options["device_map"] = source.device_map
    try:
        model, info = AutoModelForCausalLM.from_pretrained(place, **options)
    # Loaders of every format let through errors of their own kinds.
    except Exception as error:
        raise ProbingError(f"{source.name} cannot be loaded: {first_line(error)}") from error
    _require_whole(model, info, source.name)
    return model


def _require_whole(model: Any, info: Mapping[str, Any], name: str) -> None:
    missing = set(info["missing_keys"]) - set(model.all_tied_weights_keys)
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ProbingError(
            f"the weights of {name} lack '{min(missing)}'{others}, which would be drawn at random; expected every"
            " weight of the model that its config names"
        )
    mismatched = info.get("mismatched_keys")
    if mismatched:
        raise ProbingError(f"weights of {name} have another shape than its config says: {min(map(str, mismatched))}")
    for kind, tensors in (("weight", model.named_parameters()), ("buffer", model.named_buffers())):
        for key, tensor in tensors:
            if tensor.is_meta:
                raise ProbingError(
                    f"{kind} '{key}' of {name} was left on the meta device; use a --device-map that keeps all in memory"
                )
    for key, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ProbingError(f"weight '{key}' of {name} is {parameter.dtype}: quantized; probe the original")
    _require_tied_as_configured(model, name)


def _require_tied_as_configured(model: Any, name: str) -> None:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embedding is None or not hasattr(head, "weight"):
        return
    tied = head.weight is embedding.weight
    wanted = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    if tied != wanted:
        words = ("untied", "tied") if wanted else ("tied", "untied")
        raise ProbingError(f"the head of {name} came {words[0]} from the embedding; its config says {words[1]}")


def _tokenizer(source: ModelSource, place: str, common: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    options = dict(common)
    if source.tokenizer is not None:
        place = source.tokenizer
        options["revision"] = None
        options["local_files_only"] = Path(place).is_dir()
    elif source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
    try:
        return AutoTokenizer.from_pretrained(place, **options)
    # Any kind comes out of here: OSError offline, ValueError for an unknown model type, JSON and key errors.
    except Exception as error:
        raise ProbingError(
            f"{place} holds no tokenizer that transformers reads ({first_line(error)}); name one with --tokenizer"
        ) from error


def _require_fitting(tokenizer: PreTrainedTokenizerBase, model: nn.Module, source: ModelSource) -> None:
    """Some tokenizer classes load without any files and know no token then."""
    largest = max(tokenizer("a", add_special_tokens=False)["input_ids"], default=-1)
    if largest < 0:
        raise ProbingError(f"{source.name} holds no tokenizer (a letter makes no token); name one with --tokenizer")
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    largest = max(tokenizer.get_vocab().values(), default=largest)
    if largest >= rows:
        raise ProbingError(
            f"the tokenizer has token id {largest}, but {source.name} has {rows} embeddings; name its own with"
            " --tokenizer"
        )

"""Tokenizers: bytes, byte-level BPE trained on the corpus, or any pretrained one.

    ``bytes``     256 entries, id = byte value, and the end-of-text token 256
    ``bpe:N``     byte-level BPE of at most N entries, the 256 bytes and the end-of-text token among them
    PATH or ID    a folder or a Hub id that AutoTokenizer reads

All are ``PreTrainedTokenizerFast``, so that a checkpoint carries its own. No beginning-of-text token is ever
added: the end-of-text token stands after every document and is the only one between two.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from huggingface_hub import HfApi
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from depthscale.errors import DataError, first_line
from depthscale.runs.files import local_path

END_OF_TEXT = "<|endoftext|>"
BYTES = "bytes"
BPE_PREFIX = "bpe:"
NUM_BYTE_VALUES = 256

_SMALLEST_BPE = NUM_BYTE_VALUES + 1
_ENCODE_BATCH = 64
_HUB_TIMEOUT_SECONDS = 10.0
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def is_trained_on_corpus(spec: str) -> bool:
    """Whether the tokenizer depends on the training split."""
    return spec.startswith(BPE_PREFIX)


def load_tokenizer(spec: str) -> PreTrainedTokenizerFast:
    """The tokenizer that a specification other than ``bpe:N`` names.

    Args:
        spec: ``bytes``, the path of a saved tokenizer, or a Hub id.

    Raises:
        DataError: nothing is found under that name (the Hub cannot be reached, say), or the tokenizer has no
            end-of-text token or no fast form.
    """
    if spec == BYTES:
        return byte_tokenizer()
    path = local_path(spec, "tokenizer")
    if not path.exists() and not _HUB_ID.fullmatch(spec):
        raise DataError(f"tokenizer '{spec}' does not exist; {_expected(spec)}")
    try:
        tokenizer = _from_disk(str(path)) if path.exists() else _from_hub(spec)
    # Any kind comes out of here: OSError offline, ValueError for an unknown model type, JSON and key errors.
    except Exception as error:
        where = "nothing there that transformers can read" if path.exists() else "not on the Hub, or offline"
        raise DataError(
            f"tokenizer '{spec}' cannot be loaded ({where}: {first_line(error)}); {_expected(spec)}"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise DataError(f"tokenizer '{spec}' has no fast form (a tokenizer.json); {_expected(spec)}")
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"tokenizer '{spec}' has no end-of-text token, which stands between documents;"
            " set eos_token and save it again, or choose another"
        )
    return tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 byte values and the end-of-text token; a text's ids are its UTF-8 bytes.

    Example:
        >>> byte_tokenizer().encode("ab")
        [97, 98]
    """
    vocabulary = {character: value for value, character in enumerate(_byte_characters())}
    model = models.BPE(vocab={**vocabulary, END_OF_TEXT: NUM_BYTE_VALUES}, merges=[])
    return _as_pretrained(_byte_level(model, use_regex=False))


def train_byte_level_bpe(texts: Iterable[str], num_entries: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with GPT-2's word pattern, trained on ``texts``; the same texts give the same tokenizer.

    Args:
        texts: the training split only.
        num_entries: entries at most, bytes and end-of-text token included; fewer come out when the texts
            hold no more pairs that occur twice.

    Raises:
        DataError: ``num_entries`` is below 257.
    """
    _require_bpe_size(num_entries)
    backend = _byte_level(models.BPE(), use_regex=True)
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=num_entries,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[END_OF_TEXT],
            show_progress=False,
        ),
    )
    return _as_pretrained(backend)


def bpe_entries(spec: str) -> int:
    """N of ``bpe:N``.

    Raises:
        DataError: what follows the colon is no whole number, or is below 257.
    """
    entries = spec.removeprefix(BPE_PREFIX)
    if not entries.isdecimal():
        raise DataError(f"tokenizer '{spec}' names no size; expected for example bpe:1024")
    _require_bpe_size(int(entries))
    return int(entries)


def tokenizer_to_json(tokenizer: PreTrainedTokenizerFast) -> str:
    """The JSON form of a tokenizer made here, which :func:`tokenizer_from_json` reads."""
    return str(tokenizer.backend_tokenizer.to_str())


def tokenizer_from_json(content: str) -> PreTrainedTokenizerFast:
    """Read what :func:`tokenizer_to_json` wrote."""
    return _as_pretrained(Tokenizer.from_str(content))


def encode_documents(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Iterator[NDArray[np.int64]]:
    """Token ids of each text, without special tokens; a special token's name inside a text is ordinary text."""
    for start in range(0, len(texts), _ENCODE_BATCH):
        encoding = tokenizer(
            list(texts[start : start + _ENCODE_BATCH]),
            add_special_tokens=False,
            split_special_tokens=True,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            verbose=False,
        )
        for ids in encoding["input_ids"]:
            yield np.asarray(ids, dtype=np.int64)


def vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Rows that an embedding needs: the largest id plus one."""
    return int(max(tokenizer.get_vocab().values())) + 1


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of the tokenizer's JSON form and its end-of-text token."""
    content = f"{tokenizer.backend_tokenizer.to_str()}\0{tokenizer.eos_token}"
    return hashlib.sha256(content.encode()).hexdigest()


def _require_bpe_size(num_entries: int) -> None:
    if num_entries < _SMALLEST_BPE:
        raise DataError(
            f"tokenizer 'bpe:{num_entries}' is too small; expected at least bpe:{_SMALLEST_BPE}"
            " (256 bytes and the end-of-text token)"
        )


def _byte_level(model: models.Model, *, use_regex: bool) -> Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    backend.decoder = decoders.ByteLevel()
    return backend


def _as_pretrained(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False)


def _byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte value.

    Source: GPT-2's bytes_to_unicode: printable Latin-1 bytes stand for themselves, the others follow from 256.
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(NUM_BYTE_VALUES, 2 * NUM_BYTE_VALUES))
    return [chr(value if value in itself else next(others)) for value in range(NUM_BYTE_VALUES)]


def _from_disk(name: str) -> object:
    return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)


def _from_hub(hub_id: str) -> object:
    """From the Hub's cache on disk, else from the Hub.

    The Hub is asked once whether it knows the id: loading itself tries again for most of a minute offline.
    """
    try:
        return _from_disk(hub_id)
    except (OSError, ValueError):
        HfApi().model_info(hub_id, timeout=_HUB_TIMEOUT_SECONDS)
        return AutoTokenizer.from_pretrained(hub_id, trust_remote_code=False)


def _expected(spec: str) -> str:
    near = difflib.get_close_matches(spec, [BYTES, "bpe"], n=1, cutoff=0.5)
    hint = f"did you mean '{near[0].replace('bpe', 'bpe:1024')}'? " if near else ""
    return f"{hint}expected '{BYTES}', 'bpe:N', the folder of a saved tokenizer or a Hub id"

"""From a corpus to packed splits, and the cache between."""

import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from depthscale.errors import DataError
from depthscale.runs.data_config import DataConfig
from depthscale.training import cache, prepare
from depthscale.training.corpora import corpus_sha256, read_corpus
from depthscale.training.prepare import prepare_data
from depthscale.training.tokenizer import tokenizer_sha256


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for index in range(30):
        draw = random.Random(index)
        words = ["".join(draw.choices("abcdeé", k=4)) for _ in range(60)]
        (folder / f"{index:02}.txt").write_text(" ".join(words), encoding="utf-8")
    (folder / "copy.txt").write_text((folder / "03.txt").read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.fixture
def prepared(corpus, tmp_path):
    def call(**changes):
        settings = {
            "corpus": str(corpus),
            "tokenizer": "bpe:300",
            "context_length": 16,
            "tuning_fraction": 0.1,
            "report_fraction": 0.2,
        }
        cache_dir = changes.pop("cache_dir", tmp_path / "cache")
        return prepare_data(DataConfig(**{**settings, **changes}), cache_dir=cache_dir)

    return call


@pytest.fixture
def builds(monkeypatch):
    """The builds that happen, one entry each."""
    calls = []
    original = prepare._build
    monkeypatch.setattr(prepare, "_build", lambda *arguments: (calls.append(1), original(*arguments)))
    return calls


def split_text(data, name):
    dataset = data.splits[name].dataset
    ends = [*dataset.starts[1:], dataset.num_tokens]
    return [data.tokenizer.decode(dataset.stream[a : b - 1]) for a, b in zip(dataset.starts, ends, strict=True)]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_splits_hold_the_corpus_without_its_duplicate(prepared, corpus, tokenizer):
    data = prepared(tokenizer=tokenizer)
    texts = [text for name in data.splits for text in split_text(data, name)]
    assert sorted(texts) == sorted({document.text for document in read_corpus(str(corpus))})
    assert (data.num_documents_read, data.num_exact_duplicates, data.num_near_duplicates) == (31, 1, 0)
    assert data.corpus_sha256 == corpus_sha256(read_corpus(str(corpus)))
    for name, split in data.splits.items():
        assert split.num_documents == len(split.dataset.starts)
        assert split.num_bytes == sum(len(text.encode()) for text in split_text(data, name))
    assert data.splits["train"].dataset.num_dropped_tokens == data.splits["train"].num_tokens % 16


def test_the_bpe_is_trained_on_the_training_split_only(prepared, monkeypatch):
    seen = []
    original = prepare.train_byte_level_bpe
    monkeypatch.setattr(
        prepare, "train_byte_level_bpe", lambda texts, size: (seen.extend(texts), original(texts, size))[1]
    )
    data = prepared()
    assert sorted(seen) == sorted(split_text(data, "train"))


def test_the_description_is_json_and_the_second_call_says_the_same(prepared, builds):
    first, second = prepared(), prepared()
    assert len(builds) == 1
    assert json.loads(json.dumps(first.describe())) == second.describe()
    assert first.describe()["splits"]["tuning"]["num_tokens"] == first.splits["tuning"].num_tokens


def test_a_pretrained_tokenizer_has_the_same_hash_before_and_after_encoding(prepared, tmp_path):
    tokenizer = prepared().tokenizer
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.save_pretrained(tmp_path / "saved")
    first, second = (prepared(tokenizer=str(tmp_path / "saved")) for _ in range(2))
    assert first.describe() == second.describe()


def test_context_and_attention_share_one_cache_entry_and_all_else_does_not(prepared, builds, corpus):
    prepared()
    prepared(context_length=8, attend_across_documents=True)
    assert len(builds) == 1
    changes = [{"split_seed": 1}, {"tuning_fraction": 0.2}, {"report_fraction": 0.1}, {"tokenizer": "bpe:301"}]
    for number, change in enumerate(changes, start=2):
        prepared(**change)
        assert len(builds) == number
    (corpus / "new.txt").write_text("entirely new words in a document")
    assert prepared().num_documents_read == 32


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest", "empty manifest"])
def test_a_damaged_cache_is_rebuilt(prepared, builds, tmp_path, damage):
    before = prepared().describe()
    (folder,) = (tmp_path / "cache").iterdir()
    target = folder / ("manifest.json" if "manifest" in damage else "train.npy")
    content = target.read_bytes()
    if damage == "truncate":
        target.write_bytes(content[:-10])
    elif damage == "flip":
        target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "delete":
        target.unlink()
    else:
        target.write_bytes(b"{" if damage == "manifest" else b"{}")
    assert prepared().describe() == before
    assert len(builds) == 2
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_a_build_that_fails_leaves_nothing_behind(prepared, tmp_path, monkeypatch):
    def full_disk(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare.np, "save", full_disk)
    with pytest.raises(DataError, match=r"cannot write the data cache in .*No space left on device") as caught:
        prepared()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_process_that_comes_second_takes_the_first_ones_folder(tmp_path):
    """Also on a file system whose locks keep nobody out."""
    elsewhere = tmp_path / "elsewhere"
    home = tmp_path / "home"

    def build(folder):
        (folder / "value").write_text("second")
        first = cache.cached_folder(elsewhere, "key", lambda other: (other / "value").write_text("first") and None)
        first.rename(home / "key")

    assert (cache.cached_folder(home, "key", build) / "value").read_text() == "first"
    assert [path.name for path in home.iterdir()] == ["key"]


def test_processes_that_prepare_at_once_all_succeed(corpus, tmp_path):
    code = (
        "import sys; from pathlib import Path; from depthscale.training.cache import cached_folder\n"
        "def build(folder):\n"
        "    for name in range(50): (folder / str(name)).write_text(str(name))\n"
        "for key in range(20): assert len(list(cached_folder(Path(sys.argv[1]), str(key), build).iterdir())) == 51\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert len(list((tmp_path / "cache").iterdir())) == 20


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "chosen"))
    assert cache.default_cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("DEPTHSCALE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_cache_dir() == tmp_path / "depthscale"


def test_the_unigram_floor_is_the_smoothed_cross_entropy(prepared):
    data = prepared(tokenizer="bytes")
    train = b"".join(text.encode() for text in split_text(data, "train"))
    tuning = split_text(data, "tuning")
    counts = {token: train.count(bytes([token])) + 1 for token in range(256)}
    counts[256] = data.splits["train"].num_documents + 1
    tokens = [token for text in tuning for token in [*text.encode(), 256]]
    expected = -sum(math.log(counts[token] / sum(counts.values())) for token in tokens) / len(tokens)
    assert data.unigram_loss_nats("tuning") == pytest.approx(expected, rel=1e-12)
    with pytest.raises(DataError, match="unknown split 'tunin'; did you mean 'tuning'"):
        data.unigram_loss_nats("tunin")


def test_bits_per_byte_of_the_uniform_byte_model_is_eight(prepared):
    split = prepared(tokenizer="bytes").splits["report"]
    # One end-of-text token per document is paid for beside the bytes.
    expected = 8 * (split.num_bytes + split.num_documents) / split.num_bytes
    assert split.bits_per_byte(math.log(256)) == pytest.approx(expected, rel=1e-12)


def test_a_corpus_too_small_for_one_row_is_refused(prepared):
    with pytest.raises(DataError, match=r"the train split holds .* tokens, too few for a row of 100000"):
        prepared(context_length=100_000)


def test_a_bad_tokenizer_size_is_refused_before_the_corpus_is_read(prepared, monkeypatch):
    monkeypatch.setattr(prepare, "read_corpus", lambda *arguments: pytest.fail("read"))
    with pytest.raises(DataError, match="at least bpe:257"):
        prepared(tokenizer="bpe:12")


def test_the_stream_is_memory_mapped_and_narrow(prepared):
    data = prepared()
    stream = data.splits["train"].dataset.stream
    assert isinstance(stream, np.memmap)
    assert stream.dtype == np.uint16
    assert data.vocab_size == 300
    assert data.tokenizer_sha256 == tokenizer_sha256(data.tokenizer)


def test_a_row_of_the_data_goes_through_its_collator(prepared):
    data = prepared()
    rows = data.splits["train"].dataset
    batch = data.collate([rows[0], rows[1]])
    assert batch["input_ids"].shape == (2, 16)

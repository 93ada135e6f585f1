"""Streams: the same rows however often the process dies, and every fault in one line."""

import hashlib
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_repository import text_of, write_repository

from depthscale.errors import ConfigError, DataError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate
from depthscale.runs.data_config import DataConfig
from depthscale.runs.metrics import read_metrics
from depthscale.training import stream_cache, streams, token_stream
from depthscale.training.batch_order import EpochOrderSampler
from depthscale.training.prepare import prepare_data
from depthscale.training.prepared_data import PreparedData
from depthscale.training.run import train_run
from depthscale.training.streamed_rows import StreamedRows
from depthscale.training.trainer import LoopedTrainer

T = 16
SHARD = 1_000
HELD_OUT = 600


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("hub") / "repository")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_cache, "SHARD_TOKENS", SHARD)


def prepared(repository: Path | str, cache: Path, **changes: Any) -> PreparedData:
    settings = {
        "corpus": f"stream:{repository}",
        "tokenizer": "bytes",
        "context_length": T,
        "train_tokens": 12_000,
        "held_out_tokens": HELD_OUT,
    }
    return prepare_data(DataConfig(**settings | changes), cache_dir=cache)


def train_rows(data: PreparedData) -> StreamedRows:
    rows = data.splits["train"].dataset
    assert isinstance(rows, StreamedRows)
    return rows


def stream_of(texts: list[str]) -> list[int]:
    return [token for text in texts for token in [*text.encode(), 256]]


def test_the_head_is_held_out_and_the_rest_is_the_stream_in_shards(repository: Path, tmp_path: Path) -> None:
    data = prepared(repository, tmp_path)
    tuning, report = data.splits["tuning"], data.splits["report"]
    # Whole documents until there are at least HELD_OUT tokens.
    lengths = np.cumsum([len(text_of(row)) + 1 for row in range(180)])
    first = int(np.searchsorted(lengths, HELD_OUT)) + 1
    second = first + int(np.searchsorted(lengths[first:] - lengths[first - 1], HELD_OUT)) + 1
    assert (tuning.num_documents, report.num_documents) == (first, second - first)
    assert tuning.dataset.stream.tolist() == stream_of([text_of(row) for row in range(first)])
    assert report.dataset.stream.tolist() == stream_of([text_of(row) for row in range(first, second)])
    assert tuning.num_bytes == sum(len(text_of(row)) for row in range(first))

    expected = stream_of([text_of(row) for row in range(second, 180)])
    rows = train_rows(data)
    assert (rows.num_rows, rows.rows_per_block, rows.num_shards) == (750, 62, 13)
    for row in (0, 1, 61, 62, 63, 749):
        shard, within = divmod(row, 62)
        low = shard * SHARD + within * T
        assert rows[row]["input_ids"].tolist() == expected[low : low + T]
    starts = np.flatnonzero(np.array(expected) == 256) + 1
    shard = rows.cache.shard(1)
    assert shard.starts.tolist() == [start - SHARD for start in starts if SHARD <= start < 2 * SHARD]


def test_text_is_tokenized_once(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared(repository, tmp_path)
    train_rows(first).make_all()
    monkeypatch.setattr(streams, "documents_from", lambda *arguments: pytest.fail("read again"))
    monkeypatch.setattr(stream_cache, "documents_from", lambda *arguments: pytest.fail("read again"))
    again = prepared(repository, tmp_path, context_length=32, attend_across_documents=True)
    train_rows(again).make_all()
    assert again.corpus_sha256 == first.corpus_sha256
    assert again.describe()["splits"]["report"]["num_bytes"] == first.describe()["splits"]["report"]["num_bytes"]


def test_an_exact_copy_of_a_held_out_text_is_not_trained_on(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    texts = [text_of(row) for row in range(30)]
    repository = tmp_path / "repository"
    repository.mkdir()
    parquet.write_table(pyarrow.table({"text": [*texts, texts[0], " ", "fresh", texts[29]]}), repository / "a.parquet")
    data = prepared(repository, tmp_path / "cache", train_tokens=16, held_out_tokens=200)
    rows = train_rows(data)
    tokens = [int(token) for index in range(10) for token in _shard_ids(rows, index)]
    text = bytes(token if token < 256 else 10 for token in tokens).decode()
    assert texts[0] not in text
    assert "fresh" in text
    # Copies inside the training split stay: a stream is not searched for them.
    assert text.count(texts[29]) == 2


def _shard_ids(rows: StreamedRows, index: int) -> list[int]:
    try:
        return rows.cache.shard(index).ids.tolist()
    except DataError:
        return []


def batches(repository: Path, cache: Path, start: int, die_at_shard: int | None = None) -> tuple[int, list[str]]:
    """Exit code and a line for each batch from ``start`` on, of a process of its own that may be killed."""
    lines = cache.parent / f"{cache.name}-{start}.txt"

    def work() -> None:
        write = stream_cache.atomic_write_text

        def deadly(path: Path, content: str) -> None:
            if die_at_shard is not None and path.name == f"train-{die_at_shard:06d}.json":
                # Between the tokens and the file that says they are there.
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, content)

        stream_cache.atomic_write_text = deadly  # type: ignore[assignment]
        data = prepared(repository, cache)
        rows = train_rows(data)
        order = list(EpochOrderSampler(len(rows), 7, 750 + 100, rows_per_block=rows.rows_per_block))
        with lines.open("w") as file:
            for step in range(start, len(order) // 10):
                batch = data.collate([rows[row] for row in order[10 * step : 10 * step + 10]])
                content = b"".join(value.numpy().tobytes() for _, value in sorted(batch.items()))
                print(step, hashlib.sha256(content).hexdigest(), file=file, flush=True)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, lines.read_text().splitlines()


def test_a_process_killed_in_mid_stream_goes_on_with_the_same_batches(repository: Path, tmp_path: Path) -> None:
    """Public fault: a resumed stream repeats or skips data. Batches by hash, over an epoch's edge, killed twice."""
    code, unbroken = batches(repository, tmp_path / "unbroken", 0)
    assert code == 0
    assert len(unbroken) == 85
    assert len({line.split()[1] for line in unbroken[:75]}) == 75
    code, before = batches(repository, tmp_path / "broken", 0, die_at_shard=4)
    assert code == -9
    assert 0 < len(before) < 75
    code, between = batches(repository, tmp_path / "broken", len(before), die_at_shard=9)
    assert code == -9
    assert between
    _, after = batches(repository, tmp_path / "broken", len(before) + len(between))
    assert [*before, *between, *after] == unbroken


def test_a_damaged_shard_is_made_again_alike(repository: Path, tmp_path: Path) -> None:
    rows = train_rows(prepared(repository, tmp_path))
    rows.make_all()
    folder = rows.cache.folder
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "train-000003.npy").write_bytes(whole["train-000003.npy"][:-7])
    (folder / "train-000007.json").unlink()
    spoiled = bytearray(whole["train-000009.npy"])
    spoiled[-1] ^= 1
    (folder / "train-000009.npy").write_bytes(bytes(spoiled))
    train_rows(prepared(repository, tmp_path)).make_all()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_another_reader_version_counts_documents_instead(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_rows(prepared(repository, tmp_path / "whole"))
    rows = train_rows(prepared(repository, tmp_path / "other"))
    for meta in rows.cache.folder.glob("train-*.json"):
        document = json.loads(meta.read_text())
        document["after"]["documents"] |= {"reader": "0.0", "state": {"nonsense": 1}}
        meta.write_text(json.dumps(document))
    again = train_rows(prepared(repository, tmp_path / "other"))
    assert again.cache.shard(1).ids.tolist() == whole.cache.shard(1).ids.tolist()


def test_a_large_vocabulary_streams_as_uint32(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public fault: token ids overflow uint16."""
    monkeypatch.setattr(token_stream, "vocabulary_size", lambda tokenizer: 70_257)
    assert train_rows(prepared(repository, tmp_path)).first_shard.ids.dtype == np.uint32


def test_rows_are_shuffled_inside_blocks_and_every_row_comes_once() -> None:
    order = list(EpochOrderSampler(num_rows=25, seed=3, num_samples=50, rows_per_block=10))
    for epoch in (order[:25], order[25:]):
        assert [sorted(epoch[low : low + 10]) for low in (0, 10, 20)] == [
            list(range(0, 10)), list(range(10, 20)), list(range(20, 25)),
        ]  # fmt: skip
    assert order[:10] != sorted(order[:10])
    assert order[:10] != order[25:35] != [row - 10 for row in order[10:20]]
    for start in (3, 12, 24, 31):
        assert list(EpochOrderSampler(25, 3, 50 - start, start=start, rows_per_block=10)) == order[start:]


def test_what_a_result_says_of_a_stream(repository: Path, tmp_path: Path) -> None:
    data = prepared(repository, tmp_path)
    said = data.describe()
    assert said["train_tokens"] == 12_000
    assert said["splits"]["train"]["num_tokens"] == 12_000
    assert said["splits"]["train"]["num_targets"] is None
    # Documents of random words: a byte a token, and one end-of-text token a document.
    assert said["splits"]["train"]["bytes_per_token"] == pytest.approx(1, abs=0.1)
    assert said["splits"]["tuning"]["unigram_loss_nats"] < np.log(257)
    moved = write_repository(tmp_path / "elsewhere")
    assert prepared(moved, tmp_path).corpus_sha256 == data.corpus_sha256
    assert prepared(repository, tmp_path, held_out_tokens=700).corpus_sha256 != data.corpus_sha256
    json.dumps(said, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"corpus": "stream:nowhere"},
            "neither a folder nor a data set of the Hub; expected stream:FOLDER or stream:O",
        ),
        ({"corpus": "stream:pandas"}, "neither a folder nor a data set of the Hub"),
        ({"text_field": "body"}, "has no column 'body'; its columns: id, text. Name the right one in data.text_field"),
        ({"text_field": "id"}, "document 1: column 'id' holds a int; expected a string"),
        ({"subset": "none"}, "cannot be opened .*'none'.*check its files, data.subset and data.stream_split"),
        ({"stream_split": "none"}, "cannot be opened .*none.*data.stream_split"),
        ({"revision": "abc"}, "is a folder, which has no revision; leave data.revision out"),
        ({"held_out_tokens": 10**6}, "before the training split begins; lower data.held_out_tokens, which is 1000000"),
        ({"context_length": 2_000}, "expected 3 to 1000 tokens, the length of a shard"),
        ({"train_tokens": 15}, "the train split holds 0 tokens, too few for a row of 16"),
    ],
)
def test_a_fault_is_one_clear_line(repository: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        prepared(repository, tmp_path / "cache", **changes)
    assert "\n" not in str(caught.value)


def test_a_hub_name_offline_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="'nobody/nothing' cannot be reached: not on the Hub, or offline") as caught:
        prepared("nobody/nothing", tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("stream-*/*.npy"))


def test_what_is_cached_of_a_hub_data_set_needs_no_network(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hub is played by the local folder; its commit is asked once and kept."""
    asked = []
    read = stream_cache.documents_from

    def from_folder(source: streams.StreamSource, revision: str | None, position: streams.StreamPosition) -> Any:
        asked.append(revision)
        local = streams.StreamSource(str(repository), True, None, "train", "text", None)
        return read(local, None, position)

    monkeypatch.setattr(stream_cache, "documents_from", from_folder)
    monkeypatch.setattr(streams.StreamSource, "pinned_revision", lambda self: "c0ffee")
    train_rows(prepared("owner/name", tmp_path)).make_all()
    assert set(asked) == {"c0ffee"}
    monkeypatch.setattr(streams.StreamSource, "pinned_revision", lambda self: pytest.fail("asked again"))
    data = prepared("owner/name", tmp_path)
    train_rows(data).make_all()
    assert data.describe()["revision"] == "c0ffee"
    # Beyond what is cached, the same commit is read.
    longer = train_rows(prepared("owner/name", tmp_path, train_tokens=14_000))
    longer.make_all()
    assert set(asked) == {"c0ffee"}


def test_a_stream_that_ends_early_says_how_far_it_goes(repository: Path, tmp_path: Path) -> None:
    rows = train_rows(prepared(repository, tmp_path, train_tokens=10**6))
    with pytest.raises(DataError, match=r"ends after (\d+) rows of 16 training tokens; set data.train_tok") as caught:
        rows.make_all()
    most = int(str(caught.value).split("at most ")[1].split(" ")[0])
    train_rows(prepared(repository, tmp_path, train_tokens=most)).make_all()
    with pytest.raises(DataError, match="ends after"):
        train_rows(prepared(repository, tmp_path, train_tokens=most + T)).make_all()
    # Asked far beyond the end.
    with pytest.raises(DataError, match=r"ends after \d+ training tokens"):
        rows.cache.shard(500)


def test_a_stream_that_breaks_off_keeps_what_it_gave(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    original = datasets.IterableDataset.__iter__

    def broken(self: Any) -> Any:
        for number, row in enumerate(original(self)):
            if number == 40:
                raise ConnectionError("the line\nwent dead")
            yield row

    monkeypatch.setattr(datasets.IterableDataset, "__iter__", broken)
    with pytest.raises(DataError, match=r"broke off after 40 documents \(the line\); give the same comma") as error:
        train_rows(prepared(repository, tmp_path)).make_all()
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    monkeypatch.setattr(stream_cache, "SHARD_TOKENS", SHARD)
    whole = train_rows(prepared(repository, tmp_path / "whole"))
    rows = train_rows(prepared(repository, tmp_path))
    assert [rows[row]["input_ids"].tolist() for row in range(0, 750, 50)] == [
        whole[row]["input_ids"].tolist() for row in range(0, 750, 50)
    ]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"corpus": "stream:x/y"}, "came without train_tokens; a stream has no end that is known beforehand"),
        ({"corpus": "stream:x/y", "train_tokens": 9, "tokenizer": "bpe:300"}, "which a stream does not have"),
        (
            {"corpus": "x/y", "train_tokens": 9, "subset": "z"},
            r"no stream and ignores train_tokens, subset; .*stream:x/y",
        ),
        ({"corpus": "stream:x/y", "train_token": 9}, "did you mean 'train_tokens'"),
    ],
)
def test_a_configuration_that_no_stream_can_have(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(DataConfig, {"tokenizer": "bytes"} | tables, "test")
    assert "\n" not in str(caught.value)


def write_texts(folder: Path, texts: list[str]) -> Path:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    parquet.write_table(pyarrow.table({"text": texts}), folder / "a.parquet", compression="none")
    return folder


def test_another_training_text_behind_the_same_head_is_another_corpus(tmp_path: Path) -> None:
    """Held-out splits alone do not tell texts apart: runs trained on either must not be compared."""
    texts = [text_of(row) for row in range(60)]
    settings: dict[str, Any] = {"train_tokens": 2_500, "held_out_tokens": 200}
    hashes = {
        name: prepared(write_texts(tmp_path / name, shown), tmp_path / "cache", **settings).corpus_sha256
        for name, shown in {
            "one": texts,
            "first shard differs": [*texts[:10], texts[10].upper(), *texts[11:]],
            "later": [*texts, "and more"],
        }.items()
    }
    assert len(set(hashes.values())) == 3


def test_an_exact_copy_of_a_tuning_text_is_not_reported_on(tmp_path: Path) -> None:
    texts = [text_of(row) for row in range(40)]
    repository = write_texts(tmp_path / "repository", [*texts[:3], texts[1], *texts[3:]])
    data = prepared(repository, tmp_path / "cache", train_tokens=16, held_out_tokens=300)
    tuning, report = (bytes(t if t < 256 else 10 for t in data.splits[name].dataset.stream.tolist()).decode()
                      for name in ("tuning", "report"))  # fmt: skip
    assert texts[1] in tuning
    assert texts[3] in report
    assert texts[1] not in report


def test_hashes_of_shards_are_those_of_their_tokens(repository: Path, tmp_path: Path) -> None:
    piece = train_rows(prepared(repository, tmp_path)).first_shard
    assert piece.sha256 == hashlib.sha256(piece.ids.tobytes()).hexdigest()


def test_a_training_run_killed_in_mid_stream_equals_the_unbroken_one(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public fault: resume repeats or skips data. Killed at step 4 of 9 for good, while shards are still to come."""
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache"))
    tables = {
        "plan": {"blocks": 1, "rounds": 2},
        "model": {"hidden_size": 16, "num_attention_heads": 1},
        "data": {
            "corpus": f"stream:{repository}", "tokenizer": "bytes", "context_length": T, "train_tokens": 12_000,
            "held_out_tokens": HELD_OUT,
        },
        "train": {
            "steps": 9, "batch_rows": 30, "global_batch_rows": 60, "lr": 5e-3, "log_every": 1, "checkpoint_every": 3,
            "eval_rows": 4, "num_threads": 1,
        },
    }  # fmt: skip
    config = validate(RunConfig, tables, "test")
    step = LoopedTrainer.training_step

    def watched(seen: Path, kill_at: int | None) -> Any:
        def training_step(self: LoopedTrainer, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
            if self.state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with seen.open("a") as file:
                digest = hashlib.sha256(inputs["input_ids"].numpy().tobytes()).hexdigest()
                print(self.state.global_step, digest, file=file, flush=True)
            return step(self, model, inputs, *rest, **named)

        return training_step

    def train(directory: Path, seen: Path, kill_at: int | None = None, resume: bool = False) -> None:
        LoopedTrainer.training_step = watched(seen, kill_at)
        train_run(config, directory, resume=resume)

    monkeypatch.setattr(LoopedTrainer, "training_step", step)
    broken = multiprocessing.get_context("fork").Process(
        target=train, args=(tmp_path / "broken", tmp_path / "before.txt", 4)
    )
    broken.start()
    broken.join()
    assert broken.exitcode == -signal.SIGKILL
    num_shards = len(list((tmp_path / "cache").glob("stream-*/train-*.json")))
    assert 0 < num_shards < 10
    train(tmp_path / "broken", tmp_path / "after.txt", resume=True)
    # The unbroken run reads the stream for itself.
    monkeypatch.setenv("DEPTHSCALE_CACHE", str(tmp_path / "cache of its own"))
    train(tmp_path / "unbroken", tmp_path / "unbroken.txt")
    unbroken = (tmp_path / "unbroken.txt").read_text().splitlines()
    before = [line for line in (tmp_path / "before.txt").read_text().splitlines() if int(line.split()[0]) < 3]
    assert before + (tmp_path / "after.txt").read_text().splitlines() == unbroken
    assert len(set(unbroken)) == 18
    traces = [
        [(r["step"], r["loss_nats"]) for r in read_metrics(tmp_path / name / "metrics.jsonl") if r["kind"] == "train"]
        for name in ("broken", "unbroken")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0]) == 9

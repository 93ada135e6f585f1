"""Reading corpora, dropping near-duplicates and splitting by document."""

import hashlib
import json
import os
import random
import sys

import numpy as np
import pytest

from depthscale.errors import DataError
from depthscale.training import corpora
from depthscale.training.corpora import Document, corpus_fingerprint, corpus_sha256, read_corpus
from depthscale.training.near_duplicates import find_near_duplicates, jaccard
from depthscale.training.splits import SPLITS, split_documents


def words(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnop", k=6)) for _ in range(count)]


def some_documents(count: int, size: int = 50) -> list[Document]:
    return [Document(f"d{index}", " ".join(words(index, size))) for index in range(count)]


# -- reading ---------------------------------------------------------------------------------------------


def test_a_text_file_is_one_document_and_keeps_its_line_ends(tmp_path):
    file = tmp_path / "book.weird"
    file.write_bytes("\ufeffa\r\nb\u2028é\n".encode())
    assert read_corpus(str(file)) == [Document("book.weird", "a\r\nb\u2028é\n")]


def test_a_folder_is_read_in_sorted_order_without_other_or_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in [("b/z.md", "z"), ("a.txt", "a"), ("c.py", "c"), (".git/x.txt", "x"), ("empty.txt", " \n")]:
        (tmp_path / name).write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "d.jsonl").write_text('{"text": "one"}\n\n{"text": "two\\u2028lines"}\n')
    assert [(d.name, d.text) for d in read_corpus(str(tmp_path))] == [
        ("a.txt", "a"),
        ("b/z.md", "z"),
        ("c.py", "c"),
        ("d.jsonl:1", "one"),
        ("d.jsonl:3", "two\u2028lines"),
    ]


def test_another_jsonl_field_can_be_named(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"text": "no", "content": "yes"}))
    assert [d.text for d in read_corpus(str(file), text_field="content")] == ["yes"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "holds no text"),
        ("a.txt", b" \n\t\n", "holds no text"),
        ("a.txt", b"text\0more", "binary"),
        ("a.txt", b"caf\xe9", r"not UTF-8 \(byte 3 is 0xe9\)"),
        ("a.jsonl", b"", "holds no text"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', r"line 2 has no field 'text'; its fields: body, id"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "line 3 is not JSON"),
        ("a.jsonl", b'["text"]\n', "line 1 holds a list"),
        ("a.jsonl", b'{"text": 7}\n', "line 1: field 'text' holds a int"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}\n', "line 2: field 'text' holds half a surrogate"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_corpus(str(file))
    assert "\n" not in str(caught.value)


def test_missing_paths_and_folders_without_text_are_errors(tmp_path):
    with pytest.raises(DataError, match="does not exist; expected 'stdlib', the path"):
        read_corpus(str(tmp_path / "nowhere.txt"))
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(DataError, match=r"holds no \.txt, \.md, \.py, \.jsonl, \.parquet file"):
        read_corpus(str(tmp_path))


def test_the_corpus_hash_is_over_the_texts_in_order_and_knows_where_one_ends():
    def digest(*texts):
        return corpus_sha256([Document(f"name{random.random()}", text) for text in texts])

    assert digest("ab", "c") == digest("ab", "c")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("c", "ab"), digest("abc")}) == 4
    expected = hashlib.sha256((2).to_bytes(8, "little") + "é".encode()).hexdigest()
    assert digest("é") == expected


def test_the_fingerprint_follows_content_changes_without_reading(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = corpus_fingerprint(str(tmp_path))
    assert corpus_fingerprint(str(tmp_path)) == first
    file.write_text("two")
    os.utime(file, ns=(1, 1))
    assert corpus_fingerprint(str(tmp_path)) != first
    second = corpus_fingerprint(str(tmp_path))
    (tmp_path / "b.txt").write_text("new")
    assert corpus_fingerprint(str(tmp_path)) != second


# -- the standard library --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stdlib() -> list[Document]:
    return read_corpus("stdlib")


def test_stdlib_holds_library_sources_only(stdlib):
    names = {document.name for document in stdlib}
    assert {"ast.py", "json/decoder.py", "encodings/utf_8.py"} <= names
    for unwanted in ("site-packages", "dist-packages", "/test/", "/tests/", "idle_test", "config-", "_sysconfigdata"):
        assert not [name for name in names if unwanted in f"/{name}"]
    generated = {"pydoc_data/topics.py", "token.py", "stringprep.py", "encodings/cp1252.py", "encodings/palmos.py"}
    assert not generated & names
    # 9.3 to 10.0 MB for Python 3.11 to 3.13; a distribution may leave tkinter or idlelib out.
    assert 6e6 < sum(document.num_bytes for document in stdlib) < 20e6


def test_stdlib_reads_alike_twice_and_its_fingerprint_too(stdlib):
    assert corpus_sha256(stdlib) == corpus_sha256(read_corpus("stdlib"))
    assert corpus_fingerprint("stdlib") == corpus_fingerprint("stdlib")


def test_stdlib_near_duplicates_are_the_templated_codecs(stdlib):
    piece = [document for document in stdlib if document.name.startswith(("encodings/", "json/"))]
    found = find_near_duplicates([document.text for document in piece])
    pairs = {(piece[dropped].name, piece[kept].name) for dropped, kept in found.near}
    assert ("encodings/gb2312.py", "encodings/big5.py") in pairs
    assert not [name for name, _ in pairs if name.startswith("json/")]


def test_a_python_without_library_sources_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(corpora, "_stdlib_root", lambda: tmp_path / "python311.zip")
    with pytest.raises(DataError, match="keeps no library sources"):
        read_corpus("stdlib")


def test_stdlib_leaves_out_what_python_does_not_list(monkeypatch, tmp_path):
    assert {"os", "json"} <= sys.stdlib_module_names
    for name in ("os.py", "json/a.py", "json/tests/t.py", "site-packages/x.py", "test/y.py", "mine.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("x = 1\n")
    monkeypatch.setattr(corpora, "_stdlib_root", lambda: tmp_path)
    assert [document.name for document in read_corpus("stdlib")] == ["json/a.py", "os.py"]


# -- near-duplicates -------------------------------------------------------------------------------------


def test_exact_and_near_duplicates_are_dropped_and_the_first_is_kept():
    base = words(0, 200)
    edited = [*base[:100], "other", *base[101:]]
    texts = [" ".join(base), " ".join(words(1, 200)), " ".join(base), " ".join(edited), " ".join(base).upper()]
    found = find_near_duplicates(texts)
    assert found.kept == (0, 1)
    assert found.exact == (2,)
    assert found.near == ((3, 0), (4, 0))


@pytest.mark.parametrize(("num_shared", "is_dropped"), [(72, True), (66, False)])
def test_the_threshold_is_one_half_of_the_union_of_shingles(num_shared, is_dropped):
    # 100 words make 96 shingles; n shared leading words make n - 4 shared ones, of 192 - (n - 4) together:
    # 68 / 124 = 0.55 and 62 / 130 = 0.48.
    base = words(0, 100)
    other = [*base[:num_shared], *words(1, 100 - num_shared)]
    found = find_near_duplicates([" ".join(base), " ".join(other)])
    assert (found.near == ((1, 0),)) is is_dropped


def test_few_near_duplicates_at_similarity_two_thirds_are_missed():
    # (1 - (2/3)^3)^64 < 1e-9 for a pair: none of 200 may be missed.
    texts = []
    for seed in range(200):
        base = words(2 * seed, 100)
        texts += [" ".join(base), " ".join([*base[:81], *words(2 * seed + 1, 19)])]
    assert len(find_near_duplicates(texts).near) == 200


def test_short_and_wordless_texts_are_compared_too():
    found = find_near_duplicates(["a b", "A  b!", "", "...", "...", "b a", "..!"])
    assert found.kept == (0, 2, 3, 5, 6)
    assert found.exact == (4,)
    assert found.near == ((1, 0),)


def test_jaccard_limits():
    left = np.array([1, 2], np.uint64)
    assert jaccard(left, left) == 1
    assert jaccard(left, np.array([3], np.uint64)) == 0


# -- splits ----------------------------------------------------------------------------------------------


def split(documents, tuning=0.1, report=0.2, seed=0):
    return split_documents(documents, tuning_fraction=tuning, report_fraction=report, seed=seed)


def test_every_document_is_in_one_split_of_about_its_fraction():
    documents = some_documents(200)
    parts = split(documents)
    assert tuple(parts) == SPLITS
    assert sorted(d.name for part in parts.values() for d in part) == sorted(d.name for d in documents)
    total = sum(d.num_bytes for d in documents)
    sizes = {name: sum(d.num_bytes for d in part) / total for name, part in parts.items()}
    assert sizes == pytest.approx({"train": 0.7, "tuning": 0.1, "report": 0.2}, abs=0.005)


def test_the_split_follows_the_seed_and_the_texts_only():
    documents = some_documents(40)
    names = {name: [d.name for d in part] for name, part in split(documents).items()}
    again = {name: [d.name for d in part] for name, part in split(documents[::-1]).items()}
    other = {name: [d.name for d in part] for name, part in split(documents, seed=1).items()}
    assert again == names
    assert other != names


def test_three_documents_are_enough_and_two_are_not():
    assert all(len(part) == 1 for part in split(some_documents(3)).values())
    with pytest.raises(DataError, match="split came out empty"):
        split(some_documents(2))


def test_a_single_document_is_cut_at_line_ends_into_consecutive_parts():
    text = "".join(f"line {number}\n" for number in range(1000))
    parts = split([Document("book.txt", text)])
    assert "".join(parts[name][0].text for name in SPLITS) == text
    assert all(part[0].text.startswith("line ") for part in parts.values())
    assert len(parts["report"][0].text) == pytest.approx(0.2 * len(text), abs=10)
    assert parts["tuning"][0].name == "book.txt#tuning"


def test_a_single_document_without_line_ends_is_cut_anyway():
    parts = split([Document("text8", "x" * 10_000)])
    assert {name: len(part[0].text) for name, part in parts.items()} == {
        "train": 7000,
        "tuning": 1000,
        "report": 2000,
    }


def test_a_single_line_is_too_short_to_cut():
    with pytest.raises(DataError, match="the tuning split came out empty"):
        split([Document("a.txt", "one line\n")])


@pytest.mark.parametrize(("tuning", "report"), [(0, 0.1), (0.1, 1), (0.5, 0.5), (-0.1, 0.1), (float("nan"), 0.1)])
def test_fractions_out_of_range(tuning, report):
    with pytest.raises(DataError, match="fraction"):
        split(some_documents(10), tuning, report)

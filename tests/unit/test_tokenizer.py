"""The three kinds of tokenizer."""

import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from depthscale.errors import DataError
from depthscale.training.tokenizer import (
    END_OF_TEXT,
    bpe_entries,
    byte_tokenizer,
    encode_documents,
    load_tokenizer,
    tokenizer_from_json,
    tokenizer_sha256,
    tokenizer_to_json,
    train_byte_level_bpe,
    vocabulary_size,
)

TEXTS = [
    "def f(x):\n    return x + 1\n" * 20,
    "naïve café — 日本語 \U0001f600\r\n\t" * 20,
    "the loop the loop the loops " * 30,
]
HARD = ["", " ", "\n", "  two  spaces ", f"a{END_OF_TEXT}b", "\x00\x7f\x80ÿ", "\u2028é\r\n", "'s 're \t\t"]


def ids(tokenizer, text):
    return next(iter(encode_documents(tokenizer, [text]))).tolist()


def test_byte_ids_are_the_utf8_bytes():
    tokenizer = byte_tokenizer()
    assert vocabulary_size(tokenizer) == len(tokenizer) == 257
    assert tokenizer.eos_token_id == 256
    for text in TEXTS + HARD:
        assert ids(tokenizer, text) == list(text.encode())


def test_byte_characters_are_gpt2s():
    # transformers' own table, written after GPT-2's encoder.py.
    vocabulary = byte_tokenizer().get_vocab()
    assert {character: vocabulary[character] for character in bytes_to_unicode().values()} == {
        character: value for value, character in bytes_to_unicode().items()
    }


@pytest.mark.parametrize("make", [byte_tokenizer, lambda: train_byte_level_bpe(TEXTS, 300)])
def test_decode_gives_the_text_back_and_a_name_in_the_text_is_no_special_token(make):
    tokenizer = make()
    for text in TEXTS + HARD:
        tokens = ids(tokenizer, text)
        assert tokenizer.eos_token_id not in tokens
        assert tokenizer.decode(tokens) == text


def test_bpe_has_the_size_asked_for_and_compresses():
    tokenizer = train_byte_level_bpe(TEXTS, 300)
    assert vocabulary_size(tokenizer) == len(tokenizer) == 300
    assert len(ids(tokenizer, TEXTS[2])) < len(TEXTS[2]) / 3


def test_bpe_of_a_poor_corpus_has_fewer_entries():
    assert 257 <= vocabulary_size(train_byte_level_bpe(["ab ab"], 1000)) < 265


def test_bpe_is_the_same_in_another_process():
    code = (
        "from depthscale.training.tokenizer import train_byte_level_bpe, tokenizer_sha256\n"
        f"print(tokenizer_sha256(train_byte_level_bpe({TEXTS!r}, 320)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == tokenizer_sha256(train_byte_level_bpe(TEXTS, 320))


def test_json_form_restores_the_tokenizer():
    tokenizer = train_byte_level_bpe(TEXTS, 300)
    again = tokenizer_from_json(tokenizer_to_json(tokenizer))
    assert tokenizer_sha256(again) == tokenizer_sha256(tokenizer)
    assert [ids(again, text) for text in TEXTS] == [ids(tokenizer, text) for text in TEXTS]
    assert again.eos_token_id == tokenizer.eos_token_id


def test_saved_beside_a_checkpoint_it_loads_by_path_and_by_autotokenizer(tmp_path):
    tokenizer = train_byte_level_bpe(TEXTS, 300)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "looped_lm"}))
    for again in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)):
        assert again.eos_token == END_OF_TEXT
        assert [ids(again, text) for text in TEXTS + HARD] == [ids(tokenizer, text) for text in TEXTS + HARD]
        assert tokenizer_sha256(again) == tokenizer_sha256(tokenizer)


def foreign(tmp_path, **special):
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    backend.enable_truncation(2)
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_tokenizer_that_adds_tokens_and_truncates_does_neither_here(tmp_path):
    tokenizer = load_tokenizer(foreign(tmp_path, bos_token="<s>", eos_token="</s>"))
    assert tokenizer("a b")["input_ids"][0] == 1
    assert ids(tokenizer, "a b a b a") == [3, 4, 3, 4, 3]


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no end-of-text token"):
        load_tokenizer(foreign(tmp_path, bos_token="<s>"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("/no/such/folder", "does not exist; expected 'bytes', 'bpe:N'"),
        ("no such id!", "does not exist"),
        ("byte", r"cannot be loaded .*did you mean 'bytes'\?"),
        ("nobody/nothing", "not on the Hub, or offline"),
    ],
)
def test_an_unknown_tokenizer_is_one_clear_line(spec, message):
    with pytest.raises(DataError, match=message) as caught:
        load_tokenizer(spec)
    assert "\n" not in str(caught.value)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match="nothing there that transformers can read"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("spec", "message"), [("bpe:", "no size"), ("bpe:1k", "no size"), ("bpe:256", "at least bpe:257")]
)
def test_bpe_sizes_out_of_range(spec, message):
    with pytest.raises(DataError, match=message):
        bpe_entries(spec)

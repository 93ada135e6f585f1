"""``generate()`` on a looped model: with and without its cache, padded, by beams, streamed, in a pipeline."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, DynamicCache, GenerationConfig, TextStreamer, pipeline

from depthscale.errors import ConfigError
from depthscale.evaluation.checkpoint import default_device, load_model
from depthscale.evaluation.generation import continue_text
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.nn.cache import CACHE_FIELD
from depthscale.training.tokenizer import byte_tokenizer, vocabulary_size

torch.set_num_threads(1)

PLANS = {
    "post": [{"blocks": 2, "rounds": 3}],
    "sandwich": [{"blocks": 1, "fixed": True}, {"blocks": 1, "rounds": 3, "inject": True}],
    "pre": [{"blocks": 1, "rounds": 3, "grad_rounds": 1}, {"blocks": 1, "fixed": True}],
}


def build(placement: str = "post", **more: Any) -> LoopedLMForCausalLM:
    """A model whose greedy text is no repetition of its last token, which tied embeddings would make it."""
    torch.manual_seed(0)
    plan = PLANS[placement]
    scale = {"branch": 0.5} if placement == "pre" else {"skip": 1.5}
    arguments = {"vocab_size": 97, "hidden_size": 32, "plan": plan}
    arguments |= {"embedding_initializer_range": 0.2, "tie_word_embeddings": False}
    config = LoopedLMConfig(norm_placement=placement, residual_scales=[scale for _ in plan], **{**arguments, **more})
    return LoopedLMForCausalLM(config).eval()


def tokens(batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(1))


def greedy(model: LoopedLMForCausalLM, ids: torch.Tensor, new: int = 20, **arguments: Any) -> torch.Tensor:
    return model.generate(ids, max_new_tokens=new, do_sample=False, **arguments)


# -- the cache changes nothing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", list(PLANS))
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_sixty_four_greedy_tokens_with_and_without_cache(placement: str, rounds: int) -> None:
    """Public fault: right first tokens, garbage after two."""
    model, ids = build(placement), tokens()
    cached = greedy(model, ids, 64, rounds=rounds)
    assert cached.shape == (2, 71)
    assert torch.equal(cached, greedy(model, ids, 64, rounds=rounds, use_cache=False))
    assert len(set(cached[0, 7:].tolist())) >= 3, "a text of one token would show nothing"
    by_hand = ids
    for _ in range(64):
        with torch.no_grad():
            by_hand = torch.cat((by_hand, model(by_hand, rounds=rounds).logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(cached, by_hand)


def test_rounds_change_the_text_and_default_to_the_plans() -> None:
    model, ids = build(), tokens()
    assert torch.equal(greedy(model, ids), greedy(model, ids, rounds=3))
    assert not torch.equal(greedy(model, ids), greedy(model, ids, rounds=1))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_prompt_may_be_read_in_chunks(size: int) -> None:
    model, ids = build("sandwich"), tokens()
    assert torch.equal(greedy(model, ids, prefill_chunk_size=size, rounds=5), greedy(model, ids, rounds=5))


def test_two_calls_are_two_fresh_processes() -> None:
    """Public fault: the cache of one call is not cleared before the next."""
    model, ids = build(), tokens()
    first = greedy(model, ids)
    greedy(model, tokens(3, 5), rounds=6)
    assert torch.equal(greedy(model, ids), first)
    assert torch.equal(greedy(build(), ids), first)


def test_a_text_goes_on_from_the_cache_it_left() -> None:
    model, ids = build(), tokens()
    whole = greedy(model, ids, 20)
    first = greedy(model, ids, 8, return_dict_in_generate=True)
    cache = first[CACHE_FIELD]
    assert cache.get_seq_length() == 7 + 8 - 1
    assert torch.equal(greedy(model, first.sequences, 12, **{CACHE_FIELD: cache}), whole)


@pytest.mark.parametrize("arguments", [{"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2, "rounds": 5}])
def test_beams_reorder_every_slot(arguments: dict[str, Any]) -> None:
    model, ids = build("sandwich"), tokens()
    cached = greedy(model, ids, 24, **arguments)
    assert torch.equal(cached, greedy(model, ids, 24, use_cache=False, **arguments))
    assert not torch.equal(cached[:1], greedy(model, ids, 24, rounds=arguments.get("rounds"))[:1])


@pytest.mark.parametrize("placement", list(PLANS))
def test_a_left_padded_batch_writes_what_its_rows_write_alone(placement: str) -> None:
    model, ids, lengths = build(placement), tokens(3, 9), (2, 5, 9)
    mask = torch.stack([torch.arange(9) >= 9 - length for length in lengths]).long()
    together = greedy(model, ids, 30, attention_mask=mask)
    for row, length in enumerate(lengths):
        alone = greedy(model, ids[row : row + 1, 9 - length :], 30)
        assert torch.equal(together[row, 9:], alone[0, length:]), row


def test_embeddings_may_stand_in_for_the_prompt() -> None:
    model, ids = build(), tokens()
    embeddings = model.get_input_embeddings()(ids)
    assert torch.equal(greedy(model, None, inputs_embeds=embeddings), greedy(model, ids)[:, 7:])


# -- sampling, streaming --------------------------------------------------------------------------------------


def test_samples_follow_the_seed_and_the_models_probabilities() -> None:
    model, ids = build(), tokens(1)
    torch.manual_seed(3)
    first = model.generate(ids, max_new_tokens=20, do_sample=True)
    torch.manual_seed(3)
    assert torch.equal(model.generate(ids, max_new_tokens=20, do_sample=True), first)
    drawn = model.generate(ids.expand(2000, -1), max_new_tokens=2, do_sample=True, top_k=0)[:, 7:]
    with torch.no_grad():
        expected = model(ids).logits[0, -1].softmax(-1)
    shares = torch.bincount(drawn[:, 0], minlength=97) / 2000
    assert ((shares - expected).abs() <= 4.5 * (expected * (1 - expected) / 2000).sqrt() + 1 / 2000).all()


def test_a_text_streamer_prints_what_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = byte_tokenizer()
    model = build(vocab_size=257)
    ids = torch.tensor([tokenizer("def f(")["input_ids"]])
    sequences = greedy(model, ids, 30, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == tokenizer.decode(sequences[0, ids.shape[1] :]) + "\n"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_pieces_of_text_add_up(temperature: float) -> None:
    tokenizer, pieces = byte_tokenizer(), []
    model = build(vocab_size=257)
    numbers = {"max_new_tokens": 40, "temperature": temperature, "seed": 7}
    streamed = continue_text(model, tokenizer, "for x in", on_text=pieces.append, **numbers)
    assert "".join(pieces) == streamed.text
    assert 0 < streamed.num_new_tokens <= 40
    assert streamed.num_prompt_tokens == 8
    state = torch.get_rng_state()
    assert continue_text(model, tokenizer, "for x in", **numbers).text == streamed.text
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers are the caller's"


def test_text_ends_at_the_end_of_text_token_and_does_not_show_it() -> None:
    tokenizer = byte_tokenizer()
    model = build(vocab_size=257, eos_token_id=tokenizer.eos_token_id)
    first = int(greedy(model, torch.tensor([tokenizer("ab")["input_ids"]]), 1)[0, -1])
    # Swapping two rows of the head makes the first new token the end of the text.
    weight, end = model.lm_head.weight.data, tokenizer.eos_token_id
    weight[[first, end]] = weight[[end, first]]
    written = continue_text(model, tokenizer, "ab", max_new_tokens=10)
    assert (written.text, written.num_new_tokens) == ("", 1)


def test_a_special_tokens_name_in_the_prompt_is_ordinary_text() -> None:
    tokenizer = byte_tokenizer()
    name = tokenizer.eos_token
    written = continue_text(build(vocab_size=257), tokenizer, name, max_new_tokens=1)
    assert written.num_prompt_tokens == len(name.encode())


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rounds": 0}, "rounds came as 0; expected a whole number of at least 1"),
        ({"rouns": 3}, "rouns"),
        ({"document_ids": torch.zeros(2, 7, dtype=torch.long)}, "document_ids came with a cache"),
        ({"cache_implementation": "static"}, "the cache came as StaticCache"),
        ({"use_cache": False, CACHE_FIELD: DynamicCache()}, "a cache and use_cache=False"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        greedy(build(), tokens(), **arguments)


def test_the_cache_named_dynamic_is_the_one_that_grows_with_the_rounds() -> None:
    """transformers counts its slots by the plan's own rounds, which are too few here."""
    model, ids = build(), tokens()
    assert torch.equal(greedy(model, ids, rounds=6, cache_implementation="dynamic"), greedy(model, ids, rounds=6))


def test_embeddings_that_do_not_fit_are_refused() -> None:
    model = build(max_position_embeddings=16)
    embeddings = model.get_input_embeddings()(tokens(1, 17))
    with pytest.raises(ValueError, match="the prompt has 17 tokens, more than the context of 16"):
        model.generate(inputs_embeds=embeddings, max_new_tokens=2, do_sample=False)
    assert model.generate(inputs_embeds=embeddings[:, :10], max_new_tokens=2, do_sample=False).shape == (1, 2)


def test_prompts_that_do_not_fit_are_refused() -> None:
    model = build(max_position_embeddings=16)
    with pytest.raises(ValueError, match="the prompt has 17 tokens, more than the context of 16"):
        greedy(model, tokens(1, 17))
    assert greedy(model, tokens(1, 16)).shape == (1, 36)
    with pytest.raises(ValueError, match="the input came without tokens"):
        greedy(model, tokens(1, 0))


def test_a_cache_left_by_other_rounds_is_refused() -> None:
    model, ids = build(), tokens()
    first = greedy(model, ids, 8, rounds=2, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"holds 4 filled slots .* this pass makes 6 visits"):
        greedy(model, first.sequences, 4, **{CACHE_FIELD: first[CACHE_FIELD]})


def test_rounds_of_a_fixed_plan_are_refused() -> None:
    model = LoopedLMForCausalLM(LoopedLMConfig(vocab_size=257, hidden_size=32, plan=[{"blocks": 1, "fixed": True}]))
    with pytest.raises(ConfigError, match="every segment of this model's plan is fixed"):
        continue_text(model.eval(), byte_tokenizer(), "a", rounds=2)


# -- what is saved --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    tokenizer = byte_tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
    end = tokenizer.eos_token_id
    build("sandwich", vocab_size=257, eos_token_id=end, pad_token_id=end).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_no_row_of_the_vocabulary_is_padding(checkpoint: Path) -> None:
    """Public fault: padded vocabulary rows get sampled. There are none: every row is a token of the tokenizer."""
    config = json.loads((checkpoint / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert config["vocab_size"] == vocabulary_size(tokenizer) == len(tokenizer)


def test_the_end_of_text_is_in_the_saved_generation_config(checkpoint: Path) -> None:
    saved = GenerationConfig.from_pretrained(checkpoint)
    assert saved.eos_token_id == saved.pad_token_id == 256


def test_a_pipeline_writes_text_alone_and_in_batches(checkpoint: Path) -> None:
    writer = pipeline("text-generation", model=str(checkpoint))
    prompts = ["def f(", "for x in range"]
    alone = [writer(prompt, max_new_tokens=10, do_sample=False)[0]["generated_text"] for prompt in prompts]
    batch = writer(prompts, max_new_tokens=10, do_sample=False, batch_size=2)
    assert [texts[0]["generated_text"] for texts in batch] == alone
    assert all(text.startswith(prompt) for text, prompt in zip(alone, prompts, strict=True))
    more = writer(prompts[0], max_new_tokens=10, do_sample=False, rounds=6)
    model = writer.model
    ids = torch.tensor([writer.tokenizer(prompts[0])["input_ids"]])
    assert more[0]["generated_text"] == writer.tokenizer.decode(greedy(model, ids, 10, rounds=6)[0])


REMOTE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "depthscale":
            raise ImportError("depthscale must not be needed")
sys.meta_path.insert(0, Refuse())
from transformers import pipeline
writer = pipeline("text-generation", model=sys.argv[1], trust_remote_code=True)
print(repr(writer("def f(", max_new_tokens=10, do_sample=False)[0]["generated_text"]))
"""


def test_a_pipeline_in_a_process_without_depthscale(checkpoint: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    remote = subprocess.run(
        [sys.executable, "-c", REMOTE, str(checkpoint)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert remote.returncode == 0, remote.stderr[-2000:]
    local = pipeline("text-generation", model=str(checkpoint))("def f(", max_new_tokens=10, do_sample=False)
    assert remote.stdout.strip().splitlines()[-1] == repr(local[0]["generated_text"])


def test_a_model_lies_where_it_is_told(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_model(checkpoint).device.type == "cpu"
    assert load_model(checkpoint, device=torch.device("meta")).device.type == "meta"
    for available, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        assert default_device().type == kind


def test_the_benchmarks_verdict_is_of_the_looped_models_beside_the_peer() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "generation.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_generation", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)

    def judged(ratio: float, beyond: float) -> dict[str, Any]:
        speed = [{"model": "post", "ratio": ratio}, {"model": "llama", "ratio": 1.0}]
        growth = [
            {"model": "attention", "growth_beyond_attention": None},
            {"model": "post", "growth_beyond_attention": beyond},
            {"model": "llama", "growth_beyond_attention": 1.5},
        ]
        return benchmark.verdict(speed, growth)

    # The peer's own ratio is 1 by definition, so a faster model must not be judged by it.
    assert judged(1.2, 1.0)["lowest_ratio"] == 1.2
    assert (judged(1.0, 1.05)["ratio_met"], judged(1.0, 1.05)["growth_met"]) == (True, True)
    assert (judged(0.9, 1.06)["ratio_met"], judged(0.9, 1.06)["growth_met"]) == (False, False)

"""The causal trace: noise where it belongs, one state restored, and a prompt read as the model reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_probe_interventions import made
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders
from transformers import PreTrainedTokenizerFast

from depthscale.errors import DataError
from depthscale.probing.causal_trace import TraceSettings, embedding_deviation, noised_subject, trace
from depthscale.probing.errors import ProbingError
from depthscale.probing.ledger import Ledger
from depthscale.probing.located import locate
from depthscale.probing.states import TokenBatch, collect_states, run_base
from depthscale.probing.trace_prompts import ROLES, TokenizedPrompt, TracePrompt, read_prompts, tokenize

WORDS = ["The", "Space", "Ġneedle", "Needle", "ĠNeedle", "ĠSpace", "Ġis", "Ġin", "Ġdowntown", "ĠSeattle", "<s>"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words with the space before them, as byte-level tokenizers have them."""
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="The"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = token_decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


PROMPT = TracePrompt("The Space Needle is in downtown", "Space Needle", "Seattle")


def tokens(length: int = 7, subject: tuple[int, int] = (1, 3)) -> TokenizedPrompt:
    ids = tuple(range(10, 10 + length))
    return TokenizedPrompt(TracePrompt("x", "x", "x"), ids, tuple(map(str, ids)), subject, 5, "5")


def test_a_prompt_is_read_in_the_model_s_tokens() -> None:
    found = tokenize(tokenizer(), PROMPT, bos=10)
    assert found.token_ids == (10, 0, 5, 4, 6, 7, 8)
    assert found.subject == (2, 4)
    assert [ROLES[role] if role is not None else None for role in found.roles] == [
        None,
        None,
        "first subject token",
        "last subject token",
        "tokens between",
        "tokens between",
        "last token",
    ]
    assert found.answer_token == " Seattle"
    assert tokenize(tokenizer(), PROMPT, bos=None).subject == (1, 3)


@pytest.mark.parametrize(
    ("length", "subject", "roles"),
    [
        (4, (1, 2), (None, 2, 3, 4)),
        (6, (0, 4), (0, 1, 1, 2, 3, 4)),
        (3, (0, 3), (0, 1, 2)),
    ],
)
def test_every_token_has_a_role(length: int, subject: tuple[int, int], roles: tuple[int | None, ...]) -> None:
    assert tokens(length, subject).roles == roles


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama", "looped", "injected"])
def test_effects_are_those_of_one_state_restored_by_hand(name: str) -> None:
    model, _ = made(name)
    located = locate(model)
    prompt = tokens()
    settings = TraceSettings(num_draws=1, rows=5, noise=2.0)
    found = trace(located, [prompt], Ledger(None, {}), settings)
    one = found.prompts[0]
    ids = torch.tensor([prompt.token_ids])
    clean = collect_states(located, TokenBatch(ids)).states
    with torch.no_grad():
        p_clean = model(input_ids=ids).logits[0, -1].softmax(-1)[prompt.answer_id]
    assert one.clean == pytest.approx(float(p_clean), rel=1e-4)
    noise = torch.from_numpy(
        2.0 * embedding_deviation(located.embedding) * np.random.default_rng((0, 0, 0)).standard_normal((2, 32))
    )
    layer, token = 3, 4
    calls = 0

    def restore(module: object, args: object, output: object) -> object:
        nonlocal calls
        calls += 1
        if calls != layer + 1:
            return output
        state = (output[0] if isinstance(output, tuple) else output).clone()
        state[0, token] = clean[layer + 1][0, token]
        return (state, *output[1:]) if isinstance(output, tuple) else state

    chances = []
    for restoring in (False, True):
        handles = [block.register_forward_hook(restore) for block in located.blocks] if restoring else []
        with noised_subject(located.embedding, noise, 1), torch.no_grad():
            chances.append(float(model(input_ids=ids).logits[0, -1].double().softmax(-1)[prompt.answer_id]))
        for handle in handles:
            handle.remove()
    assert one.noised.value == pytest.approx(chances[0], rel=1e-4)
    assert one.effects[layer][token] == pytest.approx(chances[1] - chances[0], abs=1e-6)
    # A later token cannot act on an earlier one, and the last state is all that the answer is read from.
    assert all(row[0] == 0 for row in one.effects)
    assert one.effects[-1][-1] == pytest.approx(one.clean - one.noised.value, abs=1e-6)
    assert one.effects[-1][2] == pytest.approx(0, abs=1e-7)


def test_the_model_is_left_as_it_was_also_after_an_exception() -> None:
    model, _ = made("gpt2")
    located = locate(model)
    with torch.no_grad():
        before = model(input_ids=torch.tensor([[1, 2, 3]])).logits
    with pytest.raises(RuntimeError), noised_subject(located.embedding, torch.ones(2, 31), 0):
        run_base(located, TokenBatch(torch.tensor([[1, 2, 3]])))
    trace(located, [tokens()], Ledger(None, {}), TraceSettings(num_draws=1))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(input_ids=torch.tensor([[1, 2, 3]])).logits, before)


def test_figures_depend_on_the_seed_and_not_on_the_batching(tmp_path: Path) -> None:
    model, _ = made("llama")
    located, prompts = locate(model), [tokens(), tokens(5, (1, 4))]
    path = tmp_path / "trace.jsonl"
    wide, narrow, other, again = (
        trace(located, prompts, ledger, settings)
        for ledger, settings in (
            (Ledger(path, {}), TraceSettings(num_draws=3)),
            (Ledger(None, {}), TraceSettings(num_draws=3, rows=4)),
            (Ledger(None, {}), TraceSettings(num_draws=3, seed=1)),
            (Ledger(path, {}), TraceSettings(num_draws=3)),
        )
    )
    for first, second in zip(wide.prompts, narrow.prompts, strict=True):
        np.testing.assert_allclose(first.effects, second.effects, atol=1e-6)
        assert np.all(np.array(first.low) <= np.array(first.effects) + 1e-12)
        assert np.all(np.array(first.high) >= np.array(first.effects) - 1e-12)
    assert not np.allclose(wide.prompts[0].effects, other.prompts[0].effects, atol=1e-6)
    assert again == wide


def test_roles_average_over_prompts_that_the_noise_affects() -> None:
    model, _ = made("llama")
    found = trace(locate(model), [tokens(), tokens(5, (1, 4))], Ledger(None, {}), TraceSettings(num_draws=3, noise=5))
    affected = [prompt for prompt in found.prompts if prompt.noised.value < 0.99 * prompt.clean]
    assert len(affected) + found.num_unaffected == 2
    for role in found.roles:
        column = ROLES.index(role.role)
        having = [prompt for prompt in affected if column in prompt.roles]
        assert role.num_prompts == len(having)
        if len(having) == 2:
            best = [
                max(prompt.effects[2][token] for token, own in enumerate(prompt.roles) if own == column)
                for prompt in having
            ]
            # The largest of a role's tokens is taken in each draw: equal to this for a role of one token.
            if column in (0, 2, 4):
                assert role.by_layer[2].value == pytest.approx(float(np.mean(best)), abs=1e-9)


def test_bad_prompts_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    for text, message in (
        ("", "holds no prompt"),
        ("{not json", "line 1 is no JSON"),
        (json.dumps({"prompt": "a b", "subject": "b"}), "prompt, subject and answer"),
        (json.dumps({"prompt": "a b", "subject": "c", "answer": "d"}), "does not stand in the prompt"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_prompts(path)
    with pytest.raises(DataError, match="cannot read prompts"):
        read_prompts(tmp_path / "none.jsonl")
    path.write_text(json.dumps({"prompt": PROMPT.prompt, "subject": PROMPT.subject, "answer": PROMPT.answer}) + "\n\n")
    assert read_prompts(path) == [PROMPT]
    with pytest.raises(DataError, match="fast tokenizer"):
        tokenize(object(), PROMPT, None)


def test_an_embedding_without_spread_is_refused() -> None:
    with pytest.raises(ProbingError, match="standard deviation"):
        embedding_deviation(torch.nn.Embedding.from_pretrained(torch.ones(4, 4)))


def test_a_probability_that_is_no_number_is_refused_in_one_line() -> None:
    model, _ = made("gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[6] = float("nan")
    with pytest.raises(ProbingError, match=r"p\(answer\) of 'x' is not finite"):
        trace(locate(model), [tokens()], Ledger(None, {}), TraceSettings(num_draws=1))


def test_errors_about_prompts_of_several_lines_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "a\nb", "subject": "c\nd", "answer": "e"}))
    with pytest.raises(DataError, match="does not stand in the prompt") as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)

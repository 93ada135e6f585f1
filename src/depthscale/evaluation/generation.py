"""Text from a trained model: one prompt in, the continuation out, piece by piece where that is wanted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, TextStreamer

from depthscale.errors import ConfigError
from depthscale.evaluation.exit_generation import generate_with_exit
from depthscale.evaluation.rounds import MAX_ROUNDS, own_rounds
from depthscale.nn import LoopedLMForCausalLM

#: New tokens where none are asked for and the context has room.
DEFAULT_NEW_TOKENS = 100
#: Below this, logits / temperature leaves float32's range.
LOWEST_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt.

    Attributes:
        text: the new text, without the end-of-text token.
        num_prompt_tokens: tokens of the prompt.
        num_new_tokens: tokens written, the end-of-text token included.
        seconds: wall time of prompt and new tokens together.
        mean_rounds: mean rounds of a new token where each left the loop by a rule of its own; else None.
    """

    text: str
    num_prompt_tokens: int
    num_new_tokens: int
    seconds: float
    mean_rounds: float | None = None


@torch.inference_mode()
def continue_text(
    model: LoopedLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    rounds: int | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    on_text: Callable[[str], None] | None = None,
) -> Continuation:
    """Continue ``prompt`` until the end-of-text token, with a key-value cache of one slot per visit.

    Args:
        model: in evaluation mode.
        tokenizer: the one it was trained with. As in training, the prompt gets no special tokens, and a special
            token's name inside it is ordinary text.
        prompt: at least one character; a model has nothing to go on from otherwise.
        rounds: R of every segment that is not fixed; None is the plan's own.
        max_new_tokens: tokens to write at most, at least 1; None is 100, or what the context has room for.
        temperature: 0 always takes the most likely token; else one is drawn from softmax(logits / temperature).
        seed: of the draws; the same seed gives the same text, whatever the process drew before.
        on_text: gets each piece of new text as soon as it is whole characters and words.

    Raises:
        ConfigError: a number is out of range, the prompt is empty, or prompt and new tokens exceed the context.
    """
    if not (temperature == 0 or LOWEST_TEMPERATURE <= temperature < math.inf):
        raise ConfigError(
            f"temperature came as {temperature}; expected 0 (always the most likely token) or at least"
            f" {LOWEST_TEMPERATURE}"
        )
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed came as {seed}; expected 0 to 2^63 - 1")
    input_ids, num_new_tokens = _prepare(model, tokenizer, prompt, rounds, max_new_tokens)
    num_prompt_tokens = input_ids.shape[1]
    end_of_text = model.config.eos_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    generation = GenerationConfig(
        max_new_tokens=num_new_tokens,
        do_sample=temperature > 0,
        eos_token_id=end_of_text,
        pad_token_id=end_of_text,
        # Drawn from the whole distribution; by itself transformers keeps the 50 likeliest tokens only.
        **({"temperature": temperature, "top_k": 0} if temperature > 0 else {}),
    )
    devices = [model.device] if model.device.type == "cuda" else []
    started = time.perf_counter()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        sequences = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            generation_config=generation,
            streamer=None if on_text is None else _PieceStreamer(tokenizer, on_text),
            rounds=rounds,
        )
    new = sequences[0, num_prompt_tokens:]
    return Continuation(
        text=tokenizer.decode(new, skip_special_tokens=True),
        num_prompt_tokens=num_prompt_tokens,
        num_new_tokens=len(new),
        seconds=time.perf_counter() - started,
    )


def continue_text_with_exit(
    model: LoopedLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    rule: str,
    threshold: float,
    rounds: int | None = None,
    max_new_tokens: int | None = None,
) -> Continuation:
    """Continue ``prompt`` with the likeliest tokens, each after as many rounds as an exit rule asks for.

    It shows what early exit makes of the text, and takes longer than :func:`continue_text`; see
    :func:`depthscale.evaluation.exit_generation.generate_with_exit`.

    Args:
        model: in evaluation mode, with exactly one segment that loops.
        tokenizer: the one it was trained with.
        prompt: at least one character.
        rule: one of ``EXIT_RULES``.
        threshold: at least 0, in the rule's unit; a token leaves at the first round whose signal is at most this.
        rounds: R, where a token leaves at the latest; None is the plan's own.
        max_new_tokens: tokens to write at most, at least 1; None is 100, or what the context has room for.

    Raises:
        ConfigError: a number is out of range, the prompt is empty, or prompt and new tokens exceed the context.
        PlanError: unknown rule, or the plan has no single loop.
    """
    if not threshold >= 0:
        raise ConfigError(f"the exit threshold came as {threshold}; expected at least 0")
    input_ids, num_new_tokens = _prepare(model, tokenizer, prompt, rounds, max_new_tokens)
    started = time.perf_counter()
    written = generate_with_exit(
        model,
        input_ids,
        rule=rule,
        threshold=threshold,
        rounds=own_rounds(model.config) if rounds is None else rounds,
        max_new_tokens=num_new_tokens,
    )
    new = written.sequences[0, input_ids.shape[1] :]
    return Continuation(
        text=str(tokenizer.decode(new, skip_special_tokens=True)),
        num_prompt_tokens=input_ids.shape[1],
        num_new_tokens=len(new),
        seconds=time.perf_counter() - started,
        mean_rounds=written.mean_rounds,
    )


def _prepare(
    model: LoopedLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    rounds: int | None,
    max_new_tokens: int | None,
) -> tuple[torch.Tensor, int]:
    """Token ids of the prompt ``[1, tokens]`` and the number of new tokens, once all of it is in range."""
    for name, value in (("rounds", rounds), ("max_new_tokens", max_new_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} came as {value}; expected at least 1")
    if rounds is not None and rounds > MAX_ROUNDS:
        raise ConfigError(f"rounds came as {rounds}; expected at most {MAX_ROUNDS}")
    if rounds is not None and all(segment["fixed"] for segment in model.config.plan):
        raise ConfigError("rounds was given, but every segment of this model's plan is fixed; leave it out")
    input_ids = _encode(tokenizer, prompt).to(model.device)
    return input_ids, _num_new_tokens(input_ids.shape[1], max_new_tokens, model.config.max_position_embeddings)


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str) -> torch.Tensor:
    """Token ids ``[1, tokens]`` as training made them, at least one."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the prompt is not valid text at character {error.start}; expected UTF-8") from error
    encoding = tokenizer(prompt, add_special_tokens=False, split_special_tokens=True, verbose=False)
    if not encoding["input_ids"]:
        raise ConfigError("the prompt is empty; expected at least one character to go on from")
    return torch.tensor([encoding["input_ids"]])


def _num_new_tokens(num_prompt_tokens: int, asked: int | None, context: int) -> int:
    room = context - num_prompt_tokens
    if room < 1:
        raise ConfigError(
            f"the prompt has {num_prompt_tokens} tokens, which leaves no room in this model's context of {context};"
            f" shorten it to {context - 1} or fewer"
        )
    if asked is not None and asked > room:
        raise ConfigError(
            f"a prompt of {num_prompt_tokens} tokens and {asked} new ones exceed this model's context of"
            f" {context}; ask for at most {room} new tokens"
        )
    return min(DEFAULT_NEW_TOKENS, room) if asked is None else asked


class _PieceStreamer(TextStreamer):
    """Hands new text to a function instead of printing it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, on_text: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self.on_text(text)

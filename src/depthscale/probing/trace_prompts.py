"""Prompts of a causal trace: a statement whose subject decides the next word, from a JSONL file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscale.errors import DataError

#: Places of a prompt over which maps of several prompts are averaged.
ROLES = ("first subject token", "middle subject tokens", "last subject token", "tokens between", "last token")


@dataclass(frozen=True)
class TracePrompt:
    """One line of the file.

    Attributes:
        prompt: the text that ends where the answer would begin.
        subject: a part of it.
        answer: what should follow; its first token counts.
    """

    prompt: str
    subject: str
    answer: str


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt as the model reads it.

    Attributes:
        source: the prompt.
        token_ids: BOS included where there is one.
        tokens: each token as text.
        subject: first token of the subject and the one after its last.
        answer_id: first token of the answer.
        answer_token: as text.
    """

    source: TracePrompt
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    subject: tuple[int, int]
    answer_id: int
    answer_token: str

    @property
    def roles(self) -> tuple[int | None, ...]:
        """Index into ROLES of each token; None before the subject.

        A subject of one token is its last; a last token of the prompt that is in the subject stays the subject's.
        """
        first, end = self.subject
        found: list[int | None] = [None] * first
        found += [0] * (end - first - 1 > 0) + [1] * max(end - first - 2, 0) + [2]
        rest = len(self.token_ids) - end
        return (*found, *([3] * max(rest - 1, 0)), *([4] if rest else []))


def read_prompts(path: Path) -> list[TracePrompt]:
    """Read a JSONL file of objects with ``prompt``, ``subject`` and ``answer``.

    Raises:
        DataError: no file, a line that is no such object, a subject that is not in its prompt, or no line at all.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read prompts from {path}: {error}") from error
    prompts = [_prompt(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DataError(f"{path} holds no prompt; expected lines of JSON with prompt, subject and answer")
    return prompts


def tokenize(tokenizer: Any, prompt: TracePrompt, bos: int | None) -> TokenizedPrompt:
    """A prompt in the model's tokens.

    Args:
        tokenizer: a fast one of transformers, which knows where each token stands in the text.
        prompt: what to trace.
        bos: id put in front, None for none.

    Raises:
        DataError: a slow tokenizer, an empty answer, or a subject that no token stands for.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"{type(tokenizer).__name__} does not say where tokens stand in the text; name a fast tokenizer with"
            " --tokenizer"
        )
    encoded = tokenizer(prompt.prompt, add_special_tokens=False, return_offsets_mapping=True)
    plain = list(encoded["input_ids"])
    start = prompt.prompt.rindex(prompt.subject)
    end = start + len(prompt.subject)
    inside = [i for i, (low, high) in enumerate(encoded["offset_mapping"]) if low < end and high > start and high > low]
    # The answer after the prompt, so that it is the token that really follows, its space included.
    follows = tokenizer(prompt.prompt + _joined(prompt), add_special_tokens=False)["input_ids"]
    if follows[: len(plain)] != plain or len(follows) == len(plain):
        raise DataError(
            f"the answer {prompt.answer!r} does not begin with a token of its own after {prompt.prompt!r}; end the"
            " prompt before a space and begin the answer with it"
        )
    if not inside:
        raise DataError(f"no token of {prompt.prompt!r} stands for the subject {prompt.subject!r}")
    answer = follows[len(plain)]
    front = [] if bos is None else [bos]
    ids = front + plain
    return TokenizedPrompt(
        prompt,
        tuple(ids),
        tuple(tokenizer.decode([i]) for i in ids),
        (inside[0] + len(front), inside[-1] + 1 + len(front)),
        answer,
        tokenizer.decode([answer]),
    )


def _joined(prompt: TracePrompt) -> str:
    """The answer with the space that parts it from the prompt, unless either brings one."""
    apart = prompt.prompt[-1:].isspace() or prompt.answer[:1].isspace()
    return prompt.answer if apart else f" {prompt.answer}"


def _prompt(place: str, line: str) -> TracePrompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place} is no JSON ({error}); expected an object with prompt, subject and answer") from error
    names = ("prompt", "subject", "answer")
    if not isinstance(record, dict) or not all(isinstance(record.get(n), str) and record[n].strip() for n in names):
        raise DataError(f"{place} came without text for prompt, subject and answer; expected all three")
    found = TracePrompt(*(record[name] for name in names))
    if found.subject not in found.prompt:
        raise DataError(f"{place}: the subject {found.subject!r} does not stand in the prompt {found.prompt!r}")
    return found

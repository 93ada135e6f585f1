"""Downstream tasks made from held-out text of the user's own corpus: no download, and items every model has not seen.

``local_continuation``  multiple choice: the piece that really follows, against three from elsewhere that look alike
``local_cloze``         the last word of a piece, right when greedy decoding gives it

A piece is a line, with the line end before it and its indentation; a longer line is cut at spaces. The items depend on
the text, the tokenizer's lengths and the context length alone, so all runs of one study answer the same ones.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from depthscale.errors import DataError
from depthscale.runs.files import atomic_write_text
from depthscale.runs.task_names import CLOZE, CONTINUATION, LOCAL_GROUP

NUM_CHOICES = 4
_LONGEST_PIECE = 80
_SHORTEST_PIECE = 8
_MOST_CONTEXT_PIECES = 12
#: Wrong choices are drawn from so many pieces whose length is nearest to the right one's.
_NUM_NEAREST = 24
# A word after a space or an opening mark: there byte-level tokenizers cut in any case, so that the context's tokens are
# the same with and without the word.
_LAST_WORD = re.compile(r"^(.*(?:(?<=[ (\[{=,.])))([^\W\d]\w{2,})\W*$", re.DOTALL)


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes:
        context: what the model reads.
        choices: continuations, with their own leading white space; one alone in a cloze.
        gold: index of the right one.
    """

    context: str
    choices: tuple[str, ...]
    gold: int

    @property
    def key(self) -> str:
        """Twelve hex digits that name the item."""
        return hashlib.sha256("\0".join([self.context, *self.choices]).encode()).hexdigest()[:12]


def pieces_of(text: str) -> list[str]:
    """Cut a text into pieces whose join is the text.

    Example:
        >>> pieces_of("def f(x):\\n    return x\\n")
        ['def f(x):', '\\n    return x', '\\n']
    """
    pieces = []
    for line in re.split(r"(?=\n)", text):
        rest = line
        while len(rest) > _LONGEST_PIECE:
            cut = rest.rfind(" ", 1, _LONGEST_PIECE)
            if cut <= 0 or not rest[:cut].strip():
                break
            pieces.append(rest[:cut])
            rest = rest[cut:]
        pieces.append(rest)
    return [piece for piece in pieces if piece]


def make_items(
    documents: Sequence[str],
    count_tokens: Callable[[str], int],
    context_length: int,
    *,
    num_items: int = 200,
    seed: int = 0,
) -> dict[str, list[Item]]:
    """Items of both tasks from the texts of a held-out split.

    Args:
        documents: texts; a document may give several items, each place and each item only once.
        count_tokens: tokens of a text, as the model sees it.
        context_length: T; every context with its longest choice fits into it.
        num_items: items of each task at most; fewer where the text does not give them.
        seed: which places are asked.

    Raises:
        DataError: the text gives no item of a task.
    """
    cut = [pieces_of(document) for document in documents]
    pool = sorted(
        {piece for pieces in cut for piece in pieces[1:] if len(piece.strip()) >= _SHORTEST_PIECE},
        key=lambda piece: (len(piece), piece),
    )
    by_margin: dict[str, list[str]] = {}
    for piece in pool:
        by_margin.setdefault(_margin(piece), []).append(piece)
    places = [
        (document, place)
        for document, pieces in enumerate(cut)
        for place in range(1, len(pieces))
        if len(pieces[place].strip()) >= _SHORTEST_PIECE and any(piece.strip() for piece in pieces[:place])
    ]
    random.Random(seed).shuffle(places)
    items: dict[str, list[Item]] = {CONTINUATION: [], CLOZE: []}
    keys: set[str] = set()
    for document, place in places:
        if all(len(found) >= num_items for found in items.values()):
            break
        before, piece = cut[document][:place], cut[document][place]
        drawn = random.Random(f"{seed}/{document}/{place}")
        for task, item in (
            (CONTINUATION, _continuation(before, piece, by_margin.get(_margin(piece), []), pool, drawn)),
            (CLOZE, _cloze(before, piece)),
        ):
            if item is not None and len(items[task]) < num_items:
                fitted = _fit(item, before, count_tokens, context_length)
                if fitted is not None and fitted.key not in keys:
                    keys.add(fitted.key)
                    items[task].append(fitted)
    for task, found in items.items():
        if not found:
            raise DataError(
                f"the held-out text gives no item of {task} at a context of {context_length} tokens;"
                " expected several lines or sentences in a document, and rows that hold two of them"
            )
    return items


def write_local_tasks(
    directory: Path,
    documents: Sequence[str],
    shot_documents: Sequence[str],
    count_tokens: Callable[[str], int],
    context_length: int,
    *,
    num_items: int = 200,
) -> dict[str, int]:
    """Write the tasks as lm-evaluation-harness reads them: ``TaskManager(include_path=directory)``.

    Args:
        directory: gets one YAML and two JSONL files per task, and the group ``local``.
        documents: texts of the split that is reported on.
        shot_documents: texts of another split, from which examples of a few-shot prompt are taken.
        count_tokens, context_length, num_items: as for :func:`make_items`.

    Returns:
        Number of items by task.
    """
    asked = make_items(documents, count_tokens, context_length, num_items=num_items)
    # Shorter examples, so that a context with one of them still holds the question.
    shown = make_items(shot_documents, count_tokens, max(context_length // 2, 3), num_items=32, seed=1)
    templates = importlib.resources.files("depthscale.evaluation") / "task_files"
    for task, items in asked.items():
        for split, part in (("test", items), ("shots", shown[task])):
            atomic_write_text(directory / f"{task}.{split}.jsonl", _lines(part))
        # JSON strings are YAML strings, so any path may stand in the template.
        template = (templates / f"{task}.yaml.in").read_text(encoding="utf-8")
        for split in ("test", "shots"):
            template = template.replace(f"@{split}@", json.dumps(str((directory / f"{task}.{split}.jsonl").resolve())))
        atomic_write_text(directory / f"{task}.yaml", template)
    atomic_write_text(
        directory / f"{LOCAL_GROUP}.yaml", (templates / f"{LOCAL_GROUP}.yaml.in").read_text(encoding="utf-8")
    )
    return {task: len(items) for task, items in asked.items()}


def _lines(items: Iterable[Item]) -> str:
    records = ({"id": item.key, **asdict(item), "answer": item.choices[item.gold]} for item in items)
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _margin(piece: str) -> str:
    return piece[: len(piece) - len(piece.lstrip())]


def _continuation(
    before: Sequence[str], piece: str, alike: Sequence[str], pool: Sequence[str], drawn: random.Random
) -> Item | None:
    """The true piece against pieces with the same margin and about its length, which do not stand in the context."""
    seen = {piece.strip(), *(other.strip() for other in before[-_MOST_CONTEXT_PIECES:])}
    candidates = [other for other in alike if other.strip() not in seen]
    if len(candidates) < NUM_CHOICES - 1:
        candidates = [_margin(piece) + other.strip() for other in pool if other.strip() not in seen]
    nearest = sorted(candidates, key=lambda other: (abs(len(other) - len(piece)), other))[:_NUM_NEAREST]
    wrong = list(dict.fromkeys(nearest))
    if len(wrong) < NUM_CHOICES - 1:
        return None
    choices = [piece, *drawn.sample(wrong, NUM_CHOICES - 1)]
    drawn.shuffle(choices)
    return Item("", tuple(choices), choices.index(piece))


def _cloze(before: Sequence[str], piece: str) -> Item | None:
    found = _LAST_WORD.match(piece)
    if found is None or not (found[1].strip() or any(other.strip() for other in before)):
        return None
    return Item(found[1], (found[2],), 0)


def _fit(item: Item, before: Sequence[str], count_tokens: Callable[[str], int], context_length: int) -> Item | None:
    """The item with as many of the pieces before it as the context holds, or None where not even one fits."""
    longest = max(count_tokens(item.context + choice) for choice in item.choices)
    context, kept = "", 0
    for piece in reversed(before[-_MOST_CONTEXT_PIECES:]):
        # One token for the beginning-of-text token or end-of-text token that a harness may put in front.
        if count_tokens(piece + context) + longest + 1 > context_length:
            break
        context = piece + context
        kept += 1
    whole = context + item.context
    if not kept or not whole.strip() or longest + 1 > context_length:
        return None
    head = whole.rstrip()
    # The harness hands white space at the end of a context to the continuation; done here, it is plain to see.
    return Item(head, tuple(whole[len(head) :] + choice for choice in item.choices), item.gold)

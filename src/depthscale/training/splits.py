"""The three splits of a corpus: ``train``, ``tuning`` (rates are chosen on it) and ``report`` (results are)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from depthscale.errors import DataError
from depthscale.training.corpora import Document

SPLITS = ("train", "tuning", "report")

_LONGEST_LINE = 1_000


def split_documents(
    documents: Sequence[Document], *, tuning_fraction: float, report_fraction: float, seed: int
) -> dict[str, list[Document]]:
    """Split by document, so that no split shares one with another.

    Documents are put in the order of SHA-256(seed, text). ``tuning`` takes from the front until it holds its
    fraction of the corpus in bytes (a document goes where its middle falls, and each split gets at least
    one), ``report`` goes on, ``train`` is the rest. A corpus of a single document is cut instead, at line
    ends, into three consecutive parts: train, tuning, report.

    Args:
        documents: without near-duplicates.
        tuning_fraction: share of the bytes, in (0, 1).
        report_fraction: share of the bytes, in (0, 1); the two together below 1.
        seed: any whole number.

    Raises:
        DataError: a fraction is out of range, or the documents do not suffice for three splits.
    """
    for name, value in (("tuning_fraction", tuning_fraction), ("report_fraction", report_fraction)):
        if not 0 < value < 1:
            raise DataError(f"{name} came as {value!r}; expected a number between 0 and 1")
    if tuning_fraction + report_fraction >= 1:
        raise DataError(
            f"tuning_fraction + report_fraction came as {tuning_fraction + report_fraction:g};"
            " expected less than 1, so that documents are left to train on"
        )
    if len(documents) == 1:
        parts = _cut(documents[0], tuning_fraction, report_fraction)
    else:
        ordered = sorted(documents, key=lambda document: _order_key(document, seed))
        total = sum(document.num_bytes for document in ordered)
        tuning, rest = _take(ordered, tuning_fraction * total)
        report, train = _take(rest, report_fraction * total)
        parts = {"train": train, "tuning": tuning, "report": report}
    for name, part in parts.items():
        if not part:
            raise DataError(
                f"the {name} split came out empty ({len(documents)} documents after near-duplicates are dropped);"
                " expected at least three documents, or a single long one, which is cut into three parts"
            )
    return parts


def _order_key(document: Document, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{document.text}".encode()).digest()


def _take(documents: Sequence[Document], target_bytes: float) -> tuple[list[Document], list[Document]]:
    taken = 0
    for count, document in enumerate(documents):
        if count and taken + document.num_bytes / 2 > target_bytes:
            return list(documents[:count]), list(documents[count:])
        taken += document.num_bytes
    return list(documents), []


def _cut(document: Document, tuning_fraction: float, report_fraction: float) -> dict[str, list[Document]]:
    text = document.text
    start_tuning = _line_start(text, round(len(text) * (1 - tuning_fraction - report_fraction)))
    start_report = _line_start(text, round(len(text) * (1 - report_fraction)))
    pieces = {
        "train": text[:start_tuning],
        "tuning": text[start_tuning:start_report],
        "report": text[start_report:],
    }
    return {
        name: [Document(f"{document.name}#{name}", piece)] if piece.strip() else [] for name, piece in pieces.items()
    }


def _line_start(text: str, position: int) -> int:
    """The first line start at or after ``position``, or ``position`` itself where lines are very long."""
    line_end = text.find("\n", max(position - 1, 0), position + _LONGEST_LINE)
    return position if position == 0 or line_end < 0 else line_end + 1

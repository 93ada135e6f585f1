"""The texts that ``depthscale probe`` reads, by the name of their corpus."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthscale.probing.settings import ProbeSettings


def read_texts(settings: ProbeSettings) -> Iterator[str]:
    """One text a document; those of a corpus held in memory in an order drawn from the seed, streams in their own.

    A bare OWNER/NAME that is no file here means a data set of the Hub.

    Raises:
        DataError: the corpus is empty, is not there, or cannot be reached.
    """
    from depthscale.runs.data_config import STREAM_PREFIX
    from depthscale.training.corpora import read_corpus
    from depthscale.training.streams import StreamPosition, StreamSource, documents_from

    corpus = _with_prefix(settings.corpus)
    if not corpus.startswith(STREAM_PREFIX):
        documents = read_corpus(corpus, settings.text_field)
        random.Random(settings.seed).shuffle(documents)
        yield from (document.text for document in documents)
        return
    source = StreamSource.from_corpus(
        corpus, subset=settings.subset, split=None, text_field=settings.text_field, revision=None
    )
    for text, _ in documents_from(source, source.pinned_revision(), StreamPosition()):
        yield text


def local_texts_fingerprint(settings: ProbeSettings) -> str | None:
    """What changes when a local corpus does; None for a stream, and for a corpus that is no longer there."""
    from depthscale.errors import DataError
    from depthscale.runs.data_config import STREAM_PREFIX
    from depthscale.training.corpora import corpus_fingerprint

    corpus = _with_prefix(settings.corpus)
    if corpus.startswith(STREAM_PREFIX):
        return None
    try:
        return corpus_fingerprint(corpus)
    except DataError:
        return None


def _with_prefix(corpus: str) -> str:
    from depthscale.runs.data_config import STREAM_PREFIX
    from depthscale.runs.files import local_path
    from depthscale.training.corpora import STDLIB

    is_hub_name = corpus.count("/") == 1 and not corpus.startswith((".", "~", "/"))
    if is_hub_name and corpus != STDLIB and not local_path(corpus, "corpus").exists():
        return STREAM_PREFIX + corpus
    return corpus

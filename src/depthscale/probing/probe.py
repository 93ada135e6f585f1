"""Probe one model on one text: everything that the profile holds."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from depthscale.probing.catalog import QUANTITIES, names_of
from depthscale.probing.checks import Preflight, preflight
from depthscale.probing.corpus import RowCounts, SpecialTokens, document_batches, special_tokens
from depthscale.probing.loading import LoadedModel
from depthscale.probing.located import locate
from depthscale.probing.profile import Profile
from depthscale.probing.quantities import TokenQuantities, measure_tokens
from depthscale.probing.settings import ModelSettings, ProbeSettings
from depthscale.probing.token_file import TokenFile


class TokenReader(Protocol):
    """Whatever else looks at the tokens while they are measured."""

    def add(self, tokens: TokenQuantities, documents: Tensor) -> None:
        """Take in a micro-batch; ``documents`` numbers the document of each row of its batch."""


@dataclass(frozen=True)
class Probe:
    """What was measured.

    Attributes:
        checked: the model's parts, held against its own forward pass.
        profile: every quantity.
        counts: of documents and tokens.
        special: tokens that rows were made with.
        context_length: of the rows.
        seconds: measuring, without loading.
    """

    checked: Preflight
    profile: Profile
    counts: RowCounts
    special: SpecialTokens
    context_length: int
    seconds: float


def locate_loaded(loaded: LoadedModel, paths: ModelSettings) -> Preflight:
    """Find the parts of a loaded model and hold them against its own forward pass.

    Raises:
        ProbingError: as :func:`~depthscale.probing.located.locate` and :func:`~depthscale.probing.checks.preflight`.
    """
    return preflight(locate(loaded.model, paths.blocks_path, paths.norm_path, paths.head_path))


def probe(
    loaded: LoadedModel,
    checked: Preflight,
    texts: Iterable[str],
    settings: ProbeSettings,
    token_file: Path | None = None,
    readers: Iterable[TokenReader] = (),
    on_batch: Callable[[RowCounts], None] = lambda counts: None,
) -> Probe:
    """Measure every quantity that was asked for, batch by batch.

    Args:
        loaded: model and tokenizer.
        checked: from :func:`locate_loaded`.
        texts: one document each.
        settings: what to measure.
        token_file: where single tokens are written; None keeps none.
        readers: what else is told of every token.
        on_batch: told after each batch.

    Raises:
        ProbingError: a state that is not finite, or a corpus without a document of two tokens.
    """
    started = time.perf_counter()
    special = special_tokens(loaded.tokenizer, settings.bos)
    length = context_length(loaded, settings)
    counts, profile = RowCounts(), Profile(length)
    names = names_of("local", "end", "sublayer") if settings.sublayers else names_of("local", "end")
    exits = names_of("exit") if settings.lenses else ()
    num_exits = 0
    with contextlib.ExitStack() as stack:
        kept = [*readers]
        if token_file is not None:
            kept.append(stack.enter_context(TokenFile(token_file, [q for q in QUANTITIES if q in (*names, *exits)])))
        for rows in document_batches(
            loaded.tokenizer,
            texts,
            special,
            length,
            settings.batch_tokens,
            settings.documents,
            settings.max_tokens,
            counts,
        ):
            wants_exits = num_exits < settings.exit_tokens
            wanted = (*names, *exits) if wants_exits else names
            for tokens in measure_tokens(checked.located, rows.batch, wanted, settings.state_bytes):
                profile.add(tokens)
                for reader in kept:
                    reader.add(tokens, rows.documents)
                num_exits += tokens.num_tokens if wants_exits else 0
            on_batch(counts)
    return Probe(checked, profile, counts, special, length, time.perf_counter() - started)


def context_length(loaded: LoadedModel, settings: ProbeSettings) -> int:
    """The asked length, or the model's number of positions where that is less."""
    config: Any = getattr(loaded.model, "config", None)
    limit = None if config is None else getattr(config.get_text_config(), "max_position_embeddings", None)
    return settings.context_length if limit is None else min(settings.context_length, int(limit))


def peak_memory_bytes() -> int:
    """Largest resident memory of this process so far."""
    # Linux counts kibibytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

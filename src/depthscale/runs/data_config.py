"""``[data]``: text, tokenizer, rows."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from depthscale.runs.config_part import ConfigPart

Fraction = Annotated[float, Field(gt=0, lt=1)]

#: What begins the name of a corpus that is read as a stream.
STREAM_PREFIX = "stream:"


class DataConfig(ConfigPart):
    """``[data]``: text, tokenizer and rows.

    Attributes:
        corpus: ``stdlib`` (the Python standard library's own sources), a text, JSONL or Parquet file, a folder of
            them, or ``stream:NAME``: a data set that ``datasets`` can stream, by its Hub name or its folder.
        tokenizer: ``bytes``, ``bpe:N`` (trained on the training split; not for a stream), or a Hub id or path.
        text_field: field of a JSONL record, or column of a table, that holds the text.
        context_length: tokens per row.
        tuning_fraction: share of the bytes, in whole documents, on which learning rates are chosen; a stream has
            ``held_out_tokens``.
        report_fraction: likewise, on which results are reported; never used to choose anything.
        attend_across_documents: whether a token sees earlier documents of its row.
        train_tokens: of a stream: tokens that make the training split; a run that takes more begins a second epoch.
        held_out_tokens: of a stream: tokens of the tuning split and, again, of the report split, both taken from its
            head; default 2 ** 20.
        subset: of a stream: the data set's configuration, such as ``sample-100BT``.
        stream_split: of a stream: the data set's split that is read; default ``train``.
        revision: of a stream on the Hub: its commit; default the newest when the cache is begun, kept from then on.
    """

    corpus: str = "stdlib"
    tokenizer: str = "bpe:1024"
    text_field: str = "text"
    context_length: int = Field(default=128, ge=3)
    tuning_fraction: Fraction = 0.05
    report_fraction: Fraction = 0.05
    split_seed: int = 0
    attend_across_documents: bool = False
    train_tokens: PositiveInt | None = None
    held_out_tokens: PositiveInt | None = None
    subset: str | None = None
    stream_split: str | None = None
    revision: str | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the corpus is read as a stream."""
        return self.corpus.startswith(STREAM_PREFIX)

    @model_validator(mode="after")
    def _what_a_stream_needs(self) -> Self:
        if not self.is_stream:
            names = ("train_tokens", "held_out_tokens", "subset", "stream_split", "revision")
            given = [name for name in names if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"corpus '{self.corpus}' is no stream and ignores {', '.join(given)}; leave them out, or name the"
                    f" corpus {STREAM_PREFIX}{self.corpus}"
                )
        elif self.train_tokens is None:
            raise ValueError(
                f"corpus '{self.corpus}' came without train_tokens; a stream has no end that is known beforehand: set"
                " data.train_tokens to the tokens that make the training split"
            )
        elif self.tokenizer.startswith("bpe:"):
            raise ValueError(
                f"tokenizer '{self.tokenizer}' is trained on the whole training split, which a stream does not have;"
                " name 'bytes', a saved tokenizer or a Hub id"
            )
        return self

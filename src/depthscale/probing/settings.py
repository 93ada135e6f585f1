"""What a probe measures and how: one frozen table, from a recipe or from the command line."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from depthscale.probing.corpus import BosChoice
from depthscale.runs.config_part import ConfigPart

_DEFAULT_TOKENS = 100_000


class ProbeSettings(ConfigPart):
    """``[probe]`` of a recipe.

    Attributes:
        corpus: ``stdlib``, a file or folder, or ``stream:OWNER/NAME``.
        text_field: field or column that holds the text.
        subset: configuration of a streamed data set.
        documents: at most so many documents that count.
        tokens: exactly so many positions that count, where the corpus has them; 100,000 where neither this nor
            ``documents`` is given.
        context_length: tokens a document is cut at, BOS included; less where the model has fewer positions.
        batch_tokens: tokens of a batch at most, pads included.
        bos: whether a beginning-of-sequence token is put before every document.
        seed: of the order of documents of a corpus that is held in memory.
        sublayers: attention and MLP apart.
        lenses: early-exit losses.
        exit_tokens: positions at which they are taken, those of the first batches, in which the longest of the first
            documents stand.
        state_bytes: bytes of states that a micro-batch may keep.
        keep_tokens: also write every token's values to Parquet.
    """

    corpus: str = "stdlib"
    text_field: str = "text"
    subset: str | None = None
    documents: PositiveInt | None = None
    tokens: PositiveInt | None = None
    context_length: int = Field(default=1024, ge=2)
    batch_tokens: PositiveInt = 8192
    bos: BosChoice = "auto"
    seed: int = 0
    sublayers: bool = True
    lenses: bool = True
    exit_tokens: PositiveInt = 16384
    state_bytes: PositiveInt = 1 << 26
    keep_tokens: bool = False

    @property
    def max_tokens(self) -> int | None:
        """Positions at which reading stops; None where documents are counted instead."""
        return _DEFAULT_TOKENS if self.tokens is None and self.documents is None else self.tokens


class ModelSettings(ConfigPart):
    """``[model]`` of a recipe: how weights are loaded and parts found; see ``loading.py`` and ``located.py``."""

    dtype: str = "float32"
    device_map: str | None = None
    gguf_file: str | None = None
    allow_bin: bool = False
    trust_remote_code: bool = False
    tokenizer: str | None = None
    blocks_path: str | None = None
    norm_path: str | None = None
    head_path: str | None = None


class ProbeRecipe(ConfigPart):
    """A recipe file.

    Attributes:
        models: Hub ids or folders, probed one at a time.
        revisions: of every model; empty takes the newest.
    """

    kind: Literal["probe"] = "probe"
    models: tuple[str, ...] = Field(min_length=1)
    revisions: tuple[str, ...] = ()
    model: ModelSettings = ModelSettings()
    probe: ProbeSettings = ProbeSettings()

"""The held-out text of a trained model: the split it was not trained on, or a corpus it never saw."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from depthscale.errors import CheckpointError, DataError, unknown_name
from depthscale.evaluation.checkpoint import load_tokenizer
from depthscale.evaluation.target import Target
from depthscale.runs.data_config import DataConfig
from depthscale.runs.results import read_result, result_path
from depthscale.training.prepare import prepare_data
from depthscale.training.prepared_data import PreparedData
from depthscale.training.streamed_rows import StreamedRows
from depthscale.training.tokenizer import tokenizer_to_json


@dataclass(frozen=True)
class HeldOut:
    """Prepared data in a trained model's own tokens.

    Attributes:
        data: all three splits.
        notes: what a reader must know of them, one sentence each.
    """

    data: PreparedData
    notes: tuple[str, ...]

    def require_split(self, split: str) -> None:
        """Refuse a name that no split has.

        Raises:
            DataError: the nearest is suggested.
        """
        if split not in self.data.splits:
            raise DataError(unknown_name("split", split, self.data.splits))

    def texts(self, split: str) -> list[str]:
        """The documents of a split, decoded from its tokens.

        Raises:
            DataError: no split of that name.
        """
        self.require_split(split)
        dataset, tokenizer = self.data.splits[split].dataset, self.data.tokenizer
        if isinstance(dataset, StreamedRows):
            raise DataError("the training split of a stream is not held as a whole; choose tuning or report")
        ends = [*dataset.starts[1:].tolist(), len(dataset.stream)]
        return [
            # The last token of a document is the end-of-text token.
            str(tokenizer.decode(dataset.stream[start : end - 1].tolist(), clean_up_tokenization_spaces=False))
            for start, end in zip(dataset.starts.tolist(), ends, strict=True)
        ]


def held_out_data(target: Target, corpus: str | None, context_length: int) -> HeldOut:
    """Prepare the text that a model is evaluated on.

    Args:
        target: the model.
        corpus: None is the corpus of its run.
        context_length: tokens per row where no run says so.

    Raises:
        CheckpointError: no corpus was named and the folder belongs to no run, or it holds no tokenizer.
        DataError: the corpus cannot be used.
    """
    config = target.run_config()
    if config is None and corpus is None:
        raise CheckpointError(
            f"{target.checkpoint} belongs to no run, so its corpus is not known; name one with --corpus"
        )
    settings = config.data if config else DataConfig(context_length=context_length)
    tokenizer = load_tokenizer(target.checkpoint)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CheckpointError(
            f"{target.checkpoint} holds no fast tokenizer; expected tokenizer.json beside the weights"
        )
    own = str(target.checkpoint)
    notes: list[str] = []
    if corpus is None or (config and corpus == settings.corpus):
        # The run's own words find the run's own cache; they must also find the run's own tokenizer.
        data = _prepare(settings, settings.corpus, settings.tokenizer)
        if tokenizer_to_json(data.tokenizer) != tokenizer_to_json(tokenizer):
            data = _prepare(settings, settings.corpus, own)
        if _trained_on(target) not in (None, data.corpus_sha256):
            notes.append(
                "the corpus is not the one the model was trained on (its hash differs), so this split may hold text"
                " that training saw"
            )
    else:
        data = _prepare(settings, corpus, own)
        notes.append("the corpus is not the run's own; whether training saw its text is not known")
    return HeldOut(data, tuple(notes))


def _prepare(settings: DataConfig, corpus: str, tokenizer: str) -> PreparedData:
    return prepare_data(settings.model_copy(update={"corpus": corpus, "tokenizer": tokenizer}))


def _trained_on(target: Target) -> str | None:
    if target.run_directory is None or not result_path(target.run_directory, "training").exists():
        return None
    return str(read_result(target.run_directory, "training")["data"]["corpus_sha256"])

"""Write a run directory from any training loop, so that ``compare``, ``fit`` and ``report`` take the run. No torch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from depthscale.errors import ConfigError, ResultError, unknown_name
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, write_toml
from depthscale.runs.layout import CONFIG_FILE, METRICS_FILE
from depthscale.runs.metrics import append_metric, first_finite_loss, keep_until, read_metrics
from depthscale.runs.outcome import divergence_reason, judge
from depthscale.runs.results import read_result, result_path, write_result
from depthscale.studies.recorded_result import Course, Facts, counted_budget, recorded_result

SPLITS = ("tuning", "report")

Split = Literal["tuning", "report"]


class RunRecorder:
    """A run directory as ``depthscale train`` leaves it, made by a loop of your own.

        with RunRecorder("runs/mine", config=..., corpus_sha256=..., tokenizer_sha256=..., vocab_size=...,
                         unigram_loss_nats=...) as recorder:
            for step in ...:
                recorder.log(step, tokens=..., loss=...)
            recorder.evaluate("tuning", loss=...)
            recorder.evaluate("report", loss=...)

    Losses are means in nats per token. ``tuning`` is the split that rates were chosen on, ``report`` the one that
    results are reported on and nothing was chosen on. The result is written when the block ends without an exception,
    and only of a run that made all its steps (``train.steps``) or diverged: half a schedule is no result.

    Args:
        directory: of the run; new or empty, unless the run goes on.
        config: the resolved configuration, as of a TOML file: a :class:`RunConfig`, its tables, or the file's path.
            ``plan`` and ``model`` say what the model is, ``data`` and ``train`` how it was trained; what your loop does
            otherwise than ``depthscale train`` would is yours to know.
        corpus_sha256: identifies the text. Runs of different texts are refused in one comparison or fit.
        tokenizer_sha256: identifies the tokenizer, likewise.
        vocab_size: rows of the embedding.
        unigram_loss_nats: entropy of the evaluated tokens' own frequencies, see :func:`unigram_entropy_nats`.
        train_tokens: distinct tokens to train on, from which epochs follow.
        budget: counts of your own for a model that is not of the configured shape: ``parameters``,
            ``parameters_non_embedding``, ``flops_per_token_forward``, ``flops_per_token_training``, ``head_share``.
        resume_from: the last step that is kept of an earlier part of this run; its later records are dropped.
        rank: of this process; only rank 0 writes.

    Attributes:
        divergence: why the run is called diverged, or None; a loop may stop there.

    Raises:
        ConfigError: the configuration is faulty, or another one than the directory's.
        ResultError: the directory holds a finished run, or one and ``resume_from`` is None.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        config: RunConfig | Mapping[str, Any] | Path | str,
        corpus_sha256: str,
        tokenizer_sha256: str,
        vocab_size: int,
        unigram_loss_nats: float,
        train_tokens: int | None = None,
        budget: Mapping[str, float] | None = None,
        resume_from: int | None = None,
        rank: int = 0,
    ) -> None:
        self.directory = Path(directory)
        self.config = _config(config)
        self.facts = Facts(corpus_sha256, tokenizer_sha256, vocab_size, unigram_loss_nats, train_tokens)
        self.budget = counted_budget(self.config, self.facts, budget or {})
        self.resume_from = resume_from
        self.divergence: str | None = None
        self._writes = rank == 0
        self._metrics = self.directory / METRICS_FILE
        self._first_loss: float | None = None
        self._last_step = 0
        self._start = time.monotonic()
        self._seconds_before = 0.0
        if self._writes:
            _require_own(self.directory, self.config, resume_from)

    def __enter__(self) -> Self:
        if self._writes:
            write_toml(self.directory / CONFIG_FILE, self.config)
            if self.resume_from is not None:
                self._go_on_from(self.resume_from)
        self._start = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._writes:
            write_result(
                self.directory, "training", recorded_result(self.config, self.facts, self._course(), self.budget)
            )

    def log(
        self, step: int, *, tokens: int, loss: float, lr: float | None = None, grad_norm: float | None = None
    ) -> None:
        """Record the training loss after an optimizer step; the last one must be logged, others as often as you like.

        Args:
            step: optimizer steps made so far, from 1, ascending.
            tokens: trained on so far, all processes together.
            loss: mean over the step's tokens, nats.
            lr: learning rate of the step.
            grad_norm: before clipping.
        """
        if step <= self._last_step:
            raise ResultError(f"step {step} came after step {self._last_step}; expected ascending steps, from 1")
        self._last_step = step
        if self._first_loss is None and math.isfinite(loss):
            self._first_loss = loss
        if reason := divergence_reason(loss, self._first_loss, self.config.train.divergence_factor):
            self.divergence = reason
        self._append(
            {
                "step": step, "kind": "train", "loss_nats": loss, "lr": lr, "grad_norm": grad_norm, "tokens": tokens,
                "seconds": self._seconds_before + time.monotonic() - self._start,
            }
        )  # fmt: skip

    def evaluate(
        self, split: Split, *, loss: float, num_tokens: int | None = None, num_bytes: int | None = None
    ) -> None:
        """Record the loss on a held-out split after the step logged last; both splits are needed at the end.

        Args:
            split: ``tuning`` or ``report``.
            loss: mean over the split's tokens, nats.
            num_tokens: tokens that the mean was taken over.
            num_bytes: UTF-8 bytes of those tokens, which give bits per byte: loss / ln 2 * num_tokens / num_bytes.
        """
        if split not in SPLITS:
            raise ResultError(unknown_name("split", split, SPLITS))
        known = num_tokens is not None and num_bytes is not None
        bits = loss / math.log(2) * num_tokens / num_bytes if known else None  # type: ignore[operator]
        self._append(
            {
                "step": self._last_step, "kind": "evaluation", "split": split, "loss_nats": loss, "bits_per_byte": bits,
                "num_tokens": num_tokens,
            }
        )  # fmt: skip

    def diverged(self, reason: str) -> None:
        """Call the run diverged, such as when its loop gave up on steps that were not finite; that is a result."""
        self.divergence = reason

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._writes:
            append_metric(self._metrics, record)

    def _go_on_from(self, step: int) -> None:
        keep_until(self._metrics, step)
        steps = [r for r in read_metrics(self._metrics) if r["kind"] == "train"] if self._metrics.exists() else []
        self._first_loss = first_finite_loss(steps)
        if steps:
            self._last_step, self._seconds_before = steps[-1]["step"], steps[-1]["seconds"]
        self._append({"step": step, "kind": "resumed"})

    def _course(self) -> Course:
        records = read_metrics(self._metrics) if self._metrics.exists() else []
        steps = [record for record in records if record["kind"] == "train"]
        if not steps:
            raise ResultError(f"the loop of {self.directory} logged no step; call log(step, tokens=..., loss=...)")
        last = steps[-1]
        if self.divergence is None and last["step"] != self.config.train.steps:
            raise ResultError(
                f"the loop of {self.directory} ended at step {last['step']} of {self.config.train.steps} (train.steps);"
                " go on with resume_from, or say diverged(reason)"
            )
        final = {split: _last_evaluation(records, split, last["step"]) for split in SPLITS}
        missing = [split for split, loss in final.items() if loss is None]
        if missing and self.divergence is None:
            raise ResultError(
                f"the loop of {self.directory} ended without evaluate('{missing[0]}', loss=...) after its last step"
            )
        unknown = {"loss_nats": None, "bits_per_byte": None, "num_tokens": None}
        measured = {split: loss or unknown for split, loss in final.items()}
        tuning = [r["loss_nats"] for r in records if r["kind"] == "evaluation" and r["split"] == "tuning"]
        outcome, reason = judge(
            self.divergence,
            [math.inf if loss is None else loss for loss in tuning or [None]],
            self.facts.unigram_loss_nats,
        )
        return Course(
            outcome=outcome,
            outcome_reason=reason,
            step=last["step"],
            tokens=last["tokens"],
            seconds=last["seconds"],
            final=measured,
            non_finite=sum(record["loss_nats"] is None for record in steps),
            resumed=sum(record["kind"] == "resumed" for record in records),
        )


def unigram_entropy_nats(token_counts: Sequence[int]) -> float:
    """-sum p ln p over the frequencies of tokens: no prediction that ignores context has a lower loss on them.

    Args:
        token_counts: how often each token stands in the split that losses are evaluated on.

    Example:
        >>> round(unigram_entropy_nats([2, 2, 0, 4]), 4)
        1.0397
    """
    total = sum(token_counts)
    return -sum(count / total * math.log(count / total) for count in token_counts if count)


def _config(config: RunConfig | Mapping[str, Any] | Path | str) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return validate(RunConfig, config, "config")
    return validate(RunConfig, read_toml(Path(config)), str(config))


def _require_own(directory: Path, config: RunConfig, resume_from: int | None) -> None:
    path = directory / CONFIG_FILE
    if result_path(directory, "training").exists():
        outcome = read_result(directory, "training")["outcome"]
        raise ResultError(f"{directory} already holds a run that is {outcome}; choose another directory")
    if path.exists() and validate(RunConfig, read_toml(path), str(path)) != config:
        raise ConfigError(f"{path} differs from the configuration given; a run goes on unchanged")
    if (directory / METRICS_FILE).exists() and resume_from is None:
        raise ResultError(f"{directory} holds a run that has begun; go on with resume_from=STEP, or choose another")
    if not path.exists() and directory.is_dir() and any(directory.iterdir()):
        raise ResultError(f"{directory} holds other files and no run; choose a new or empty directory")


def _last_evaluation(records: Sequence[Mapping[str, Any]], split: str, step: int) -> dict[str, Any] | None:
    found = [r for r in records if r["kind"] == "evaluation" and r["split"] == split and r["step"] == step]
    return {key: found[-1][key] for key in ("loss_nats", "bits_per_byte", "num_tokens")} if found else None

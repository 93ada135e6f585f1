"""Errors a user can mend. Each message says what came, what was expected and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DepthscaleError(Exception):
    """Base of every error that is the user's to mend; the CLI prints it as one line and exits with 2."""


class PlanError(DepthscaleError, ValueError):
    """A depth plan or a residual rule was asked for something it cannot be."""


class ConfigError(DepthscaleError, ValueError):
    """A configuration has an unknown key, or a value out of range."""


class DataError(DepthscaleError, ValueError):
    """A corpus, tokenizer or table cannot be used as given."""


class CheckpointError(DepthscaleError, ValueError):
    """A checkpoint is missing, truncated, or does not fit the model."""


class ResultError(DepthscaleError, ValueError):
    """A run or study directory holds no readable result."""


class RunInterruptedError(DepthscaleError):
    """A run was asked to end by a signal; its checkpoint is kept and it can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class MissingExtraError(DepthscaleError, ImportError):
    """A verb needs an optional extra that is not installed."""

    def __init__(self, verb: str, extra: str, module: str) -> None:
        super().__init__(
            f"'{verb}' needs {module}, which is not installed: pip install 'depthscale[{extra}]'", name=module
        )


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """One line for a name that is not in ``known``, with the nearest one suggested.

    Example:
        >>> unknown_name("rule", "deeplop", ["deeploop", "deepnorm"])
        "unknown rule 'deeplop'; did you mean 'deeploop'? Known: deeploop, deepnorm"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"unknown {kind} '{name}'{hint} Known: {', '.join(names)}"


def first_line(error: Exception) -> str:
    """What another library's error says first, or its kind where it says nothing.

    Example:
        >>> first_line(ValueError("no such file\\nand ten lines of advice"))
        'no such file'
        >>> first_line(KeyError())
        'KeyError'
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

"""What is known of the rows before they are fitted, and what looks wrong with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from depthscale.budget import ModelShape, count_parameters
from depthscale.budget.parameters import MlpKind
from depthscale.errors import ConfigError, DataError
from depthscale.laws.observations import Observations

Array = NDArray[np.float64]

#: Rows whose parameters or FLOPs differ by more are listed.
TOLERANCE = 0.02
#: FLOPs over 6 N D further from 1 than this factor are a matter of units and not of convention.
UNIT_FACTOR = 100.0
#: Columns of amounts, which no row has none of.
AMOUNTS = ("parameters", "tokens", "flops")
#: Only runs say these; nobody is asked.
_NEVER_ASKED = ("mlp", "context_length")


@dataclass(frozen=True)
class DataCard:
    """Answers that decide what a fitted exponent means; None is "not known" and is reported so.

    Attributes:
        annealed: every row's learning rate was decayed to its end.
        tokenizer: its name; losses of different tokenizers are not comparable.
        vocab_size: rows of the embedding.
        mlp_ratio: inner width over width of the MLP.
        rate_tuned: the learning rate was tuned for each size.
        embeddings_counted: ``parameters`` holds the embedding.
        mlp: ``swiglu`` or ``gelu``, where runs say so.
        context_length: T, where runs say so.
    """

    annealed: bool | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    mlp_ratio: float | None = None
    rate_tuned: bool | None = None
    embeddings_counted: bool | None = None
    mlp: MlpKind | None = None
    context_length: int | None = None

    def __post_init__(self) -> None:
        if self.mlp_ratio is not None and not 0 < self.mlp_ratio < math.inf:
            raise ConfigError(f"MLP ratio came as {self.mlp_ratio!r}; expected a positive number such as 4")

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Names of what is asked and not known."""
        asked = (field.name for field in fields(self) if field.name not in _NEVER_ASKED)
        return tuple(name for name in asked if getattr(self, name) is None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Answers that bias exponents."""
        lines = []
        if self.annealed is False:
            lines.append("rows are not annealed: token exponents of cut schedules are biased")
        if self.rate_tuned is False:
            lines.append("one learning rate for all sizes: width and depth exponents carry its mistuning")
        return tuple(lines)


@dataclass(frozen=True)
class Finding:
    """Something about some rows that should be looked at before a fit.

    Attributes:
        kind: duplicates, units, parameters, flops, mid_schedule or constant.
        rows: numbers of the rows, from 0.
        message: one line.
    """

    kind: str
    rows: tuple[int, ...]
    message: str


def inspect_rows(data: Observations) -> tuple[Finding, ...]:
    """Duplicates, constant columns, units off by powers of ten, rows in the middle of their schedule.

    Losses that are not positive are refused earlier, when :class:`Observations` is made. Columns that are used where
    they exist: ``parameters``, ``tokens``, ``flops``, ``step`` with ``total_steps``.

    Raises:
        DataError: an amount is not positive and finite, or a step not finite.
    """
    require_amounts(data)
    findings = []
    table = np.stack([*data.columns.values(), data.loss], axis=1)
    _, first, codes = np.unique(table, axis=0, return_index=True, return_inverse=True)
    repeats = np.flatnonzero(first[codes.ravel()] != np.arange(data.num_rows))
    if len(repeats):
        findings.append(Finding("duplicates", _ints(repeats), f"{len(repeats)} rows repeat an earlier one"))
    for name, values in data.columns.items():
        if data.num_rows > 1 and (values == values[0]).all():
            findings.append(Finding("constant", (), f"column '{name}' has one value; it has no exponent"))
    columns = data.columns
    if {"parameters", "tokens", "flops"} <= set(columns):
        ratio = columns["flops"] / (6 * columns["parameters"] * columns["tokens"])
        off = np.flatnonzero(~((ratio > 1 / UNIT_FACTOR) & (ratio < UNIT_FACTOR)))
        if len(off):
            power = round(float(np.log10(np.median(np.abs(ratio[off])))))
            findings.append(
                Finding(
                    "units",
                    _ints(off),
                    f"FLOPs are about 1e{power} times 6 * parameters * tokens in {len(off)} rows: give units,"
                    " for example tokens=D:1e6",
                )
            )
    if {"step", "total_steps"} <= set(columns):
        middle = np.flatnonzero(columns["step"] < columns["total_steps"])
        if len(middle):
            findings.append(
                Finding("mid_schedule", _ints(middle), f"{len(middle)} rows lie in the middle of their schedule")
            )
    return tuple(findings)


def require_amounts(data: Observations) -> None:
    """Amounts must be positive and finite, steps finite, whether the law reads them or not.

    Raises:
        DataError: the first row where one is not.
    """
    for name in AMOUNTS:
        require_numbers(data, name, positive=True)
    for name in ("step", "total_steps"):
        require_numbers(data, name)


def require_numbers(data: Observations, name: str, *, positive: bool = False) -> None:
    """A column, where there is one, must be finite and, if asked, positive.

    Raises:
        DataError: the first row where it is not.
    """
    if name not in data.columns:
        return
    values = data.columns[name]
    odd = np.flatnonzero(~(np.isfinite(values) & (values > 0 if positive else True)))
    if len(odd):
        raise DataError(
            f"column '{name}' has {float(values[odd[0]])} in row {odd[0]};"
            f" expected {'positive ' if positive else ''}finite numbers: mend the row or delete it"
        )


def is_finished(data: Observations) -> NDArray[np.bool_]:
    """Which rows [n] are at the end of their schedule; all where ``step`` and ``total_steps`` are not there.

    Raises:
        DataError: no row is finished.
    """
    if not {"step", "total_steps"} <= set(data.columns):
        return np.ones(data.num_rows, dtype=np.bool_)
    done: NDArray[np.bool_] = data.columns["step"] >= data.columns["total_steps"]
    if not done.any():
        raise DataError("no row reaches its total_steps; expected finished runs, or leave step out of the columns")
    return done


def finished_rows(data: Observations) -> Observations:
    """Rows at the end of their schedule; all rows where ``step`` and ``total_steps`` are not there.

    Raises:
        DataError: no row is finished.
    """
    done = is_finished(data)
    return data if done.all() else data.take(done)


def best_over_rates(data: Observations, settings: list[str]) -> Observations:
    """The lower envelope over learning rates: of rows that agree in ``settings`` the one with the least loss.

    Stands beside the fit of all rows, not for it: the minimum of noisy losses is biased down.
    """
    grouped = data.grouped_by(settings).group_codes
    order = np.lexsort((data.loss, grouped))
    best = order[np.unique(grouped[order], return_index=True)[1]]
    return data.take(np.sort(best))


def compare_with_budget(given: Array, expected: Array, kind: str, tolerance: float = TOLERANCE) -> Finding | None:
    """Rows whose parameters or FLOPs are not what ``depthscale.budget`` counts; None when all agree.

    Args:
        given: the table's figures [n].
        expected: counted ones [n].
        kind: ``parameters`` or ``flops``.
        tolerance: relative.
    """
    off = np.flatnonzero(~(np.abs(given / expected - 1) <= tolerance))
    if not len(off):
        return None
    worst = off[np.argmax(np.abs(np.log(given[off] / expected[off])))]
    return Finding(
        kind,
        _ints(off),
        f"{len(off)} rows differ by more than {tolerance:.0%} from the counted {kind};"
        f" the furthest is row {int(worst)} with {given[worst]:.4g} against {expected[worst]:.4g}",
    )


def counted_parameters(shapes: list[ModelShape], embeddings: bool) -> Array:
    """Exact parameters [n] of each row's shape, with the embedding and head or without."""
    counts = [count_parameters(shape) for shape in shapes]
    return np.array([float(c.total if embeddings else c.non_embedding) for c in counts])


def _ints(rows: NDArray[np.intp]) -> tuple[int, ...]:
    return tuple(int(row) for row in rows)

"""From a table to the rows of a fit: columns found, tokens derived, mistakes refused, rows cut and grouped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, DataError, unknown_name
from depthscale.laws.card import (
    DataCard,
    Finding,
    inspect_rows,
    is_finished,
    require_amounts,
    require_numbers,
)
from depthscale.laws.frontier import block_parameters
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.observations import Observations, ordinal
from depthscale.laws.row_shapes import budget_findings
from depthscale.laws.tables import RESERVED, ColumnMap, from_table, is_numeric

Array = NDArray[np.float64]

#: Read beside the law's own columns wherever a table has them under these names.
EXTRA_COLUMNS = ("width", "depth", "blocks", "rounds", "tokens", "parameters", "flops", "step", "total_steps", "rate")
#: Columns that say how long a run was and not what was built.
DURATION_COLUMNS = ("tokens", "flops", "step", "total_steps")
#: Tokens per parameter outside this range are a matter of units.
TOKENS_PER_PARAMETER = (1e-3, 1e6)
#: Fewer groups and a cluster bootstrap says nothing.
FEWEST_GROUPS = 8
_SHOWN_ROWS = 12


@dataclass(frozen=True)
class RowRule:
    """Which of the rows are fitted, and as what.

    Attributes:
        drop_highest: so many of the highest losses are left out.
        below_rank: only losses strictly below that rank (1 is the highest).
        depth_offset: subtracted from the column ``depth``.
        keep_duplicates, keep_unfinished: fit rows that would be refused or left out.
        independent: every row stands for itself, whatever groups there are.
    """

    drop_highest: int = 0
    below_rank: int | None = None
    depth_offset: float = 0.0
    keep_duplicates: bool = False
    keep_unfinished: bool = False
    independent: bool = False

    def __post_init__(self) -> None:
        if self.drop_highest and self.below_rank is not None:
            raise ConfigError("both drop-highest-losses and below-loss-rank came; expected one rule for the rows")

    @property
    def words(self) -> str:
        """The cut in words."""
        if self.below_rank is not None:
            return f"losses strictly below the {ordinal(self.below_rank)} largest"
        return f"all but the {self.drop_highest} highest losses" if self.drop_highest else "every row"


@dataclass(frozen=True)
class Prepared:
    """Rows ready for a fit.

    Attributes:
        everything: all rows in the same convention, none cut.
        base: the rows to fit, grouped.
        findings: what looks odd, rows by number (from 0, header not counted).
        notes: what was done to the rows, one line each.
        num_read: rows of the table.
        depth_offset: layers that the column ``depth`` leaves out.
        tokens_derived: whether the table had no tokens, so that they are FLOPs / (6 * parameters).
    """

    everything: Observations
    base: Observations
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    num_read: int
    depth_offset: float = 0.0
    tokens_derived: bool = False


def map_columns(table: Mapping[str, list[Any]], law: AdditiveLaw, text: str | None) -> tuple[ColumnMap, list[str]]:
    """The user's columns, completed by those that the table has under the law's own names.

    Returns:
        The columns, and a note for each that could have been read beside the law's own but holds no numbers.

    Raises:
        ConfigError: a name is given that is no column of the law and none that is read beside them.
        DataError: the table lacks a column that the law reads.
    """
    if not law.columns:
        raise ConfigError(f"law '{law.name}' reads no column; expected at least one factor")
    given = ColumnMap.parse(text) if text else ColumnMap({})
    readable = dict.fromkeys((*law.columns, *EXTRA_COLUMNS))
    for name in given.sources:
        if name not in readable:
            raise ConfigError(unknown_name("name in --columns", name, (*readable, *RESERVED)))
    sources = dict(given.sources)
    notes = []
    for name in readable:
        if name in sources or name not in table:
            continue
        if name in law.columns or is_numeric(table[name]):
            sources[name] = (name, 1.0)
        else:
            notes.append(f"column '{name}' holds more than numbers and was not read; the law does without it")
    derivable = {"parameters", "flops"} <= set(sources)
    missing = [name for name in law.columns if name not in sources and not (name == "tokens" and derivable)]
    if missing:
        raise DataError(
            f"law '{law.name}' reads {', '.join(missing)}, which the table lacks; name them, such as"
            f" --columns {missing[0]}=COLUMN. The table has: {', '.join(table)}"
        )
    return replace(given, sources=sources), notes


def prepare(table: Observations, law: AdditiveLaw, rule: RowRule, card: DataCard, context: int | None) -> Prepared:
    """Check the rows and cut them.

    Args:
        table: every row.
        law: what will be fitted.
        rule: which rows, and as what.
        card: with vocabulary and MLP ratio known, parameters are counted and compared.
        context: T, with which FLOPs are counted and compared; None leaves that out.

    Raises:
        DataError: rows repeat, or units are off by powers of ten.
    """
    notes = []
    data = table
    require_amounts(data)
    derived = "tokens" in law.columns and "tokens" not in data.columns and {"parameters", "flops"} <= set(data.columns)
    if derived:
        data = data.with_column("tokens", data.column("flops") / (6 * data.column("parameters")))
        notes.append("tokens were derived as FLOPs / (6 * parameters)")
    # A constant column matters only to a law that reads it.
    read = Observations({name: data.column(name) for name in law.columns}, data.loss)
    findings = [finding for finding in inspect_rows(data) if finding.kind != "constant"]
    findings += [finding for finding in inspect_rows(read) if finding.kind == "constant"]
    _refuse(findings, data, rule)
    for name in law.columns:
        require_numbers(data, name)
    findings += budget_findings(data, card, context)
    done = np.ones(data.num_rows, dtype=np.bool_) if rule.keep_unfinished else is_finished(data)
    # Before any row is cut, so that rows keep their numbers.
    _require_logarithms(data, law, done & (data.row_weights > 0))
    if rule.depth_offset:
        data = _with_offset(data, rule.depth_offset, done)
        notes.append(_offset_words(law, rule.depth_offset))
    if not done.all():
        notes.append(f"{int((~done).sum())} rows in the middle of their schedule are left out")
        data = data.take(done)
    if data.counted is not data:
        notes.append(f"{data.num_rows - data.counted.num_rows} rows have no weight and are left out")
        data = data.counted
    base = data
    if rule.below_rank is not None:
        base = data.below_loss_rank(rule.below_rank)
    elif rule.drop_highest:
        base = data.without_highest(rule.drop_highest)
    left = "" if data.num_rows == table.num_rows else f" of the {data.num_rows} that are not left out"
    notes.append(f"{base.num_rows} of {table.num_rows} rows are fitted: {rule.words}{left}")
    base, words = _grouped(base, law, rule)
    return Prepared(data, base, tuple(findings), (*notes, words), table.num_rows, rule.depth_offset, derived)


def rows_from_table(
    table: Mapping[str, list[Any]],
    law: AdditiveLaw,
    columns: str | None,
    whole: Mapping[str, list[Any]] | None = None,
) -> tuple[Observations, list[str]]:
    """Every row of a table under the names of the law, and notes on columns that were not read.

    Args:
        table: the rows.
        law: whose columns are read.
        columns: names and units of the table's columns.
        whole: the table that these rows are one arm of; its labels number the groups.
    """
    found, notes = map_columns(table, law, columns)
    return from_table(table, found, whole), notes


def shown_rows(rows: tuple[int, ...]) -> str:
    """Row numbers in print, a long list cut short.

    Example:
        >>> shown_rows((1, 4)), shown_rows(tuple(range(14)))
        ('1, 4', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more')
    """
    text = ", ".join(str(row) for row in rows[:_SHOWN_ROWS])
    return f"{text} and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else text


def _refuse(findings: list[Finding], data: Observations, rule: RowRule) -> None:
    for finding in findings:
        if finding.kind == "duplicates" and not rule.keep_duplicates:
            raise DataError(
                f"{finding.message} (rows {shown_rows(finding.rows)}); delete them, or fit them with --keep-duplicates"
            )
        if finding.kind == "units":
            raise DataError(f"{finding.message} (rows {shown_rows(finding.rows)})")
    parameters = _rough_parameters(data.columns)
    if parameters is not None and "tokens" in data.columns and (parameters > 0).all():
        per_parameter = float(np.median(data.columns["tokens"] / parameters))
        low, high = TOKENS_PER_PARAMETER
        if not low <= per_parameter <= high:
            raise DataError(
                f"tokens are about {per_parameter:.1g} per parameter; give units, such as --columns tokens=COLUMN:1e6"
            )


def _rough_parameters(columns: Mapping[str, Array]) -> Array | None:
    """Parameters of each row as far as its columns tell, to see units by; None where they do not."""
    if "parameters" in columns:
        return columns["parameters"]
    if "width" in columns:
        blocks = columns.get("blocks", columns.get("depth"))
        if blocks is not None:
            counted: Array = block_parameters(columns["width"], blocks)
            return counted
    if "unrolled_parameters" in columns:
        return columns["unrolled_parameters"] / columns.get("rounds", np.ones(1))
    return None


def _require_logarithms(data: Observations, law: AdditiveLaw, rows: NDArray[np.bool_]) -> None:
    """Columns that enter as powers are positive in the rows that stay; rows are named by their number in the table."""
    for factor in (factor for term in law.terms for factor in term.factors if factor.kind != "decay"):
        odd = np.flatnonzero(rows & ~(data.column(factor.column) > 0))
        if len(odd):
            raise DataError(
                f"column '{factor.column}' has {data.column(factor.column)[odd[0]]:g} in row {odd[0]};"
                " expected positive numbers, since the law raises it to a power: mend the row or delete it"
            )


def _with_offset(data: Observations, offset: float, rows: NDArray[np.bool_]) -> Observations:
    """The column ``depth`` less the offset, which must leave depth in the rows that stay."""
    if "depth" not in data.columns:
        raise ConfigError(
            f"depth offset {offset:g} came, but the rows have no column depth; name one, such as"
            " --columns depth=COLUMN, or leave the offset out"
        )
    values = data.column("depth") - offset
    odd = np.flatnonzero(rows & ~(values > 0))
    if len(odd):
        raise DataError(f"depth - {offset:g} is {values[odd[0]]:g} in row {odd[0]}; expected a smaller --depth-offset")
    return data.with_column("depth", values)


def _offset_words(law: AdditiveLaw, offset: float) -> str:
    if "depth" in law.columns:
        return f"depth counts layers less {offset:g}"
    return f"law '{law.name}' reads no depth: the offset {offset:g} changes nothing but forms of law that read it"


def _grouped(data: Observations, law: AdditiveLaw, rule: RowRule) -> tuple[Observations, str]:
    """Groups as given, or one for each architecture."""
    alone = Observations(data.columns, data.loss, data.weights)
    if rule.independent:
        return alone, "rows are taken as independent, as asked"
    if data.groups is not None:
        if data.num_groups < FEWEST_GROUPS:
            raise DataError(
                f"{data.num_groups} groups came, too few to draw from (at least {FEWEST_GROUPS} are needed);"
                " group by something finer, or take rows as independent with --independent-rows"
            )
        return data, f"{data.num_groups} groups as given"
    sizes = [name for name in law.columns if name not in DURATION_COLUMNS]
    if not sizes:
        return alone, "rows are taken as independent: the law reads no size that could group them"
    grouped = data.grouped_by(sizes)
    count = grouped.num_groups
    if FEWEST_GROUPS <= count < data.num_rows:
        return grouped, f"rows that agree in {' and '.join(sizes)} form one group: {count} groups"
    why = "each has sizes of its own" if count == data.num_rows else f"{count} architectures are too few to draw from"
    return alone, f"rows are taken as independent: {why}"

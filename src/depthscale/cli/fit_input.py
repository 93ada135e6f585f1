"""What the verbs that fit laws read: the law, the objective, the rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthscale.laws import AdditiveLaw, DataCard, Objective, Observations


def read_law(text: str) -> AdditiveLaw:
    """A law by its name, or from a TOML file.

    Raises:
        ConfigError: there is no such law, or the file holds none.
    """
    from depthscale.errors import ConfigError
    from depthscale.laws.law import AdditiveLaw
    from depthscale.laws.library import get_law

    if not text.endswith(".toml"):
        return get_law(text)
    try:
        return AdditiveLaw.from_toml(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read law {text} ({error}); expected a TOML file or a law's name") from error


def read_objective(text: str, delta: float) -> Objective:
    """What is minimized, by the name that the command line has for it."""
    from depthscale.errors import ConfigError, unknown_name
    from depthscale.laws.objective import Objective, ObjectiveKind

    kinds: dict[str, ObjectiveKind] = {"log": "log_squares", "huber": "log_huber", "raw": "raw_squares"}
    if text not in kinds:
        raise ConfigError(unknown_name("objective", text, kinds))
    return Objective(kinds[text], delta)


def read_rows(
    paths: list[Path],
    law: AdditiveLaw,
    columns: str | None,
    arm: str | None,
    stated: DataCard,
    only: tuple[str, str] | None = None,
) -> tuple[Observations, DataCard, list[str], list[dict[str, str]]]:
    """Rows, the card, notes, and what they were read from.

    Args:
        paths: one table, or study and run directories.
        law: whose columns are read.
        columns: names and units of the table's columns.
        arm: of directories only the runs of this arm, or of those that match.
        stated: what the user says of the rows.
        only: of a table only the rows that have this text in this column.
    """
    import hashlib
    from dataclasses import fields, replace

    from depthscale.errors import ConfigError
    from depthscale.laws.preparation import rows_from_table
    from depthscale.laws.run_directories import read_runs
    from depthscale.laws.tables import read_columns, rows_where

    if all(path.is_dir() for path in paths):
        if columns is not None:
            raise ConfigError("--columns goes with a table; runs come with columns of their own")
        found = read_runs(paths, arm)
        given = {f.name: value for f in fields(stated) if (value := getattr(stated, f.name)) is not None}
        return found.data, replace(found.card, **given), list(found.notes), [{"name": path.name} for path in paths]
    if len(paths) > 1 or arm is not None:
        raise ConfigError(f"{len(paths)} paths came; expected one table, or study and run directories (with --arm)")
    whole = read_columns(paths[0])
    table = whole if only is None else rows_where(whole, *only)
    digest = hashlib.sha256(paths[0].read_bytes()).hexdigest()
    rows, notes = rows_from_table(table, law, columns, whole)
    return rows, stated, notes, [{"name": paths[0].name, "sha256": digest}]

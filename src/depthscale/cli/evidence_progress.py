"""Progress of a long measurement in parts: a bar on a terminal, a line a part elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def evidence_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yields what is to be told: the part, how many are done, of how many."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks = {}
    with bar:

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)
            if done == total and not console.is_terminal:
                console.print(f"{what}: {total} measured")

        yield tell

"""Names of the tasks and groups that come with this package, and how each is asked unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

LOCAL_GROUP = "local"
CONTINUATION = "local_continuation"
CLOZE = "local_cloze"
LOCAL_NAMES = (LOCAL_GROUP, CONTINUATION, CLOZE)

PAPER_GROUP = "deeploop"
PAPER_SHOTS = (0, 1)

#: Tasks of each group of ours.
MEMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        LOCAL_GROUP: (CONTINUATION, CLOZE),
        PAPER_GROUP: (
            "arc_challenge",
            "arc_easy",
            "hellaswag",
            "openbookqa",
            "piqa",
            "sciq",
            "social_iqa",
            "winogrande",
        ),
    }
)


def distinct_tasks(tasks: Sequence[str]) -> list[str]:
    """Each name once, without the tasks that a named group of ours asks anyway.

    Example:
        >>> distinct_tasks(["local", "local_cloze", "mmlu", "local", "mmlu"])
        ['local', 'mmlu']
    """
    covered = {member for group in tasks for member in MEMBERS.get(group, ())}
    return [task for task in dict.fromkeys(tasks) if task not in covered]


def usual_shots(task: str) -> tuple[int, ...]:
    """Numbers of solved examples that a task is asked with: 0 and 1 for the paper's group, 0 for all others."""
    return PAPER_SHOTS if task == PAPER_GROUP else (0,)

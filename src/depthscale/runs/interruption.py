"""Ctrl-C and SIGTERM end a run after the step in progress, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Which signal asked the run to end, if any."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether the run was asked to end."""
        return self.signal_number is not None


@contextmanager
def graceful_interruption() -> Iterator[Interruption]:
    """Turn the first SIGINT or SIGTERM inside the block into a request; the handlers before are put back.

    Outside the main thread Python takes no signal handlers, and the request never comes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def request(number: int, frame: FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.signal_number = number

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

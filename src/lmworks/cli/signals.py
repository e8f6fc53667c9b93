"""SIGTERM ends a command as Ctrl-C does: what it had begun to write is removed."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGTERM_STATUS = 128 + signal.SIGTERM


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Meanwhile SIGTERM raises SystemExit in the main thread, with the status of that signal."""

    def leave(_signal: int, _frame: FrameType | None) -> None:
        sys.exit(SIGTERM_STATUS)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Ctrl-C and SIGTERM ask training to stop after the step; a second Ctrl-C quits at once."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

EXIT_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""128 + signal number, as a shell reports a process that a signal ended."""


class StopRequest:
    """Set by a signal; the loop looks at it between steps."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest; a second SIGINT raises KeyboardInterrupt."""
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    previous = {number: signal.signal(number, handle) for number in EXIT_STATUS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Finds stop strings in text that arrives in pieces, and never lets part of one out.

Text that could be the beginning of a stop string is held back until it is clear whether it is one.
Where the pieces are cut changes nothing: the result is that of feeding single characters.
"""

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until one of `stops` is complete.

    The first string to be completed wins; of two completed by the same character, the longer one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that is now certain to come before any stop string."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        start = self._first_stop(text)
        if start is not None:
            self.stopped = True
            self._held = ""
            return text[:start]
        keep = len(text) - self._partial_length(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back; call at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        found = [(text.find(s) + len(s), text.find(s)) for s in self._stops if s in text]
        return min(found)[1] if found else None

    def _partial_length(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string could begin."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0

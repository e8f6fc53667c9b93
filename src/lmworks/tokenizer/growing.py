"""A text that grows, is cut back or is edited, and its token ids, without encoding all of it again.

    document = tokenizer.growing("User: hello\\n")
    document.append("Bot: hi")
    document.ids                  # those of tokenizer.encode_to_numpy(document.text)

The text is kept as segments whose ids are final: `Tokenizer.stable_prefix` says where a text may be
cut so that nothing that follows changes the ids before the cut. Behind the last cut stands the
tail, a few pieces long, and only that is encoded again. A cut depends on the text up to some place
behind it (`seen`), so an edit keeps every cut whose `seen` lies before it; and after an edit the
old segments are taken up again as soon as the same text is cut at the same place.
"""

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from lmworks.base.errors import ConfigError

if TYPE_CHECKING:
    from lmworks.tokenizer.base import Ids, Tokenizer
    from lmworks.tokenizer.special import SpecialSet

# Long enough for a segment to be worth its native calls, short enough to encode again.
SEGMENT_CHARS = 2048
# How many old cuts an edit tries before it gives the rest up; one is nearly always enough.
_MAX_TRIES = 4


class GrowingText:
    """Text and ids of a document that changes. Made by `Tokenizer.growing`.

    Ids are brought up to date when they are asked for. All appends together take time linear in
    the text when no piece of it is endless; where a tokenizer has no piece borders (an unknown
    expression), only special tokens are cuts, and reading the ids encodes what follows the last.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer",
        text: str = "",
        *,
        allowed_special: "SpecialSet" = (),
        disallowed_special: "SpecialSet" = "all",
    ) -> None:
        import numpy as np

        self._tokenizer = tokenizer
        self._allowed = allowed_special
        self._disallowed = disallowed_special
        self._segments: list[str] = []
        # One more entry than segments: the last is where the tail begins.
        self._starts = [0]
        self._id_starts = [0]
        # For the cut behind each segment, how much of the text it depends on.
        self._seen: list[int] = []
        self._tail = [text]
        self._num_chars = len(text)
        self._buffer: Ids = np.empty(64, np.uint32)
        self._num_ids: int | None = None

    @property
    def text(self) -> str:
        """All of the text. Takes linear time."""
        return "".join([*self._segments, *self._tail])

    @property
    def num_chars(self) -> int:
        """Length of the text."""
        return self._num_chars

    @property
    def ids(self) -> "Ids":
        """The ids of the text, as a read-only view that is right until the next change.

        Raises:
            DataError: the text contains a forbidden special token.
        """
        self._update()
        ids = self._buffer[: self._num_ids]
        ids.flags.writeable = False
        return ids

    @property
    def num_stable_ids(self) -> int:
        """How many ids no appended text can change any more (a model may have read them)."""
        self._update()
        ready, _ = self._stable_prefix(self._tail[0])
        return self._id_starts[-1] + len(self._encode(ready))

    def append(self, text: str) -> None:
        """Put `text` at the end."""
        self._tail.append(text)
        self._num_chars += len(text)
        self._num_ids = None

    def truncate(self, num_chars: int) -> None:
        """Keep the first `num_chars` characters."""
        self.replace(num_chars, self._num_chars, "")

    def replace(self, begin: int, end: int, text: str) -> None:
        """Put `text` in the place of the characters `begin` to `end`.

        Copies the ids behind the place, but encodes only around it.

        Raises:
            ConfigError: not 0 <= begin <= end <= num_chars.
            DataError: the edited part contains a forbidden special token; nothing has changed.
        """
        if not 0 <= begin <= end <= self._num_chars:
            raise ConfigError(
                f"characters {begin} to {end} are not in a text of {self._num_chars:,}; "
                "0 <= begin <= end <= num_chars is needed"
            )
        kept = bisect_right(self._seen, begin)
        first = bisect_left(self._starts, end, lo=kept)
        if first >= len(self._segments):
            self._cut_back(kept, begin, end, text)
            return
        edited = self._between(self._starts[kept], begin) + text
        edited += self._between(end, self._starts[first])
        shift = begin + len(text) - end
        for resumed in range(first, min(first + _MAX_TRIES, len(self._segments))):
            if resumed > first:
                edited += self._segments[resumed - 1]
            if self._is_cut_again(edited, resumed):
                self._splice(kept, edited, resumed, shift)
                return
        self._cut_back(kept, begin, end, text)

    def _cut_back(self, kept: int, begin: int, end: int, text: str) -> None:
        """Keep `kept` segments; everything behind them is tail again, edited."""
        tail = self._between(self._starts[kept], begin) + text
        tail += self._between(end, self._num_chars)
        del self._segments[kept:], self._seen[kept:]
        del self._starts[kept + 1 :], self._id_starts[kept + 1 :]
        self._tail = [tail]
        self._num_chars = self._starts[-1] + len(tail)
        self._num_ids = None

    def _is_cut_again(self, edited: str, resumed: int) -> bool:
        """Whether the text may be cut between `edited` and the old segment `resumed`."""
        start = self._starts[resumed]
        ready, _ = self._stable_prefix(edited + self._between(start, self._seen_of(resumed)))
        return len(ready) == len(edited)

    def _splice(self, kept: int, edited: str, resumed: int, shift: int) -> None:
        """Put the segment `edited` between the first `kept` segments and those from `resumed`."""
        import numpy as np

        ids = self._encode(edited)
        before, after = self._id_starts[kept], self._id_starts[resumed]
        more = before + len(ids) - after
        new = [edited] if edited else []
        self._buffer = np.concatenate(
            [self._buffer[:before], ids, self._buffer[after : self._id_starts[-1]]]
        )
        seen = [self._seen_of(resumed)] * len(new) + self._seen[resumed:]
        self._seen[kept:] = [place + shift for place in seen]
        self._starts[kept + len(new) :] = [place + shift for place in self._starts[resumed:]]
        self._id_starts[kept + len(new) :] = [place + more for place in self._id_starts[resumed:]]
        self._segments[kept:resumed] = new
        self._num_chars += shift
        self._num_ids = None

    def _seen_of(self, segment: int) -> int:
        """How much of the text the cut before this segment depends on."""
        return self._seen[segment - 1] if segment else 0

    def _between(self, begin: int, end: int) -> str:
        first = bisect_right(self._starts, begin) - 1
        parts = self._segments[first : bisect_left(self._starts, end)]
        if end > self._starts[-1]:
            parts += self._tail
        offset = begin - self._starts[first]
        return "".join(parts)[offset : offset + end - begin]

    def _update(self) -> None:
        """Cut finished segments off the tail and encode what is left of it."""
        if self._num_ids is not None:
            return
        tail = "".join(self._tail)
        at, wanted = 0, SEGMENT_CHARS
        while len(tail) - at >= wanted:
            block = tail[at : at + wanted]
            ready, held = self._stable_prefix(block)
            if ready:
                self._add_segment(ready, len(block))
                at += len(ready)
            # Growing with what is held, so that one endless piece costs linear time in all.
            wanted = max(SEGMENT_CHARS, 2 * len(held))
        self._tail = [tail[at:]]
        ids = self._encode(self._tail[0])
        self._write(ids)
        self._num_ids = self._id_starts[-1] + len(ids)

    def _add_segment(self, text: str, seen_chars: int) -> None:
        ids = self._encode(text)
        self._write(ids)
        self._seen.append(self._starts[-1] + seen_chars)
        self._segments.append(text)
        self._starts.append(self._starts[-1] + len(text))
        self._id_starts.append(self._id_starts[-1] + len(ids))

    def _write(self, ids: "Ids") -> None:
        """Put ids behind the final ones."""
        import numpy as np

        begin = self._id_starts[-1]
        end = begin + len(ids)
        if end > len(self._buffer):
            larger = np.empty(2 * end, np.uint32)
            larger[:begin] = self._buffer[:begin]
            self._buffer = larger
        self._buffer[begin:end] = ids

    def _encode(self, text: str) -> "Ids":
        return self._tokenizer.encode_to_numpy(
            text, allowed_special=self._allowed, disallowed_special=self._disallowed
        )

    def _stable_prefix(self, text: str) -> tuple[str, str]:
        return self._tokenizer.stable_prefix(
            text, allowed_special=self._allowed, disallowed_special=self._disallowed
        )

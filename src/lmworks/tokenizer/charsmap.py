"""The precompiled normalization rules of SentencePiece models: text in, text out.

Format (sentencepiece, src/normalizer.cc): the size of a trie in bytes as a little-endian uint32,
the trie, then all replacements, each ended by a zero byte. The trie is a double array of uint32
units (Darts-clone): from the unit at position p with offset o, the child for byte b is at p ^ o ^ b
and carries b as its label; a key that ends there has its value, the place of its replacement, in
the unit at that child's own offset. At each place of a text the longest key that begins there is
replaced; a character where none begins stays.

A rule file for NFKC holds 225,276 keys, most of them spelt-out Hangul, so the trie is never listed:
characters are looked up when a text first brings them.
"""

import re
from array import array
from collections.abc import Iterable

from lmworks.base.errors import DataError

_SIZE_BYTES = 4
_UNIT_BYTES = 4
_VALUE_MASK = 0x7FFFFFFF
_LABEL_MASK = 0x800000FF


class Charsmap:
    """Leftmost-longest replacement by the rules of one model."""

    def __init__(self, blob: bytes) -> None:
        """Raises DataError when `blob` is not of the format."""
        trie_bytes = int.from_bytes(blob[:_SIZE_BYTES], "little")
        end = _SIZE_BYTES + trie_bytes
        if (
            len(blob) <= _SIZE_BYTES
            or end > len(blob)
            or trie_bytes % _UNIT_BYTES
            or not trie_bytes
        ):
            raise DataError(
                f"precompiled_charsmap: a trie of {trie_bytes} bytes does not fit in "
                f"{len(blob)} bytes in whole 4-byte units"
            )
        self._units = array("I", blob[_SIZE_BYTES:end])
        self._replacements = blob[end:]
        self._known: set[str] = set()
        self._rules: dict[str, str] = {}  # characters that are keys, and their replacements
        self._starts: set[str] = set()  # characters with which longer keys begin
        self._seconds: set[str] = set()  # characters that follow one of those in a key
        self._candidates: re.Pattern[str] | None = None

    def split(self, text: str, fixed: re.Pattern[str] | None = None) -> list[str]:
        """The normalized text in parts: unchanged text and replacements in turn, text at both ends.

        What `fixed` matches stays as it is and counts as a replacement. A byte that is not UTF-8
        (U+DC80..U+DCFF, by the error handler "surrogateescape") becomes U+FFFD.
        """
        self._learn(text)
        spots = self._spots(fixed)
        if spots is None:
            return [text]
        parts: list[str] = []
        at = 0
        hit = spots.search(text)
        while hit is not None:
            begin = hit.start()
            if hit.lastgroup == "fixed":
                end, content = hit.end(), hit.group()
            elif (char := text[begin]) in self._starts:
                end, content = self.longest(text, begin)
            else:
                end, content = begin + 1, self._rules[char]
            parts += (text[at:begin], content)
            at = end
            hit = spots.search(text, at)
        return [*parts, text[at:]]

    def longest(self, text: str, begin: int) -> tuple[int, str]:
        """End and replacement of the longest key at `begin`; without one, of the character."""
        node = self._root()
        best = begin + 1, text[begin]
        for end in range(begin + 1, len(text) + 1):
            node, value = self._walk(node, text[end - 1].encode("utf-8", "surrogateescape"))
            if node < 0:
                break
            if value is not None:
                best = end, self._replacement(value)
        return best

    def _spots(self, fixed: re.Pattern[str] | None) -> re.Pattern[str] | None:
        """Where something is to be done."""
        if self._candidates is None:
            choices = []
            if self._rules:
                choices.append(f"[{_class(self._rules)}]")
            if self._seconds:
                choices.append(f"[{_class(self._starts)}](?=[{_class(self._seconds)}])")
            self._candidates = re.compile("|".join(choices) or "(?!)")
        if fixed is None:
            return self._candidates if self._candidates.pattern != "(?!)" else None
        return re.compile(f"(?P<fixed>{fixed.pattern})|{self._candidates.pattern}")

    def _learn(self, text: str) -> None:
        """Look up the characters that no text had before."""
        for char in set(text) - self._known:
            self._known.add(char)
            if "\udc80" <= char <= "\udcff":
                self._rules[char] = "\ufffd"
                self._candidates = None
                continue
            node, value = self._walk(self._root(), char.encode("utf-8", "surrogateescape"))
            if value is not None:
                self._rules[char] = self._replacement(value)
                self._candidates = None
            followers = self._followers(node) if node >= 0 else set()
            if followers:
                self._starts.add(char)
                self._seconds |= followers
                self._candidates = None

    def _root(self) -> int:
        return _offset(self._units[0])

    def _walk(self, node: int, key: bytes) -> tuple[int, int | None]:
        """Where `key` leads to from `node`, or -1, and the value of the key if it has one."""
        unit = 0
        for byte in key:
            node ^= byte
            if node >= len(self._units):
                return -1, None
            unit = self._units[node]
            if unit & _LABEL_MASK != byte:
                return -1, None
            node ^= _offset(unit)
        if not unit >> 8 & 1 or node >= len(self._units):
            return node, None
        return node, self._units[node] & _VALUE_MASK

    def _followers(self, node: int) -> set[str]:
        """The characters that some key has after the one that led to `node`."""
        found: set[str] = set()
        paths = [(node, b"")]
        while paths:
            here, path = paths.pop()
            for byte in range(256):
                there, _ = self._walk(here, bytes([byte]))
                if there < 0:
                    continue
                longer = path + bytes([byte])
                try:
                    found.add(longer.decode("utf-8"))
                except UnicodeDecodeError as err:
                    # Only the beginnings of characters lead on: at most three bytes deep.
                    if err.reason == "unexpected end of data":
                        paths.append((there, longer))
        return found

    def _replacement(self, at: int) -> str:
        end = self._replacements.find(b"\0", at)
        return self._replacements[at : end if end >= 0 else None].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _class(chars: Iterable[str]) -> str:
    """The inside of a regular expression's character class."""
    return "".join(map(re.escape, sorted(chars)))

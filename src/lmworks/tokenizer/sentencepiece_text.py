"""What SentencePiece does to a text before it is cut into pieces.

In this order (sentencepiece, src/normalizer.cc): characters are replaced by the model's rules,
except inside user-defined symbols; spaces at both ends and repeated spaces are removed; a "dummy"
space goes in front, so that a word is the same piece at the start of a text and in it, or behind;
each space becomes U+2581.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args

from lmworks.base.errors import DataError
from lmworks.tokenizer.charsmap import Charsmap

SPACE: Final = "\u2581"
Prefix = Literal["none", "always", "missing"]
PrefixAt = Literal["segments", "start"]

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SPACES = re.compile(" {2,}")


def escaped_text(text: bytes) -> str:
    """The text, with U+DC80..U+DCFF for each byte that is not UTF-8."""
    return text.decode("utf-8", "surrogateescape")


def replace_escaped(text: str) -> str:
    """U+FFFD for each byte that is not UTF-8."""
    return text if text.isascii() else _ESCAPED_BYTE.sub("\ufffd", text)


def _without_extra_spaces(parts: list[str]) -> str:
    """One space for several and none in front; inside every second part spaces stay as they are."""
    if not any("  " in part for part in parts[1::2]):
        return _SPACES.sub(" ", "".join(parts)).lstrip(" ")
    kept: list[str] = []
    is_after_space = True
    for i, part in enumerate(parts):
        text = part if i % 2 else _SPACES.sub(" ", part)
        if is_after_space:
            text = text.lstrip(" ")
        if text:
            kept.append(text)
            is_after_space = text.endswith(" ")
    return "".join(kept)


@dataclass(frozen=True, kw_only=True)
class TextRules:
    """How text becomes what the pieces are made of."""

    charsmap: bytes = b""
    """Precompiled replacements (charsmap.py); empty for none."""
    prefix: Prefix = "always"
    """The dummy space: none, always, or unless the text begins with a space anyway (Metaspace)."""
    prefix_at: PrefixAt = "segments"
    """In front of each stretch between special tokens, or only at the start of the whole text."""
    is_suffix: bool = False
    """The dummy space goes behind the text (treat_whitespace_as_suffix)."""
    remove_extra_whitespaces: bool = False
    """Remove spaces at both ends and repeated ones."""
    escape_whitespaces: bool = True
    """Write spaces as U+2581, as all pieces do."""
    user_defined: tuple[str, ...] = ()
    """Symbols in which no character is replaced."""
    _map: Charsmap | None = field(init=False, compare=False, repr=False, default=None)
    _fixed: re.Pattern[str] | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.prefix not in get_args(Prefix) or self.prefix_at not in get_args(PrefixAt):
            raise DataError(
                f"prefix={self.prefix!r}, prefix_at={self.prefix_at!r}; possible are "
                f"{get_args(Prefix)} and {get_args(PrefixAt)}"
            )
        if self.charsmap:
            object.__setattr__(self, "_map", Charsmap(self.charsmap))
        if self.user_defined:
            longest_first = sorted(self.user_defined, key=len, reverse=True)
            object.__setattr__(self, "_fixed", re.compile("|".join(map(re.escape, longest_first))))

    @property
    def space(self) -> str:
        """What a space is written as."""
        return SPACE if self.escape_whitespaces else " "

    def apply(self, text: str, *, is_start: bool = True, has_prefix: bool = True) -> str:
        """The text that is cut into pieces.

        Args:
            text: what is changed; bytes that are not UTF-8 stand as U+DC80..U+DCFF.
            is_start: nothing stands before it.
            has_prefix: it begins a stretch between special tokens, so it may get a dummy space.
        """
        if not text:
            return ""
        parts = self._split(text)
        if self.remove_extra_whitespaces:
            # A part that a rule deletes is no space: then the dummy suffix is added all the same.
            if all(part == " " for part in parts[1::2]) and not "".join(parts[::2]).strip(" "):
                return ""
            text = _without_extra_spaces(parts)
        else:
            text = "".join(parts)
        has_prefix = has_prefix and self._has_prefix(text, is_start)
        text = text.replace(" ", self.space)
        if has_prefix and not self.is_suffix:
            text = self.space + text
        if self.remove_extra_whitespaces:
            text = text.rstrip(self.space)
        return text + self.space if has_prefix and self.is_suffix else text

    def apply_bytes(self, text: bytes, *, is_start: bool = True, has_prefix: bool = True) -> bytes:
        """`apply` to UTF-8; each byte that is not becomes U+FFFD."""
        decoded = escaped_text(text)
        if self.keeps_places and decoded:
            # What most models do, without a detour over characters.
            space = self.space.encode("utf-8")
            if not decoded.isascii():
                text = replace_escaped(decoded).encode("utf-8")
            has_prefix = has_prefix and self._has_prefix(decoded[0], is_start)
            return (space if has_prefix else b"") + text.replace(b" ", space)
        return self.apply(decoded, is_start=is_start, has_prefix=has_prefix).encode("utf-8")

    def apply_aligned(
        self, text: str, *, is_start: bool = True, has_prefix: bool = True
    ) -> tuple[str, list[int]]:
        """`apply`, and for each character of the result the place in `text` that it comes from."""
        chars: list[tuple[str, int]] = []
        is_blank, is_after_space = True, self.remove_extra_whitespaces
        at = 0
        while at < len(text):
            end, chunk = self._chunk(text, at)
            is_blank = is_blank and chunk == " "
            if is_after_space:
                chunk = chunk.lstrip(" ")
            if chunk and self.remove_extra_whitespaces:
                is_after_space = chunk.endswith(" ")
            chars += ((char, at) for char in chunk)
            at = end
        if not text or (self.remove_extra_whitespaces and is_blank):
            return "", []
        has_prefix = has_prefix and self._has_prefix(chars[0][0] if chars else "", is_start)
        chars = [(self.space if char == " " else char, place) for char, place in chars]
        if has_prefix and not self.is_suffix:
            chars.insert(0, (self.space, 0))
        while self.remove_extra_whitespaces and chars and chars[-1][0] == self.space:
            chars.pop()
        if has_prefix and self.is_suffix:
            chars.append((self.space, len(text) - 1))
        return "".join(char for char, _ in chars), [place for _, place in chars]

    def _chunk(self, text: str, at: int) -> tuple[int, str]:
        """End and replacement of what stands at `at`: a symbol, a key or a character."""
        symbol = self._fixed.match(text, at) if self._fixed is not None else None
        if symbol is not None:
            return symbol.end(), symbol.group()
        if self._map is not None:
            return self._map.longest(text, at)
        return at + 1, replace_escaped(text[at])

    @property
    def keeps_places(self) -> bool:
        """Whether spaces are all that changes, and one is put in front at most."""
        return self._map is None and not self.remove_extra_whitespaces and not self.is_suffix

    def _split(self, text: str) -> list[str]:
        """The text in parts, unchanged ones and replaced or user-defined ones in turn."""
        if self._map is not None:
            return self._map.split(text, self._fixed)
        text = replace_escaped(text)
        if self._fixed is None or not self.remove_extra_whitespaces:
            return [text]
        parts: list[str] = []
        at = 0
        for match in self._fixed.finditer(text):
            parts += (text[at : match.start()], match.group())
            at = match.end()
        return [*parts, text[at:]]

    def _has_prefix(self, text: str, is_start: bool) -> bool:
        if self.prefix == "none" or (self.prefix_at == "start" and not is_start):
            return False
        return self.prefix == "always" or not text.startswith((" ", SPACE))

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without the user-defined symbols: those are pieces."""
        return {
            "charsmap": base64.b64encode(self.charsmap).decode("ascii"),
            "prefix": self.prefix,
            "prefix_at": self.prefix_at,
            "is_suffix": self.is_suffix,
            "remove_extra_whitespaces": self.remove_extra_whitespaces,
            "escape_whitespaces": self.escape_whitespaces,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], user_defined: tuple[str, ...]) -> "TextRules":
        """Inverse of `to_json`; DataError when a field is wrong."""
        wanted = {f.name: f for f in fields(cls) if f.init and f.name != "user_defined"}
        if set(value) != set(wanted):
            raise DataError(f"text_rules must have the keys {', '.join(wanted)}; got {list(value)}")
        for name, spec in wanted.items():
            right = bool if isinstance(spec.default, bool) else str
            if not isinstance(value[name], right):
                raise DataError(f"text_rules.{name}={value[name]!r:.60} must be a {right.__name__}")
        try:
            charsmap = base64.b64decode(value["charsmap"], validate=True)
        except (binascii.Error, ValueError) as err:
            raise DataError(f"text_rules.charsmap is not base64 ({err})") from None
        return cls(**{**value, "charsmap": charsmap, "user_defined": user_defined})

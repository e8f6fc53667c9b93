"""Special tokens: which of them count in a text, and what a forbidden one in it does.

The rules are tiktoken's. A special token in the text is

  * a token, when it is in `allowed_special`;
  * an error, when it is in `disallowed_special` (by default: every one that is not allowed),
    because text from users must not smuggle control tokens into a prompt. That holds anywhere in
    the text, inside a longer allowed token too;
  * plain text otherwise.

Where special tokens overlap, the earliest wins, and of those that start together the longest.
"Added" tokens, as Hugging Face files have them, are always tokens. Hugging Face's flags of added
tokens change what a match is (TokenFlags). Matching is native (csrc/text/bpe_encode_special.cpp):
its cost does not grow with the number of tokens.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Literal, NamedTuple

from lmworks._text import SpecialSplitter
from lmworks.base.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lmworks.tokenizer.normalize import Normalizer

SpecialSet = Literal["all"] | Collection[str]

MAX_SPECIAL_BYTES = 1024
_MAX_KNOWN_ACTIONS = 16
_AS_TEXT, _MATCH, _FORBID = 0, 1, 2


@dataclass(frozen=True, slots=True)
class TokenFlags:
    """How a special or added token is found; the meaning is that of Hugging Face's AddedToken."""

    lstrip: bool = False
    """A match swallows the white space before it."""
    rstrip: bool = False
    """A match swallows the white space after it."""
    single_word: bool = False
    """No match beside a word character (Unicode's \\w)."""
    normalized: bool = False
    """Looked for after all others, in the normalized text, in its own normalized form."""

    def to_byte(self) -> int:
        """The native code's bits."""
        return self.lstrip + 2 * self.rstrip + 4 * self.single_word + 8 * self.normalized

    def names(self) -> list[str]:
        """The flags that are set."""
        return [name for name in self.__slots__ if getattr(self, name)]

    @classmethod
    def from_names(cls, names: Sequence[str]) -> "TokenFlags":
        """Inverse of `names`; DataError for a name that is no flag."""
        for name in names:
            if name not in cls.__slots__:
                raise DataError(f"{name!r} is not one of the flags {', '.join(cls.__slots__)}")
        return cls(**dict.fromkeys(names, True))


PLAIN_FLAGS = TokenFlags()
_OF_FIRST_PASS = bytes(0 if b & 8 else 255 for b in range(256))
_OF_SECOND_PASS = bytes(255 if b & 8 else 0 for b in range(256))


class Segment(NamedTuple):
    """A stretch of a text: a special token's id, or plain text (`token_id` is None)."""

    text: bytes
    token_id: int | None
    begin: int
    """Where it starts in the text, in bytes."""
    end: int


class SpecialTokens:
    """The special and added tokens of one tokenizer, ready to be found in text."""

    def __init__(
        self,
        special: Mapping[str, int],
        added: Mapping[str, int] | None = None,
        flags: Mapping[str, TokenFlags] | None = None,
        normalizer: "Normalizer | None" = None,
    ) -> None:
        """Args:
            special: tokens that count when allowed, and their ids.
            added: tokens that always count, and their ids.
            flags: of the tokens that have any.
            normalizer: what is done to text before tokens with the flag `normalized` are found.

        Raises:
            DataError: a token is empty, too long, not valid text or given twice.
        """
        self.special = dict(special)
        self.added = dict(added or {})
        self.names = [*self.special, *self.added]
        self.ids = [*self.special.values(), *self.added.values()]
        self.encoded = _all_encoded(self.names)
        if len(set(self.names)) < len(self.names):
            twice = next(n for n in self.special if n in self.added)
            raise DataError(f"token {twice!r} is both special and added; keep one")
        self.flags = {name: f for name, f in (flags or {}).items() if f != PLAIN_FLAGS}
        if unknown := self.flags.keys() - self.special.keys() - self.added.keys():
            raise DataError(f"flags of {min(unknown)!r}, which is neither special nor added")
        self.name_of = dict(zip(self.ids, self.encoded, strict=True))
        self.normalizer = normalizer
        self.has_normalized = any(f.normalized for f in self.flags.values())
        byte_of = {name: f.to_byte() for name, f in self.flags.items()}
        flag_bytes = bytes(map(byte_of.get, self.names, repeat(0)))
        self.splitter = SpecialSplitter(self._wanted(), flag_bytes)
        self._known_actions: dict[tuple[str | frozenset[str], str | frozenset[str]], bytes] = {}
        # By pass, what to ignore: the tokens of the other one.
        self._first = flag_bytes.translate(_OF_FIRST_PASS)
        self._second = flag_bytes.translate(_OF_SECOND_PASS)

    def _wanted(self) -> list[bytes]:
        """What is looked for: the names, those with the flag `normalized` in normalized form."""
        if self.normalizer is None or not self.has_normalized:
            return self.encoded
        wanted = list(self.encoded)
        for i, name in enumerate(self.names):
            if self.flags.get(name, PLAIN_FLAGS).normalized:
                wanted[i] = self.normalizer.apply(name).encode("utf-8")
                if not wanted[i]:
                    raise DataError(f"the normalizer leaves nothing of the token {name!r}")
        return wanted

    def actions(self, allowed: SpecialSet, disallowed: SpecialSet) -> bytes:
        """What to do with each token of `names`, one byte per token (the native code's format)."""
        key = _hashable(allowed), _hashable(disallowed)
        actions = self._known_actions.get(key)
        if actions is None:
            actions = self._actions(
                self._named(allowed, "allowed_special"),
                None if disallowed == "all" else self._named(disallowed, "disallowed_special"),
            )
            if len(self._known_actions) >= _MAX_KNOWN_ACTIONS:
                self._known_actions.clear()
            self._known_actions[key] = actions
        return actions

    def split(self, text: bytes, actions: bytes) -> list[Segment]:
        """Cut `text` at the special tokens in it; raises DataError when one is forbidden.

        Plain text is as it stands, not normalized; for `normalized` tokens see `split_normalized`.
        """
        if self.normalizer is not None and self.has_normalized:
            actions = _masked(actions, self._first)
        return self._split(text, actions)

    def split_normalized(self, text: bytes, actions: bytes) -> list[Segment]:
        """Cut one plain segment of `split`, once it is normalized, at its `normalized` tokens."""
        if not self.has_normalized or self.normalizer is None:
            return [Segment(text, None, 0, len(text))] if text else []
        return self._split(text, _masked(actions, self._second))

    def _split(self, text: bytes, actions: bytes) -> list[Segment]:
        found = self.splitter.find(text, actions)
        if isinstance(found, int):
            raise self.forbidden(found)
        segments: list[Segment] = []
        at = 0
        for begin, end, index in found:
            if begin > at:
                segments.append(Segment(text[at:begin], None, at, begin))
            segments.append(Segment(text[begin:end], self.ids[index], begin, end))
            at = end
        if at < len(text):
            segments.append(Segment(text[at:], None, at, len(text)))
        return segments

    def forbidden(self, index: int) -> DataError:
        """The error for a forbidden token in the text."""
        name = self.names[index]
        return DataError(
            f"the text contains the special token {name!r}, which is not allowed here; "
            f"to encode it as a token pass allowed_special={{{name!r}}} (or 'all'), "
            "to encode it as plain text pass disallowed_special=()"
        )

    def _named(self, names: SpecialSet, argument: str) -> Collection[str]:
        if names == "all":
            return self.special
        if isinstance(names, str):
            raise ConfigError(f"{argument}={names!r} must be 'all' or a set of special tokens")
        for name in names:
            if name not in self.special:
                from lmworks.base.config import suggest

                known = suggest(name, self.special) if self.special else "; there are none"
                raise ConfigError(f"{argument}: no special token {name!r}{known}")
        return frozenset(names)

    def _actions(self, allowed: Collection[str], disallowed: Collection[str] | None) -> bytes:
        """`disallowed` None: all that are not allowed."""

        def action(name: str) -> int:
            if name in allowed:
                return _MATCH
            return _FORBID if disallowed is None or name in disallowed else _AS_TEXT

        return bytes([*map(action, self.special), *[_MATCH] * len(self.added)])


def _all_encoded(names: Sequence[str]) -> list[bytes]:
    """UTF-8 of each; in whole passes, for there may be tens of thousands."""
    try:
        encoded = list(map(str.encode, names))
    except UnicodeEncodeError:
        encoded = []
    sizes = list(map(len, encoded))
    if sizes and 0 < min(sizes) <= max(sizes) <= MAX_SPECIAL_BYTES:
        return encoded
    return [_encoded(name) for name in names]


def _encoded(name: str) -> bytes:
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"special token {name!r} is not valid Unicode text") from None
    if not 0 < len(encoded) <= MAX_SPECIAL_BYTES:
        raise DataError(
            f"special token {name[:40]!r} has {len(encoded)} bytes; "
            f"1 to {MAX_SPECIAL_BYTES} are possible"
        )
    return encoded


def _hashable(names: SpecialSet) -> str | frozenset[str]:
    return names if isinstance(names, str) else frozenset(names)


def _masked(actions: bytes, mask: bytes) -> bytes:
    """`actions` where the mask is 255, else 0 (as text)."""
    both = int.from_bytes(actions, "big") & int.from_bytes(mask, "big")
    return both.to_bytes(len(actions), "big")

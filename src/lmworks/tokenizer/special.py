"""Special tokens: which of them count in a text, and what a forbidden one in it does.

The rules are tiktoken's. A special token in the text is

  * a token, when it is in `allowed_special`;
  * an error, when it is in `disallowed_special` (by default: every one that is not allowed),
    because text from users must not smuggle control tokens into a prompt;
  * plain text otherwise.

Where special tokens overlap, the earliest wins, and of those that start together the longest.
"Added" tokens, as Hugging Face files have them, are always tokens. Matching is native
(csrc/text/bpe_encode_special.cpp): its cost does not grow with the number of tokens.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from lmworks._text import SpecialSplitter
from lmworks.base.errors import ConfigError, DataError

SpecialSet = Literal["all"] | Collection[str]

MAX_SPECIAL_BYTES = 1024
_MAX_KNOWN_ACTIONS = 16
_AS_TEXT, _MATCH, _FORBID = 0, 1, 2


class Segment(NamedTuple):
    """A stretch of a text: a special token's id, or plain text (`token_id` is None)."""

    text: bytes
    token_id: int | None


class SpecialTokens:
    """The special and added tokens of one tokenizer, ready to be found in text."""

    def __init__(self, special: Mapping[str, int], added: Mapping[str, int] | None = None) -> None:
        self.special = dict(special)
        self.added = dict(added or {})
        self.names = [*self.special, *self.added]
        self.ids = [*self.special.values(), *self.added.values()]
        for name in self.names:
            try:
                size_bytes = len(name.encode("utf-8"))
            except UnicodeEncodeError:
                raise DataError(f"special token {name!r} is not valid Unicode text") from None
            if not 0 < size_bytes <= MAX_SPECIAL_BYTES:
                raise DataError(
                    f"special token {name[:40]!r} has {size_bytes} bytes; "
                    f"1 to {MAX_SPECIAL_BYTES} are possible"
                )
        if len(set(self.names)) < len(self.names):
            twice = next(n for n in self.special if n in self.added)
            raise DataError(f"token {twice!r} is both special and added; keep one")
        self.encoded = [name.encode("utf-8") for name in self.names]
        self.splitter = SpecialSplitter(self.encoded)
        self._known_actions: dict[tuple[str | frozenset[str], str | frozenset[str]], bytes] = {}

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
        """Cut `text` at the special tokens in it; raises DataError when one is forbidden."""
        segments: list[Segment] = []
        at = 0
        for begin, end, index in self.splitter.find(text, actions):
            if actions[index] == _FORBID:
                raise self.forbidden(index)
            if begin > at:
                segments.append(Segment(text[at:begin], None))
            segments.append(Segment(text[begin:end], self.ids[index]))
            at = end
        if at < len(text):
            segments.append(Segment(text[at:], None))
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
        return names

    def _actions(self, allowed: Collection[str], disallowed: Collection[str] | None) -> bytes:
        """`disallowed` None: all that are not allowed."""

        def action(name: str) -> int:
            if name in allowed:
                return _MATCH
            return _FORBID if disallowed is None or name in disallowed else _AS_TEXT

        return bytes([*map(action, self.special), *[_MATCH] * len(self.added)])


def _hashable(names: SpecialSet) -> str | frozenset[str]:
    return names if isinstance(names, str) else frozenset(names)

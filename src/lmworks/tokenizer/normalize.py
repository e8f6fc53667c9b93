"""Normalizers: what some vocabularies do to the text between special tokens before it is cut.

A Normalizer is a list of steps, each with a JSON form: {"kind": "nfc"}, {"kind": "replace",
"pattern": " ", "content": "▁"}, ... Their results are those of Hugging Face's `tokenizers`, whose
tables of Unicode are not those of Python (unicode_tables.py). `apply_aligned` also tells for each
character of the result where in the text it comes from. Bytes that are not UTF-8 pass through.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from lmworks.base.errors import DataError
from lmworks.tokenizer.schema import Check, check_fields, is_bool, is_string

_HANGUL_VOWELS_AND_TAILS = range(0x1160, 0x1200)
_WORD_THEN_BLANK = re.compile(r"[0-9A-Za-z](?=[ \t\n])")
_WORD_THEN_SPACE = re.compile(r"[0-9A-Za-z](?= )")
# Unicode White_Space. str.isspace would add U+001C .. U+001F.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)

Positions = list[int]


class Step(ABC):
    """One change of a text."""

    kind: ClassVar[str]
    keeps_ascii: ClassVar[bool] = False
    """Text of ASCII alone stays as it is."""
    keeps_words: ClassVar[bool] = False
    """What stands before an ASCII letter or digit and a blank does not affect what comes after."""

    @abstractmethod
    def apply(self, text: str) -> str:
        """The changed text."""

    @abstractmethod
    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        """The changed text, and for each of its characters the place in `text` it comes from."""

    def to_json(self) -> dict[str, Any]:
        """The step as JSON values."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


# ---- Unicode normalization ----


@cache
def _inert() -> re.Pattern[str]:
    from lmworks.tokenizer.unicode_tables import INERT

    return re.compile(f"([{INERT}]+)")


class _UnicodeForm(Step):
    """A Unicode normalization form (Unicode Standard Annex #15)."""

    form: ClassVar[Literal["NFC", "NFD", "NFKC", "NFKD"]]
    keeps_ascii = True
    keeps_words = True

    def apply(self, text: str) -> str:
        if unicodedata.is_normalized(self.form, text):
            return text
        parts = _inert().split(text)
        parts[::2] = [unicodedata.normalize(self.form, part) for part in parts[::2]]
        return "".join(parts)

    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        # Piece by piece: from a character that composes with nothing before it to the next.
        result: list[str] = []
        positions: Positions = []
        begin = 0
        for end in range(1, len(text) + 1):
            if end < len(text) and not _starts_afresh(text[end]):
                continue
            piece = self.apply(text[begin:end])
            result.append(piece)
            positions += [min(begin + k, end - 1) for k in range(len(piece))]
            begin = end
        return "".join(result), positions


@dataclass(frozen=True)
class NFC(_UnicodeForm):
    """Composed letters."""

    kind = "nfc"
    form = "NFC"


@dataclass(frozen=True)
class NFD(_UnicodeForm):
    """Decomposed letters."""

    kind = "nfd"
    form = "NFD"


@dataclass(frozen=True)
class NFKC(_UnicodeForm):
    """Composed letters, variants made equal."""

    kind = "nfkc"
    form = "NFKC"


@dataclass(frozen=True)
class NFKD(_UnicodeForm):
    """Decomposed letters, variants made equal."""

    kind = "nfkd"
    form = "NFKD"


def _starts_afresh(char: str) -> bool:
    return (
        unicodedata.combining(char) == 0
        and not unicodedata.category(char).startswith("M")
        and ord(char) not in _HANGUL_VOWELS_AND_TAILS
    )


# ---- character by character ----


class _PerCharacter(Step):
    """A change of each character by itself."""

    keeps_words = True

    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        changed = [self.apply(char) for char in text]
        return "".join(changed), [i for i, new in enumerate(changed) for _ in new]


@dataclass(frozen=True)
class Lowercase(_PerCharacter):
    """Lower case without regard to the neighbours: Σ becomes σ everywhere."""

    kind = "lowercase"

    def apply(self, text: str) -> str:
        if text.isascii():
            return text.lower()
        from lmworks.tokenizer.unicode_tables import LOWER

        return text.translate(LOWER).replace("Σ", "σ").lower()


@dataclass(frozen=True)
class StripAccents(_PerCharacter):
    """Removes marks that take no space of their own; after NFD these are the accents."""

    kind = "strip_accents"
    keeps_ascii = True

    def apply(self, text: str) -> str:
        return text if text.isascii() else _nonspacing().sub("", text)


@cache
def _nonspacing() -> re.Pattern[str]:
    from lmworks.tokenizer.unicode_tables import NONSPACING

    return re.compile(f"[{NONSPACING}]+")


# ---- the rest ----


@dataclass(frozen=True)
class Strip(Step):
    """Removes white space at the ends of the text."""

    left: bool = True
    right: bool = True
    kind = "strip"

    def apply(self, text: str) -> str:
        text = text.lstrip(_SPACES) if self.left else text
        return text.rstrip(_SPACES) if self.right else text

    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        begin = len(text) - len(text.lstrip(_SPACES)) if self.left else 0
        stripped = self.apply(text)
        return stripped, list(range(begin, begin + len(stripped)))


@dataclass(frozen=True)
class Replace(Step):
    """Replaces each occurrence of a string, or of what a regular expression matches, by another."""

    pattern: str
    content: str
    is_regex: bool = False
    kind = "replace"

    def __post_init__(self) -> None:
        if not self.pattern:
            raise DataError("normalizer: a replace step has an empty pattern")
        if self.is_regex:
            _compiled(self.pattern)

    def to_json(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "pattern": self.pattern, "content": self.content}
        return {**fields, "is_regex": True} if self.is_regex else fields

    def apply(self, text: str) -> str:
        if not self.is_regex:
            return text.replace(self.pattern, self.content)
        return str(_compiled(self.pattern).sub(lambda _: self.content, text))

    @property
    def _expression(self) -> str:
        return self.pattern if self.is_regex else re.escape(self.pattern)

    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        result: list[str] = []
        positions: Positions = []
        at = 0
        for match in _compiled(self._expression).finditer(text):
            result += [text[at : match.start()], self.content]
            positions += range(at, match.start())
            positions += [match.start()] * len(self.content)
            at = match.end()
        return "".join([*result, text[at:]]), [*positions, *range(at, len(text))]


@cache
def _compiled(pattern: str) -> Any:
    try:
        import regex
    except ImportError:
        raise DataError(
            f"the normalizer's expression {pattern!r} needs the package `regex`: "
            "pip install lmworks[regex]"
        ) from None
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, MemoryError) as err:
        raise DataError(f"normalizer: {pattern!r} is no regular expression ({err})") from None


@dataclass(frozen=True)
class Prepend(Step):
    """Puts a string before a text that is not empty."""

    text: str
    kind = "prepend"

    def apply(self, text: str) -> str:
        return self.text + text if text else text

    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        if not text:
            return text, []
        return self.text + text, [*[0] * len(self.text), *range(len(text))]


# ---- lists of steps ----

_KINDS: dict[str, tuple[Callable[..., Step], dict[str, Check], dict[str, Check]]] = {
    **{cls.kind: (cls, {}, {}) for cls in (NFC, NFD, NFKC, NFKD, Lowercase, StripAccents)},
    "strip": (Strip, {"left": is_bool, "right": is_bool}, {}),
    "replace": (Replace, {"pattern": is_string, "content": is_string}, {"is_regex": is_bool}),
    "prepend": (Prepend, {"text": is_string}, {}),
}
MAX_STEPS = 64


class Normalizer:
    """Steps in order; immutable."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self._keeps_ascii = all(step.keeps_ascii for step in self.steps)

    @classmethod
    def from_json(cls, value: Any) -> "Normalizer | None":
        """None, "NFC" or a list of steps; DataError says what is wrong."""
        if value is None:
            return None
        if value == "NFC":
            return cls([NFC()])
        if not isinstance(value, list) or not 0 < len(value) <= MAX_STEPS:
            raise DataError(f"normalizer must be null, 'NFC' or a list of steps, got {value!r:.60}")
        return cls([_step(item, i) for i, item in enumerate(value)])

    def to_json(self) -> str | list[dict[str, Any]]:
        """What `from_json` reads; "NFC" alone by its name."""
        return "NFC" if self.steps == (NFC(),) else [step.to_json() for step in self.steps]

    def changes(self, text: str | bytes) -> bool:
        """Whether it may change this text; cheap, for the sake of fast paths."""
        return not (self._keeps_ascii and text.isascii())

    def keeps(self, text: bytes) -> bool:
        """Whether it leaves this text, and so any part of it, as it is; False if that is costly."""
        if not self.changes(text):
            return True
        if len(self.steps) != 1 or not isinstance(self.steps[0], _UnicodeForm):
            return False
        decoded = text.decode("utf-8", "surrogateescape")
        return unicodedata.is_normalized(self.steps[0].form, decoded)

    def apply(self, text: str) -> str:
        """The normalized text."""
        for step in self.steps:
            text = step.apply(text)
        return text

    def apply_bytes(self, text: bytes) -> bytes:
        """UTF-8 of the normalized text."""
        if not self.changes(text):
            return text
        decoded = text.decode("utf-8", "surrogateescape")
        return self.apply(decoded).encode("utf-8", "surrogateescape")

    def apply_aligned(self, text: str) -> tuple[str, Positions]:
        """The normalized text, and for each of its characters the place in `text` it is from."""
        positions = list(range(len(text)))
        for step in self.steps:
            text, places = step.apply_aligned(text)
            positions = [positions[p] for p in places]
        return text, positions

    def cut(self, first: str, second: str, after_special: int) -> int:
        """Where a stream that is normalized later may be cut, at `len(first)` or before it.

        `first` and `second` are raw text with a safe piece border between them; `after_special` is
        the end of the last special token in `first`. When all is composed already and `second`
        begins with a character that composes with nothing before it, that border is right for the
        composed text too. Otherwise the last ASCII letter or digit before an ASCII blank is: every
        pattern has a border there, and neither side changes with the other. Failing that, and for
        steps that look at the whole text, the special token's end.
        """
        is_nfc = self.steps == (NFC(),)
        if is_nfc and second and _starts_afresh(second[0]) and _is_nfc(first + second):
            return len(first)
        if not all(step.keeps_words for step in self.steps):
            return after_special
        return last_word_end(first, after_special)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Normalizer) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Normalizer({self.to_json()})"


def _is_nfc(text: str) -> bool:
    return unicodedata.is_normalized("NFC", text)


def last_word_end(text: str, begin: int, *, before_space: bool = False) -> int:
    """End of the last ASCII word before a blank (a space, if so wanted), or else `begin`."""
    cut = begin
    for match in (_WORD_THEN_SPACE if before_space else _WORD_THEN_BLANK).finditer(text, begin):
        cut = match.end()
    return cut


def _step(value: Any, number: int) -> Step:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(
            f"normalizer[{number}]: kind={kind!r:.60} is not one of {', '.join(sorted(_KINDS))}"
        )
    make, required, extra = _KINDS[kind]
    fields = {k: v for k, v in value.items() if k != "kind"}
    try:
        check_fields(fields, {**required, **{k: c for k, c in extra.items() if k in fields}})
        return make(**fields)
    except DataError as err:
        raise DataError(f"normalizer[{number}] ({kind}): {err}") from None

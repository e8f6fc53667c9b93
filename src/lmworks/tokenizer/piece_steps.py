"""Pieces by several steps, as a Hugging Face pre-tokenizer has them (Falcon, DeepSeek-Coder).

Each step cuts the pieces that the one before left. One of them, `Bytes`, turns characters into
bytes; for those behind it a byte is the letter that GPT-2 spells it with, so that the second byte
of "ò", spelt "²", counts as a number there. Steps that remove what they cut at lose it for good.
All of it is Python and the package `regex`: about a hundred times slower than a known pattern.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.byte_letters import LETTERS
from lmworks.tokenizer.pretokenize import (
    WORD_MEMBERS,
    Deadline,
    byte_offsets,
    compile_expression,
    deadline_for,
    matches_of,
)
from lmworks.tokenizer.schema import Check, check_fields, is_bool, is_string

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BEHAVIORS: Final = (
    "isolated",
    "removed",
    "contiguous",
    "merged_with_previous",
    "merged_with_next",
)
MAX_STEPS: Final = 64
_MAX_KNOWN: Final = 1 << 16
_MAX_KNOWN_CHARS: Final = 32
_NUMBER: Final = r"\p{N}"
_FROM_LATIN1: Final = dict(enumerate(LETTERS))

Bounds = list[tuple[int, int]]
"""Begin and end of each piece, in characters."""


class Rule(NamedTuple):
    """Where a step cuts, and what becomes of the matches."""

    expression: str
    behavior: str
    """One of BEHAVIORS: a match is a piece of its own; is dropped; joins the matches beside it (and
    what is between matches is a piece); joins what is before it; joins what is behind it."""
    is_inverted: bool = False
    """What matches and what does not change places."""


class Step(ABC):
    """One way to cut pieces."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The step as JSON values."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


class Cut(Step):
    """A step that cuts by an expression."""

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """Where, and what becomes of the matches."""


@dataclass(frozen=True)
class Split(Cut):
    """Cuts at a regular expression."""

    pattern: str
    behavior: str = "isolated"
    invert: bool = False
    kind = "split"

    def __post_init__(self) -> None:
        _check_behavior(self.behavior)
        if not self.pattern:
            raise DataError("a step that splits has an empty pattern")
        try:
            compile_expression(self.pattern)
        except ConfigError as err:
            raise DataError(str(err)) from None

    @property
    def rule(self) -> Rule:
        return Rule(self.pattern, self.behavior, self.invert)


@dataclass(frozen=True)
class Digits(Cut):
    """Numbers, or each digit, are pieces."""

    individual: bool = False
    kind = "digits"

    @property
    def rule(self) -> Rule:
        return Rule(_NUMBER if self.individual else _NUMBER + "+", "isolated")


@dataclass(frozen=True)
class Punctuation(Cut):
    """Cuts at each punctuation mark and ASCII symbol, by an old version of Unicode."""

    behavior: str = "isolated"
    kind = "punctuation"

    def __post_init__(self) -> None:
        _check_behavior(self.behavior)

    @property
    def rule(self) -> Rule:
        from lmworks.tokenizer.unicode_tables import PUNCTUATION

        return Rule(f"[{PUNCTUATION}]", self.behavior)


@dataclass(frozen=True)
class Whitespace(Cut):
    """Words and runs of other characters; white space is dropped."""

    kind = "whitespace"

    @property
    def rule(self) -> Rule:
        return Rule(rf"[{WORD_MEMBERS}]+|[^{WORD_MEMBERS}\s]+", "removed", is_inverted=True)


@dataclass(frozen=True)
class WhitespaceSplit(Cut):
    """What is between white space, which is dropped."""

    kind = "whitespace_split"

    @property
    def rule(self) -> Rule:
        return Rule(r"\s", "removed")


@dataclass(frozen=True)
class Delimiter(Cut):
    """What is between one character, which is dropped."""

    delimiter: str
    kind = "delimiter"

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1:
            raise DataError(f"delimiter={self.delimiter!r:.40} must be one character")

    @property
    def rule(self) -> Rule:
        return Rule(re.escape(self.delimiter), "removed")


@dataclass(frozen=True)
class Bytes(Step):
    """Characters become bytes."""

    add_prefix_space: bool = False
    """Before that, each piece that does not begin with a space gets one in front."""
    use_regex: bool = False
    """Before that, pieces are cut by GPT-2's pattern."""
    kind = "bytes"


def _check_behavior(behavior: str) -> None:
    if behavior not in BEHAVIORS:
        raise DataError(f"behavior={behavior!r:.40} is not one of {', '.join(BEHAVIORS)}")


# ---- all steps ----


class Pieces(NamedTuple):
    """A text in pieces, as they are merged."""

    text: bytes
    """The pieces in a row: the text without what was removed, with the spaces put in."""
    ends: "NDArray[np.uint64]"
    """Where each ends."""
    places: "NDArray[np.int64] | None"
    """Where in the text each byte comes from, a space put in from the byte behind; None: itself."""


class PieceSteps:
    """Steps in order, exactly one of them `Bytes`; immutable."""

    def __init__(self, steps: Sequence[Step]) -> None:
        """Raises: DataError: there is not exactly one `Bytes`, or there are too many steps."""
        self.steps = tuple(steps)
        if len(self.steps) > MAX_STEPS:
            raise DataError(f"piece_steps: {len(self.steps)} steps; at most {MAX_STEPS} are read")
        places = [i for i, step in enumerate(self.steps) if isinstance(step, Bytes)]
        if len(places) != 1:
            raise DataError(f"piece_steps: {len(places)} steps are of kind 'bytes'; one must be")
        cuts = [step.rule if isinstance(step, Cut) else None for step in self.steps]
        self._bytes = self.steps[places[0]]
        self._before = [rule for rule in cuts[: places[0]] if rule is not None]
        self._behind = [rule for rule in cuts[places[0] + 1 :] if rule is not None]

    @classmethod
    def from_json(cls, value: Any) -> "PieceSteps":
        """Inverse of `to_json`; DataError says what is wrong."""
        if not isinstance(value, list):
            raise DataError(f"piece_steps must be a list of steps, got {value!r:.60}")
        return cls([_step(item, i) for i, item in enumerate(value)])

    def to_json(self) -> list[dict[str, Any]]:
        """The steps as JSON values."""
        return [step.to_json() for step in self.steps]

    def apply(self, text: bytes) -> Pieces:
        """The pieces of a text; bytes that are not UTF-8 count as one character each.

        Raises:
            DataError: an expression backtracks without end.
        """
        import numpy as np

        assert isinstance(self._bytes, Bytes), "the constructor checks that"
        decoded = text.decode("utf-8", "surrogateescape")
        deadline = deadline_for(text)
        bounds = _cut_all(decoded, [(0, len(decoded))], self._before, deadline)
        spans = np.array(bounds, np.int64).reshape(-1, 2)
        if len(decoded) != len(text):
            spans = byte_offsets(decoded).astype(np.int64)[spans]
        pieces = _to_bytes(text, spans, self._bytes)
        if not self._behind:
            return pieces
        letters = pieces.text.decode("latin-1").translate(_FROM_LATIN1)
        ends = pieces.ends.tolist()
        bounds = _cut_all(
            letters, list(zip([0, *ends], ends, strict=False)), self._behind, deadline
        )
        return _kept(pieces, np.array(bounds, np.int64).reshape(-1, 2))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PieceSteps) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"PieceSteps({self.to_json()})"


# ---- cutting ----


def _cut_all(text: str, bounds: Bounds, rules: Sequence[Rule], deadline: Deadline) -> Bounds:
    for rule in rules:
        cut: Bounds = []
        # Words repeat; a piece is cut alike wherever it stands.
        known: dict[str, Bounds] = {}
        for begin, end in bounds:
            part = text[begin:end]
            pieces = known.get(part)
            if pieces is None:
                pieces = _joined(_spans_of(part, rule, deadline), rule.behavior)
                if len(part) <= _MAX_KNOWN_CHARS and len(known) < _MAX_KNOWN:
                    known[part] = pieces
            for piece_begin, piece_end in pieces:
                if piece_begin < piece_end:
                    cut.append((begin + piece_begin, begin + piece_end))
        bounds = cut
    return [(begin, end) for begin, end in bounds if begin < end]


def _spans_of(part: str, rule: Rule, deadline: Deadline) -> list[tuple[int, int, bool]]:
    """Matches and what is between them: begin, end, and whether it counts as a match."""
    spans: list[tuple[int, int, bool]] = []
    last = 0
    for begin, end in matches_of(rule.expression, part, deadline):
        if begin > last:
            spans.append((last, begin, rule.is_inverted))
        spans.append((begin, end, not rule.is_inverted))
        last = end
    if last < len(part):
        spans.append((last, len(part), rule.is_inverted))
    return spans


def _joined(spans: list[tuple[int, int, bool]], behavior: str) -> Bounds:
    """The pieces that a behavior makes of the spans."""
    if behavior in ("isolated", "removed"):
        return [(a, b) for a, b, is_match in spans if behavior == "isolated" or not is_match]
    is_backwards = behavior == "merged_with_next"
    pieces: Bounds = []
    # The first span is taken for one behind something that does not match.
    was_match = False
    for begin, end, is_match in reversed(spans) if is_backwards else spans:
        joins = is_match == was_match if behavior == "contiguous" else is_match and not was_match
        was_match = is_match
        if not (joins and pieces):
            pieces.append((begin, end))
        elif is_backwards:
            pieces[-1] = (begin, pieces[-1][1])
        else:
            pieces[-1] = (pieces[-1][0], end)
    return pieces[::-1] if is_backwards else pieces


def _to_bytes(text: bytes, spans: "NDArray[np.int64]", step: Bytes) -> Pieces:
    """The step `Bytes` on the pieces at these places of the text."""
    import numpy as np

    begins, ends = spans[:, 0], spans[:, 1]
    parts = [text[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    prefixed = np.zeros(len(parts), bool)
    if step.add_prefix_space:
        prefixed = np.array([not part.startswith(b" ") for part in parts], bool)
        parts = [
            b" " + part if has_space else part
            for part, has_space in zip(parts, prefixed.tolist(), strict=True)
        ]
    places = _ranges(begins - prefixed, ends)
    starts = np.cumsum(ends - begins + prefixed) - (ends - begins + prefixed)
    places[starts[prefixed]] += 1
    if step.use_regex:
        known = {part: _text.split(part, "gpt2") for part in set(parts)}
        parts = [piece for part in parts for piece in known[part]]
    is_whole = len(places) == len(text) and not prefixed.any()
    sizes = np.fromiter(map(len, parts), np.uint64, len(parts))
    joined = text if is_whole else b"".join(parts)
    return Pieces(joined, np.cumsum(sizes, dtype=np.uint64), None if is_whole else places)


def _kept(pieces: Pieces, spans: "NDArray[np.int64]") -> Pieces:
    """The pieces at these places of a text in pieces."""
    import numpy as np

    sizes = spans[:, 1] - spans[:, 0]
    ends = np.cumsum(sizes).astype(np.uint64)
    if int(sizes.sum()) == len(pieces.text):
        return pieces._replace(ends=ends)
    kept = _ranges(spans[:, 0], spans[:, 1])
    text = np.frombuffer(pieces.text, np.uint8)[kept].tobytes()
    return Pieces(text, ends, kept if pieces.places is None else pieces.places[kept])


def _ranges(begins: "NDArray[np.int64]", ends: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """begins[0], ..., ends[0] - 1, begins[1], ..."""
    import numpy as np

    sizes = ends - begins
    firsts = np.cumsum(sizes) - sizes
    return np.repeat(begins - firsts, sizes) + np.arange(sizes.sum())


# ---- JSON ----

_KINDS: Final[dict[str, tuple[Callable[..., Step], dict[str, Check]]]] = {
    "split": (Split, {"pattern": is_string, "behavior": is_string, "invert": is_bool}),
    "digits": (Digits, {"individual": is_bool}),
    "punctuation": (Punctuation, {"behavior": is_string}),
    "whitespace": (Whitespace, {}),
    "whitespace_split": (WhitespaceSplit, {}),
    "delimiter": (Delimiter, {"delimiter": is_string}),
    "bytes": (Bytes, {"add_prefix_space": is_bool, "use_regex": is_bool}),
}


def _step(value: Any, number: int) -> Step:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(
            f"piece_steps[{number}]: kind={kind!r:.60} is not one of {', '.join(_KINDS)}"
        )
    make, fields = _KINDS[kind]
    arguments = {k: v for k, v in value.items() if k != "kind"}
    try:
        check_fields(arguments, fields)
        return make(**arguments)
    except DataError as err:
        raise DataError(f"piece_steps[{number}] ({kind}): {err}") from None

"""Pre-tokenization: text into the pieces inside which BPE merges.

A pattern is the name of a known one (or of a model that uses it) or any regular expression. The
known ones are cut by the native scanners of csrc/include/lmworks/pretokenize.h: on any input, UTF-8
or not, they give what `regex.findall(PATTERNS[name], text)` gives; a byte that is not UTF-8 counts
as one character that is neither letter, number, mark nor white space (Python's "surrogateescape").
Other expressions are matched with the `regex` package, about a hundred times slower.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.base import to_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PATTERNS: Final[dict[str, str]] = dict(_text.PATTERNS)
"""One regular expression for each known pattern; in most cases the published text itself.

`gpt2`: openai/gpt-2; `cl100k`, `o200k`: tiktoken; `llama3`, `qwen2`, `qwen35`, `tekken` (Mistral):
the models' tokenizer.json; `nanochat`: karpathy/nanochat. `smollm` and `deepseek3` equal the steps
of the models' tokenizer.json (see STEPS), `kimi2` equals the expression of tokenization_kimi.py.
cl100k and llama3 differ where a text ends in white space with a line end in it.
"""

ALIASES: Final[dict[str, str]] = {
    **dict.fromkeys(["r50k", "p50k", "gpt-neox", "olmo"], "gpt2"),
    **dict.fromkeys(["gpt4"], "cl100k"),
    **dict.fromkeys(["gpt4o", "gpt-oss", "llama4"], "o200k"),
    **dict.fromkeys(["olmo2", "olmo3", "glm4", "dbrx"], "llama3"),
    **dict.fromkeys(["qwen3", "stablelm2"], "qwen2"),
    **dict.fromkeys(["starcoder", "command-r"], "smollm"),
    **dict.fromkeys(["mistral-nemo", "nemotron3"], "tekken"),
}
"""Names of models and vocabularies -> the pattern that they use."""

_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"

STEPS: Final[dict[str, tuple[str, ...]]] = {
    "smollm": (r"\p{N}", PATTERNS["gpt2"]),
    "deepseek3": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
}
"""Expressions that a model applies one after another, each to the pieces that the one before left.

As in tokenizer.json, where they are Split steps ("Isolated") in a Sequence; `smollm` is there
Digits(individual_digits) and ByteLevel(use_regex).
"""


def _spelt_out(steps: tuple[str, ...]) -> tuple[str, ...]:
    """The expressions with line ends as escapes: tokenizer.json files have either."""
    return tuple(step.replace("\r", r"\r").replace("\n", r"\n") for step in steps)


_KIMI = "|".join(
    [
        r"[\p{Han}]+",
        f"{_LETTERS}[{_UPPER}&&[^\\p{{Han}}]]*[{_LOWER}&&[^\\p{{Han}}]]+{_SUFFIX}",
        f"{_LETTERS}[{_UPPER}&&[^\\p{{Han}}]]+[{_LOWER}&&[^\\p{{Han}}]]*{_SUFFIX}",
        rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}",
    ]
)
_WORDS = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"

# Other texts in circulation that cut as a known pattern does: tiktoken's, past and present, of
# gpt2 and cl100k (the older one, of rustbpe and minbpe, ends as llama3's); Ling's; Kimi's own.
_EQUAL: Final[dict[tuple[str, ...], str]] = {
    **{(expression,): name for name, expression in PATTERNS.items()},
    **{_spelt_out(steps): name for name, steps in STEPS.items()},
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",): "gpt2",
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",): "gpt2",
    (PATTERNS["cl100k"].replace("{1,3}+", "{1,3}"),): "cl100k",
    (rf"{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}",): "llama3",
    (rf"{_WORDS}|\p{{N}}|{_SYMBOLS}",): "qwen2",
    (_KIMI,): "kimi2",
}

# A pattern of these characters only.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")
# One character, an escape, or the beginning of a set, whose first ] is a member.
_PART_OF_EXPRESSION: Final = re.compile(r"\\[pPx]\{[^}]{0,99}\}|\\.|\[\^?\]?|.", re.DOTALL)
_COUNTED_AGAIN: Final = re.compile(r"\{(?=,?\d)(\d{0,9})(,?)(\d{0,9})\}\+")
# Behind it, `$` is the end of the text for every engine.
_ALL_BLANKS: Final = [r"\s", "+", "+"]
# The members of \w, also of Rust's.
WORD_MEMBERS: Final = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
# Oniguruma's in a set; outside of one it has more.
_ONIGURUMA_WORD: Final = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"
_MORE_OUTSIDE: Final = "²³¹¼½¾"
# A hundredth of the usual speed of `regex`; a pattern that is slower backtracks without end.
_MIN_BYTES_PER_S: Final = 50_000
_MIN_TIME_S: Final = 5.0


def known_pattern(*steps: str) -> str | None:
    """Name in PATTERNS of what these expressions do one after another, or None.

    They are read as tiktoken and `regex` read them. Oniguruma, Hugging Face's engine, reads a `+`
    after a counted repeat, `{1,3}+`, as another repeat: such an expression is not the same there.
    """
    return _EQUAL.get(_spelt_out(steps))


def is_name(pattern: str) -> bool:
    """Whether a pattern is taken for a name, known or misspelt."""
    return _NAME.fullmatch(pattern) is not None


def check_pattern(pattern: str) -> str:
    """The name of a known pattern, also for a model's name or an equal expression; else itself.

    Raises:
        ConfigError: neither a known name nor a regular expression; says what would be right.
    """
    name = ALIASES.get(pattern, pattern)
    if name in PATTERNS:
        return name
    known = known_pattern(pattern)
    if known is not None:
        return known
    if is_name(pattern):
        from lmworks.base.config import suggest

        raise ConfigError(
            f"unknown pre-tokenizer pattern {pattern!r}{suggest(pattern, [*PATTERNS, *ALIASES])}"
        )
    compile_expression(pattern)
    return pattern


def split(text: str | bytes, pattern: str | Sequence[str]) -> list[bytes]:
    """Pieces of the text in order; joined they are the text."""
    text = to_bytes(text)
    name = check_pattern(pattern) if isinstance(pattern, str) else known_pattern(*pattern)
    if name in PATTERNS:
        pieces: list[bytes] = _text.split(text, name)
        return pieces
    ends = piece_ends(text, pattern).tolist()
    return [text[begin:end] for begin, end in pairwise([0, *ends])]


# ---- any regular expression ----


@lru_cache(maxsize=64)
def compile_expression(expression: str) -> Any:
    """The expression, compiled by `regex`.

    `&&` and brackets inside of brackets have the meaning that they have in the tokenizers' engines
    (Rust's, Oniguruma): sets of sets, `regex`'s version 1.

    Raises:
        ConfigError: it is no regular expression, or `regex` is not installed.
    """
    try:
        import regex
    except ImportError:
        raise ConfigError(
            f"a pattern of one's own ({expression!r:.60}) needs the package regex: "
            "pip install 'lmworks[regex]'"
        ) from None
    shown = f"pattern {expression!r:.80} is no regular expression"
    try:
        flags = regex.VERSION1 if _has_nested_set(expression) else regex.VERSION0
        compiled = regex.compile(expression, flags)
    except regex.error as e:
        raise ConfigError(f"{shown}: {e}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{shown}: it is nested too deeply") from None
    except (ValueError, OverflowError, KeyError, IndexError, TypeError, AttributeError) as e:
        # What the compiler of `regex` lets through for some malformed expressions.
        raise ConfigError(f"{shown}: {type(e).__name__}: {e}") from None
    if compiled.flags & regex.REVERSE:
        raise ConfigError(f"pattern {expression!r:.80} searches backwards; leave out the flag r")
    return compiled


def _has_nested_set(expression: str) -> bool:
    """Whether a [...] holds `&&` or another [...] (a class like [:alpha:] is none)."""
    depth = 0
    last = ""
    for part in _PART_OF_EXPRESSION.findall(re.sub(r"\[:\^?\w+:\]", "a", expression)):
        if depth and (part[0] == "[" or last + part == "&&"):
            return True
        if part[0] == "[":
            depth = 1
        elif part == "]":
            depth = 0
        last = part
    return False


def from_oniguruma(expression: str) -> str:
    r"""The expression of a tokenizer.json, spelt so that `regex` and Rust read it as Oniguruma.

    There ^ and $ are the ends of a line, a + after a counted repeat repeats it, \w (and so \b) has
    other members, and \h is a hexadecimal digit.

    Raises:
        ConfigError: a repeat like {3}+ that has no plain spelling.
    """
    members = {"w": _ONIGURUMA_WORD, "h": "0-9A-Fa-f"}
    expression = _spell_words(expression, members, _MORE_OUTSIDE)
    found: list[str] = []
    depth = 0  # of sets within sets
    i = 0
    while i < len(expression):
        part = _PART_OF_EXPRESSION.match(expression, i)[0]  # type: ignore[index]
        again = None if depth else _COUNTED_AGAIN.match(expression, i)
        i += len(part)
        if again:
            i = again.end()
            part = _plain_repeat(again, expression)
        elif part[0] == "[":
            depth += 1
        elif depth:
            depth -= part == "]"
        elif part == "^":
            part = r"(?<![^\n])"
        elif part == "$" and found[-3:] != _ALL_BLANKS:
            part = r"(?![^\n])"
        found.append(part)
    return "".join(found)


def to_oniguruma(expression: str) -> str:
    """The expression, spelt so that Oniguruma reads it as `regex` does.

    Raises:
        ConfigError: there is no such spelling that we know of.
    """
    spelt = _spell_words(expression, {"w": WORD_MEMBERS})
    if from_oniguruma(spelt) != spelt:
        raise ConfigError(
            f"pattern {expression!r:.80}: ^, $, \\h and a + after a counted repeat have another "
            "meaning in Hugging Face's engine"
        )
    return spelt


def _spell_words(expression: str, members: Mapping[str, str], more_words: str = "") -> str:
    r"""The expression with \w, \W, \b, \B, \h and \H as sets of these members.

    Outside of sets, words have `more_words` as well.
    """
    found: list[str] = []
    depth = 0
    for part in _PART_OF_EXPRESSION.findall(expression):
        letter = part[1:].lower()
        kind = "w" if letter == "b" and not depth else letter
        depth += 1 if part[0] == "[" else -1 if depth and part == "]" else 0
        if part[0] != "\\" or kind not in members:
            found.append(part)
            continue
        those = members[kind] + (more_words if kind == "w" and not depth else "")
        inside, outside = f"[{those}]", f"[^{those}]"
        if letter == "b":
            is_border = f"(?<={inside})(?!{inside})|(?<!{inside})(?={inside})"
            is_none = f"(?<={inside})(?={inside})|(?<!{inside})(?!{inside})"
            found.append(f"(?:{is_border if part[1] == letter else is_none})")
        elif part[1] == letter:
            found.append(those if depth else inside)
        else:
            found.append(outside)
    return "".join(found)


def _plain_repeat(again: "re.Match[str]", expression: str) -> str:
    """{low,} for (x{low,high})+, which is the same unless it leaves out numbers in between."""
    low = int(again[1] or 0)
    high = int(again[3]) if again[3] else (2 * low if again[2] else low)
    if high < 2 * low - 1:
        raise ConfigError(
            f"pattern {expression!r:.80}: {again[0]} at character {again.start()} repeats a "
            "repeat; write it with (?:...)+ around"
        )
    return f"{{{low},}}"


def piece_ends(text: bytes, pattern: str | Sequence[str]) -> "NDArray[np.uint64]":
    """Byte offsets of the ends of all pieces, the last one the length of the text.

    What lies between matches is a piece, too, and an empty match is a border between two (Hugging
    Face's "Isolated"). Several expressions are applied one after another, each to the pieces that
    the one before left, which are for it the whole text.

    Raises:
        ConfigError: an expression is no regular expression.
        DataError: matching takes more than 5 s and 1 s per 50 kB: the expression backtracks.
    """
    import numpy as np

    expressions = [pattern] if isinstance(pattern, str) else list(pattern)
    decoded = text.decode("utf-8", "surrogateescape")
    deadline = deadline_for(text)
    ends = [len(decoded)] if decoded else []
    for step in expressions:
        expression = PATTERNS.get(ALIASES.get(step, step), step)
        parts = [decoded[a:b] for a, b in pairwise([0, *ends])] if len(ends) > 1 else [decoded]
        ends = list(_ends_in(parts, expression, deadline))
    found = np.array(ends, dtype=np.uint64)
    if len(decoded) == len(text):
        return found
    return byte_offsets(decoded)[found]


def _ends_in(parts: Iterable[str], expression: str, deadline: "Deadline") -> Iterable[int]:
    """Ends of the pieces of all parts, counted in characters from the start of the first."""
    begin = 0
    for part in parts:
        last = 0
        for start, end in matches_of(expression, part, deadline):
            if start > last:
                yield begin + start
                last = start
            if end > last:
                yield begin + end
                last = end
        begin += len(part)
        if last < len(part):
            yield begin


class Deadline(NamedTuple):
    """How long the matching of one text may take, and the text, for the message."""

    at_s: float  # of this process's CPU time
    text: bytes


def deadline_for(text: bytes) -> Deadline:
    """5 s and 1 s per 50 kB from now."""
    return Deadline(time.process_time() + _MIN_TIME_S + len(text) / _MIN_BYTES_PER_S, text)


def matches_of(expression: str, part: str, deadline: Deadline) -> Iterator[tuple[int, int]]:
    """Begin and end of each match in a part of a text.

    As Hugging Face's engine finds them: none is empty at the end of another, and the search goes on
    one character behind an empty one.

    Raises:
        DataError: the deadline has passed, or memory has run out.
    """
    compiled = compile_expression(expression)
    at, last = 0, -1
    try:
        while at <= len(part):
            left_s = deadline.at_s - time.process_time()
            if left_s <= 0:
                raise TimeoutError
            for match in compiled.finditer(part, at, timeout=left_s):
                start, end = match.span()
                if start < end or start != last:
                    yield start, end
                last = end
                if start == end:
                    at = end + 1
                    break
            else:
                return
    except TimeoutError:
        raise DataError(
            f"pattern {expression!r:.80} backtracks too long on a text of {len(deadline.text):,} "
            f"bytes ({deadline.text!r:.40}); it would be right without repeats inside of repeats"
        ) from None
    except (MemoryError, RecursionError):
        raise DataError(
            f"pattern {expression!r:.80} runs out of memory on a text of {len(deadline.text):,} "
            "bytes"
        ) from None


def byte_offsets(text: str) -> "NDArray[np.uint64]":
    """Offset in UTF-8 of each character of the text and of its end."""
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    sizes = 1 + (codes >= 0x80).astype(np.uint64) + (codes >= 0x800) + (codes >= 0x10000)
    sizes[(codes >= 0xDC80) & (codes < 0xDD00)] = 1  # stand for a byte that is not UTF-8
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes, dtype=np.uint64)])

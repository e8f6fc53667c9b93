"""The pre-tokenizer of a Hugging Face tokenizer.json of a byte-level model: read and written.

Steps that amount to one known pattern, or to one expression, become the tokenizer's `pattern`;
any others become its `piece_steps`.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer import piece_steps as kinds
from lmworks.tokenizer.huggingface_parts import (
    byte_level,
    flag_of,
    pattern_of,
    steps_of,
    types_of,
    written_expression,
)
from lmworks.tokenizer.piece_steps import PieceSteps, Step
from lmworks.tokenizer.pretokenize import PATTERNS, STEPS, check_pattern, is_name, known_pattern
from lmworks.tokenizer.schema import field, is_string

_BEHAVIORS: Final = {
    "Isolated": "isolated",
    "Removed": "removed",
    "Contiguous": "contiguous",
    "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next",
}
_BEHAVIOR_NAMES: Final = {behavior: name for name, behavior in _BEHAVIORS.items()}


class Cutting(NamedTuple):
    """How text is cut: arguments of BPETokenizer."""

    pattern: str
    add_prefix_space: bool = False
    piece_steps: PieceSteps | None = None


# ---- reading ----


def read_pre_tokenizer(value: Any) -> Cutting:
    """What a `pre_tokenizer` does; DataError when we cannot do exactly the same."""
    parts = steps_of(value, "pretokenizers")
    if sum(part["type"] == "ByteLevel" for part in parts) != 1:
        raise DataError(
            f"pre_tokenizer {types_of(parts)} is not supported; it must have ByteLevel, once"
        )
    steps = [step for part in parts for step in _read(part)]
    last = steps[-1]
    expressions = [_isolated_by(step) for step in steps[:-1]]
    if isinstance(last, kinds.Bytes) and None not in expressions:
        if last.use_regex:
            expressions.append(PATTERNS["gpt2"])
        if len(steps) == 1:
            return Cutting("gpt2" if last.use_regex else "none", last.add_prefix_space)
        pattern = _pattern(*filter(None, expressions))
        if pattern is not None and not last.add_prefix_space:
            return Cutting(pattern)
    return Cutting("none", piece_steps=PieceSteps(steps))


def _read(part: dict[str, Any]) -> list[Step]:
    kind = part["type"]
    if kind not in _READERS:
        raise DataError(
            f"pre_tokenizer {kind!r:.60} is not supported; known: {', '.join(_READERS)}"
        )
    return _READERS[kind](part)


def _read_split(part: dict[str, Any]) -> list[Step]:
    pattern, is_regex = pattern_of(part)
    if not pattern:
        raise DataError("pre_tokenizer: Split has an empty pattern")
    expression = pattern if is_regex else re.escape(pattern)
    return [kinds.Split(expression, _behavior_of(part), flag_of(part, "invert", False))]


def _read_delimiter(part: dict[str, Any]) -> list[Step]:
    return [kinds.Delimiter(field(part, "delimiter", is_string, part["type"]))]


def _read_byte_level(part: dict[str, Any]) -> list[Step]:
    add_prefix_space = flag_of(part, "add_prefix_space", True)
    return [kinds.Bytes(add_prefix_space, flag_of(part, "use_regex", True))]


_READERS: Final[dict[str, Callable[[dict[str, Any]], list[Step]]]] = {
    "ByteLevel": _read_byte_level,
    "Split": _read_split,
    "Digits": lambda part: [kinds.Digits(flag_of(part, "individual_digits", False))],
    "Punctuation": lambda part: [kinds.Punctuation(_behavior_of(part))],
    "Whitespace": lambda part: [kinds.Whitespace()],
    "WhitespaceSplit": lambda part: [kinds.WhitespaceSplit()],
    "CharDelimiterSplit": _read_delimiter,
    "BertPreTokenizer": lambda part: [kinds.WhitespaceSplit(), kinds.Punctuation()],
}


def _behavior_of(part: dict[str, Any]) -> str:
    default = "Isolated" if part["type"] == "Punctuation" else None
    name = part.get("behavior", default)
    if not isinstance(name, str) or name not in _BEHAVIORS:
        raise DataError(
            f"{part['type']}: behavior={name!r:.40} is not one of {', '.join(_BEHAVIORS)}"
        )
    return _BEHAVIORS[name]


def _isolated_by(step: Step) -> str | None:
    """The expression whose matches, and what is between them, are the step's pieces, if any."""
    if isinstance(step, kinds.Digits):
        return step.rule.expression
    if not isinstance(step, kinds.Split):
        return None
    # Nothing lies between the matches of a known pattern.
    keeps_matches = step.behavior == "removed" and step.invert and known_pattern(step.pattern)
    # Inverted or not makes no difference to isolated matches.
    return step.pattern if step.behavior == "isolated" or keeps_matches else None


def _pattern(*expressions: str) -> str | None:
    """The pattern that amounts to these expressions one after another, if any."""
    name = known_pattern(*expressions)
    # As a pattern, an expression without special characters would be taken for a name.
    if name is not None or len(expressions) > 1 or is_name(expressions[0]):
        return name
    try:
        return check_pattern(expressions[0])
    except ConfigError as err:
        raise DataError(str(err)) from None


# ---- writing ----


def write_pre_tokenizer(cutting: Cutting) -> dict[str, Any]:
    """Inverse of `read_pre_tokenizer`; known patterns in the published spelling."""
    pattern, add_prefix_space, piece_steps = cutting
    if piece_steps is not None:
        return {"type": "Sequence", "pretokenizers": list(map(_written, piece_steps.steps))}
    if pattern in ("gpt2", "none"):
        return byte_level(use_regex=pattern == "gpt2", add_prefix_space=add_prefix_space)
    if add_prefix_space:
        raise DataError(
            f"add_prefix_space with the pattern {pattern!r:.60} has no Hugging Face form"
        )
    if pattern == "smollm":
        parts = [_written(kinds.Digits(individual=True))]
    else:
        parts = [_split(expression) for expression in _written_expressions(pattern)]
    parts.append(byte_level(use_regex=pattern == "smollm"))
    return {"type": "Sequence", "pretokenizers": parts}


def _written(step: Step) -> dict[str, Any]:
    match step:
        case kinds.Split():
            written = _split(written_expression(step.pattern), step.behavior, invert=step.invert)
        case kinds.Digits():
            written = {"type": "Digits", "individual_digits": step.individual}
        case kinds.Punctuation():
            written = {"type": "Punctuation", "behavior": _BEHAVIOR_NAMES[step.behavior]}
        case kinds.Delimiter():
            written = {"type": "CharDelimiterSplit", "delimiter": step.delimiter}
        case kinds.Bytes():
            written = byte_level(use_regex=step.use_regex, add_prefix_space=step.add_prefix_space)
        case _:
            is_split = isinstance(step, kinds.WhitespaceSplit)
            written = {"type": "WhitespaceSplit" if is_split else "Whitespace"}
    return written


def _written_expressions(pattern: str) -> tuple[str, ...]:
    if pattern in STEPS:
        return STEPS[pattern]
    if pattern in PATTERNS:
        # Digits before anything else are never followed by a digit, possessive or not.
        return (PATTERNS[pattern].replace(r"\p{N}{1,3}+", r"\p{N}{1,3}"),)
    return (written_expression(pattern),)


def _split(expression: str, behavior: str = "isolated", *, invert: bool = False) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": _BEHAVIOR_NAMES[behavior],
        "invert": invert,
    }

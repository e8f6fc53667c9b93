"""Shape checks for tokenizer files: which fields, of which types, told with the place."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from lmworks import _text
from lmworks.base.errors import DataError


class Check(NamedTuple):
    """A test of a JSON value and the words for what it wants."""

    wanted: str
    is_right: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


is_string = Check("a string", lambda v: isinstance(v, str))
is_bool = Check("true or false", lambda v: isinstance(v, bool))
is_int = Check("a whole number", _is_int)
is_list_of_pairs = Check(
    "a list, each item a pair of token ids",
    # In whole passes: there are hundreds of thousands.
    lambda v: (
        isinstance(v, list)
        and set(map(type, v)) <= {list}
        and set(map(len, v)) <= {2}
        and set(map(type, chain.from_iterable(v))) <= {int}
    ),
)
is_id_map = Check(
    "an object of token ids", lambda v: isinstance(v, dict) and all(map(_is_int, v.values()))
)


def optional(check: Check) -> Check:
    """Null, or what `check` wants."""
    return Check(f"null or {check.wanted}", lambda v: v is None or check.is_right(v))


def _is_text_or_null(values: Any) -> bool:
    return isinstance(values, list) and set(map(type, values)) <= {str, type(None)}


is_list_of_texts = Check("a list, each item null or a string", _is_text_or_null)


def is_list_of(check: Check) -> Check:
    """A list of what `check` wants."""
    return Check(
        f"a list, each item {check.wanted}",
        lambda v: isinstance(v, list) and all(map(check.is_right, v)),
    )


def check_fields(value: Mapping[str, Any], fields: Mapping[str, Check]) -> None:
    """All of `fields` are in `value` and right, and nothing else is."""
    for key in value:
        if key not in fields:
            from lmworks.base.config import suggest

            raise DataError(f"no such key {key!r}{suggest(key, fields)}")
    for key, check in fields.items():
        if key not in value:
            raise DataError(f"{key!r} is missing")
        if not check.is_right(value[key]):
            raise DataError(f"{key!r} must be {check.wanted}, got {_short(value[key])}")


def field(value: Any, key: str, check: Check, where: str) -> Any:
    """`value[key]` when `value` is an object and the field is right."""
    if not isinstance(value, dict):
        raise DataError(f"{where} must be an object, got {_short(value)}")
    found = value.get(key)
    if not check.is_right(found):
        raise DataError(f"{where}.{key} must be {check.wanted}, got {_short(found)}")
    return found


def require_pattern(pattern: str) -> None:
    """`pattern` names a pre-tokenizer pattern."""
    if pattern not in _text.PATTERNS:
        from lmworks.base.config import suggest

        raise DataError(f"unknown pattern {pattern!r}{suggest(pattern, _text.PATTERNS)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

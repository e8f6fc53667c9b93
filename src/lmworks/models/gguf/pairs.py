"""Single key-value pairs, checked for type and range; CheckpointError names key and value."""

from collections.abc import Mapping
from typing import Final

from lmworks.base.errors import CheckpointError
from lmworks.tokenizer.gguf_metadata import Value

MAX_WHOLE: Final = 2**31 - 1


def whole(
    pairs: Mapping[str, Value], key: str, default: int | None = None, *, at_least: int = 0
) -> int:
    """A whole number; without `default` the key must be there."""
    value = _present(pairs, key, default, "a whole number")
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= MAX_WHOLE:
        raise CheckpointError(
            f"{key}={value!r:.60} is not a whole number from {at_least} to {MAX_WHOLE}"
        )
    return value


def number(pairs: Mapping[str, Value], key: str, default: float | None = None) -> float:
    """A finite number."""
    value = _present(pairs, key, default, "a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise CheckpointError(f"{key}={value!r:.60} is not a number")
    return float(value)


def flag(pairs: Mapping[str, Value], key: str, default: bool | None = None) -> bool:
    """True or false."""
    value = _present(pairs, key, default, "true or false")
    if not isinstance(value, bool):
        raise CheckpointError(f"{key}={value!r:.60} is neither true nor false")
    return value


def text(pairs: Mapping[str, Value], key: str, default: str | None = None) -> str:
    """Text."""
    value = _present(pairs, key, default, "text")
    if not isinstance(value, str):
        raise CheckpointError(f"{key}={value!r:.60} is not text")
    return value


def _present(pairs: Mapping[str, Value], key: str, default: Value | None, wanted: str) -> Value:
    value = pairs.get(key, default)
    if value is None:
        raise CheckpointError(f"{key} is missing; it must be {wanted}")
    return value

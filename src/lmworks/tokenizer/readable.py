"""Bytes as readable, unambiguous text: UTF-8 as it is, other bytes as `\\xNN`, a backslash doubled.

Used in our tokenizer files, where `" the"` should look like that and any bytes must survive.
"""

import re
from collections.abc import Sequence

from lmworks.base.errors import DataError

_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2})?")


def bytes_to_readable(data: bytes) -> str:
    """`b"a\\xff"` -> `a\\xff` (four characters for the byte that is not UTF-8)."""
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def readable_to_bytes(text: str) -> bytes:
    """Inverse of `bytes_to_readable`; DataError when `text` is not of that form."""
    if "\\" not in text:
        return _utf8(text)
    parts = []
    at = 0
    for match in _ESCAPE.finditer(text):
        parts.append(_utf8(text[at : match.start()]))
        escape = match.group(1)
        if escape is None:
            raise DataError(f"token {text!r}: a backslash must be doubled or begin \\xNN")
        parts.append(b"\\" if escape == "\\" else bytes([int(escape[1:], 16)]))
        at = match.end()
    parts.append(_utf8(text[at:]))
    return b"".join(parts)


def all_readable_to_bytes(texts: Sequence[str | None]) -> list[bytes | None]:
    """`readable_to_bytes` of each text that is not None."""
    try:
        return [
            None if t is None else readable_to_bytes(t) if "\\" in t else t.encode() for t in texts
        ]
    except UnicodeEncodeError:
        return [None if t is None else readable_to_bytes(t) for t in texts]


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"token {text!r} is not valid Unicode text; write bytes as \\xNN") from None

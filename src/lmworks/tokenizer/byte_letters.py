"""GPT-2's spelling of bytes as letters, in which byte-level vocabularies are written.

A printable byte is its own Latin-1 letter; the others take the letters from U+0100 on, in order, so
that a space is "Ġ" and a line end "Ċ".
"""

from typing import Final

from lmworks.base.errors import DataError


def _letters() -> list[str]:
    letters = []
    num_others = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + num_others))
            num_others += 1
    return letters


LETTERS: Final = _letters()
_TO_LATIN1: Final = {
    **dict.fromkeys(range(256), 0xFFFF),
    **{ord(letter): byte for byte, letter in enumerate(LETTERS)},
}
"""Letter -> byte as Latin-1, for str.translate; what spells no byte leaves Latin-1."""


def to_letters(token: bytes) -> str:
    """The letters of some bytes."""
    return "".join(LETTERS[byte] for byte in token)


def from_letters(text: str, where: str) -> bytes:
    """Inverse of `to_letters`; DataError, beginning with `where`, when a letter spells no byte."""
    try:
        return text.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError as err:
        raise DataError(
            f"{where}: {text!r:.60} holds {text[err.start]!r}, which spells no byte"
        ) from None

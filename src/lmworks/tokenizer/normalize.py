"""Unicode NFC, which some vocabularies (Qwen) apply to the text between special tokens.

Normalization form C composes a letter and the marks after it (Unicode Standard Annex #15). Bytes
that are not UTF-8 pass through unchanged.
"""

import re
import unicodedata

_HANGUL_VOWELS_AND_TAILS = range(0x1160, 0x1200)
_WORD_THEN_BLANK = re.compile(r"[0-9A-Za-z](?=[ \t\n])")


def nfc_bytes(text: bytes) -> bytes:
    """UTF-8 of the composed text."""
    decoded = text.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFC", decoded).encode("utf-8", "surrogateescape")


def nfc_cut(first: str, second: str, after_special: int) -> int:
    """Where a stream that is normalized later may be cut, at `len(first)` or before it.

    `first` and `second` are raw text with a safe piece border between them; `after_special` is the
    end of the last special token in `first`. When all is composed already and `second` begins with
    a character that composes with nothing before it, that border is right for the composed text
    too. Otherwise the last ASCII letter or digit before an ASCII blank is: every pattern has a
    border there, and neither side composes across it. Failing that, the special token's end.
    """
    if second and _starts_afresh(second[0]) and unicodedata.is_normalized("NFC", first + second):
        return len(first)
    cut = after_special
    for match in _WORD_THEN_BLANK.finditer(first, after_special):
        cut = match.end()
    return cut


def _starts_afresh(char: str) -> bool:
    return (
        unicodedata.combining(char) == 0
        and not unicodedata.category(char).startswith("M")
        and ord(char) not in _HANGUL_VOWELS_AND_TAILS
    )

"""Write src/lmworks/tokenizer/unicode_tables.py: where Hugging Face's Unicode is not Python's.

Its normalization, accents and punctuation follow older versions of Unicode than Python's
`unicodedata`, its lower case a newer one. The tables are asked of the `tokenizers` package; run
after an upgrade:
    python csrc/text/make_normalizer_tables.py
"""

import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import regex
from tokenizers import normalizers, pre_tokenizers

HEAD = '''"""Hugging Face's Unicode, where not Python's. By csrc/text/make_normalizer_tables.py.

Each table is a character class of the `re` module, without its brackets.
"""

from typing import Final

'''
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Combining classes 1 and 240, the lowest and the highest: every other mark sorts between them.
FIRST_MARK, LAST_MARK = "\u0334", "\u0345"


def inert() -> list[int]:
    """Characters with a decomposition, combining class or composition that its version lacks."""
    nfd, nfkd, nfc = (
        n.normalize_str for n in (normalizers.NFD(), normalizers.NFKD(), normalizers.NFC())
    )
    found = []
    for code_point in CODE_POINTS:
        char = chr(code_point)
        if regex.match(r"\p{NFKD_QC=N}", char) and nfkd(char) == char:
            found.append(code_point)
        elif regex.match(r"\P{ccc=0}", char) and char not in (FIRST_MARK, LAST_MARK):
            is_known = nfd(char + FIRST_MARK) != char + FIRST_MARK
            is_known = is_known or nfd(LAST_MARK + char) != LAST_MARK + char
            if not is_known and unicodedata.combining(char) != 1:
                found.append(code_point)
    # Second characters of compositions with class 0: old ones compose with what they came from.
    old = set()
    for code_point in CODE_POINTS:
        parts = unicodedata.normalize("NFD", chr(code_point))
        if len(parts) > 1 and nfc(parts) == unicodedata.normalize("NFC", parts) != parts:
            old.update(map(ord, parts[1:]))
    for code_point in CODE_POINTS:
        char = chr(code_point)
        is_jamo = 0x1161 <= code_point <= 0x11C2
        is_second = regex.match(r"\p{NFC_QC=M}", char) and regex.match(r"\p{ccc=0}", char)
        if is_second and code_point not in old and not is_jamo:
            found.append(code_point)
    return sorted(set(found))


def nonspacing() -> list[int]:
    """What StripAccents removes."""
    strip = normalizers.StripAccents().normalize_str
    return [c for c in CODE_POINTS if strip(chr(c)) == ""]


def punctuation() -> list[int]:
    """What Punctuation cuts at."""
    remove = pre_tokenizers.Punctuation("removed").pre_tokenize_str
    return [c for c in CODE_POINTS if not remove(chr(c))]


def lower() -> dict[int, str]:
    """Lower case that no Python before 3.15 may know."""
    lower = normalizers.Lowercase().normalize_str
    return {c: lower(chr(c)) for c in CODE_POINTS if lower(chr(c)) != chr(c).lower()}


def as_class(code_points: Iterable[int]) -> str:
    """Ranges as the inside of a character class."""
    ranges: list[list[int]] = []
    for c in code_points:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    escape: Callable[[int], str] = lambda c: f"\\u{c:04x}" if c < 0x10000 else f"\\U{c:08x}"  # noqa: E731
    return "".join(escape(a) if a == b else f"{escape(a)}-{escape(b)}" for a, b in ranges)


def literal(name: str, value: str, doc: str) -> str:
    """An assignment over as many lines as it takes, followed by its docstring."""
    pieces = regex.findall(r"(?:\\u.{4}|\\U.{8}|-)", value)
    lines = [""]
    for piece in pieces:
        if len(lines[-1]) + len(piece) > 88:
            lines.append("")
        lines[-1] += piece
    body = "\n".join(f'    r"{line}"' for line in lines)
    return f'{name}: Final = (\n{body}\n)\n"""{doc}"""\n\n'


def main() -> None:
    """Write the file."""
    text = HEAD
    text += literal("INERT", as_class(inert()), "Unchanged by normalization, and never moved.")
    text += literal("NONSPACING", as_class(nonspacing()), "Marks that StripAccents removes.")
    text += literal("PUNCTUATION", as_class(punctuation()), "What Punctuation cuts at.")
    table = ", ".join(f"0x{c:X}: {s!a}" for c, s in lower().items())
    text += (
        f'LOWER: Final = {{\n{table}}}\n"""Lower case of letters newer than Python\'s Unicode."""\n'
    )
    folder = Path(__file__).parents[2] / "src/lmworks/tokenizer"
    (folder / "unicode_tables.py").write_text(text)


if __name__ == "__main__":
    main()

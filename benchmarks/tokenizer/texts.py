"""What the encoding benchmarks encode: heads of two corpora, Chinese lines, hostile strings.

The corpora are UTF-8 text whose documents end with <|endoftext|>; a slice of one is a file of the
same form, so that every contender's process reads it by itself.
"""

import random
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

END = "<|endoftext|>"

HOSTILE_BYTES = 1_000_000
CHINESE_LINES_PER_DOCUMENT = 40

_HAN = re.compile("[\u4e00-\u9fff]")
_JAPANESE_OR_KOREAN = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_NO_TEXT = ("Cn", "Cs")


def documents(path: Path) -> list[str]:
    """The documents of a text file, without empty ones and without the separators."""
    return [doc for doc in path.read_text("utf-8").split(END) if doc]


def size_bytes(path: Path) -> int:
    """Bytes of the documents of a text file, separators left out."""
    data = path.read_bytes()
    return len(data) - data.count(END.encode()) * len(END)


def head(corpus: Path, size_bytes: int) -> list[str]:
    """Documents of the start of a corpus; the last one is cut so that all have about that size."""
    with corpus.open("rb") as file:
        text = file.read(size_bytes).decode("utf-8", "ignore")
    return [doc for doc in text.split(END) if doc]


def chinese(corpus: Path) -> list[str]:
    """The corpus's lines that are mostly Han characters and hold no kana and no hangul."""
    lines = [
        line
        for line in corpus.read_text("utf-8").replace(END, "\n").split("\n")
        if not line.isascii()
        and 2 * len(_HAN.findall(line)) > len(line)
        and not _JAPANESE_OR_KOREAN.search(line)
    ]
    step = CHINESE_LINES_PER_DOCUMENT
    return ["\n".join(lines[i : i + step]) for i in range(0, len(lines), step)]


def write_documents(path: Path, docs: Iterable[str]) -> Path:
    """The documents as one text file; `documents` reads them back."""
    path.write_bytes(END.join(docs).encode("utf-8"))
    return path


def assigned_code_points(limit: int) -> list[int]:
    """Code points below `limit` that Python's `unicodedata` (Unicode 14 in 3.11) knows as text.

    Regex engines of the peers know different versions of Unicode, so they disagree on others.
    """
    return [c for c in range(limit) if unicodedata.category(chr(c)) not in _NO_TEXT]


def hostile() -> dict[str, str]:
    """Strings of about a megabyte that are one or few pieces, or all different ones."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    base64 = letters + letters.upper() + "0123456789+/"
    code_points = [c for c in assigned_code_points(0x30000) if c >= 0x20]
    return {
        "a": "a" * HOSTILE_BYTES,
        "spaces": " " * HOSTILE_BYTES,
        "^": "^" * HOSTILE_BYTES,
        "random letters": "".join(rng.choices(letters, k=HOSTILE_BYTES)),
        "base64": "".join(rng.choices(base64, k=HOSTILE_BYTES)),
        "random code points": "".join(map(chr, rng.choices(code_points, k=HOSTILE_BYTES // 4))),
        "Chinese": "".join(map(chr, rng.choices(range(0x4E00, 0x9FA5), k=HOSTILE_BYTES // 3))),
    }

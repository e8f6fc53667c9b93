"""Pre-tokenization: text into the pieces inside which BPE merges.

The work is done by the native scanners of csrc/include/lmworks/pretokenize.h. On any input, UTF-8
or not, they give what `regex.findall(PATTERNS[name], text)` gives; a byte that is not UTF-8 counts
as one character that is neither letter, number, mark nor white space (Python's "surrogateescape").
"""

from typing import Final

from lmworks import _text
from lmworks.base.errors import ConfigError
from lmworks.tokenizer.base import to_bytes

PATTERNS: Final[dict[str, str]] = dict(_text.PATTERNS)
"""Published regular expression of each pattern.

`gpt2`: openai/gpt-2; `cl100k`, `o200k`: tiktoken; `llama3`, `qwen2`: the models' tokenizer.json.
`smollm`: one expression equal to the steps Digits(individual) and ByteLevel of its tokenizer.json.
cl100k and llama3 differ where a text ends in white space with a line end in it.
"""


def check_pattern(pattern: str) -> str:
    """The pattern's name, or a ConfigError that lists the known ones."""
    if pattern not in PATTERNS:
        from lmworks.base.config import suggest

        raise ConfigError(f"unknown pre-tokenizer pattern {pattern!r}{suggest(pattern, PATTERNS)}")
    return pattern


def split(text: str | bytes, pattern: str) -> list[bytes]:
    """Pieces of the text in order; joined they are the text."""
    pieces: list[bytes] = _text.split(to_bytes(text), check_pattern(pattern))
    return pieces

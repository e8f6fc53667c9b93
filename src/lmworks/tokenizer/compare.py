"""The four kinds of tokenizer on one text: trained on its first part, measured on the rest."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmworks.base.errors import DataError
from lmworks.tokenizer.base import END_OF_TEXT, Tokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.train import train_bpe_from_iterator
from lmworks.tokenizer.word import WordTokenizer

KINDS = ("byte", "char", "word", "bpe")
HELD_OUT_FRACTION = 0.1
MAX_BYTES = 20_000_000


@dataclass(frozen=True)
class Comparison:
    """How one tokenizer does on text that it was not trained on."""

    kind: str
    vocab_size: int
    bytes_per_token: float
    num_unknown: int
    unknown_ratio: float
    """Share of the tokens that are `<unk>`: text that cannot be decoded again."""
    encode_mb_per_s: float
    """Megabytes of text per CPU second, first pass."""


def compare(
    file: Path, *, vocab_size: int, pattern: str, max_bytes: int = MAX_BYTES
) -> Iterator[Comparison]:
    """Train each kind on the first 90 % of `file`, measure it on the last 10 %.

    Of a longer file only the first `max_bytes` are read: the word kind counts in Python.

    Raises:
        DataError: the file is missing, not UTF-8 or too short to be split.
    """
    text = read_text(file, max_bytes)
    border = int(len(text) * (1 - HELD_OUT_FRACTION))
    training, held_out = text[:border], text[border:]
    if not training or not held_out:
        raise DataError(f"{file}: {len(text)} characters; a comparison needs at least 10")
    for kind in KINDS:
        tokenizer = train_kind(kind, [training], vocab_size=vocab_size, pattern=pattern)
        yield measure(tokenizer, held_out)


def train_kind(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    pattern: str,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
) -> Tokenizer:
    """A tokenizer of `kind`, trained on `texts` in memory."""
    if kind == "byte":
        return ByteTokenizer(special_tokens)
    if kind == "char":
        return CharTokenizer.train(texts, vocab_size=vocab_size, special_tokens=special_tokens)
    if kind == "word":
        return WordTokenizer.train(
            texts, vocab_size=vocab_size, pattern=pattern, special_tokens=special_tokens
        )
    return train_bpe_from_iterator(
        texts, vocab_size, pattern=pattern, special_tokens=special_tokens
    )


def measure(tokenizer: Tokenizer, text: str) -> Comparison:
    """Encode `text` once and count."""
    tokenizer.encode_to_numpy("")  # imports numpy
    start_s = time.process_time()
    ids = tokenizer.encode_to_numpy(text, disallowed_special=())
    # A clock tick at least, so that a tiny text has a finite rate.
    spent_s = max(time.process_time() - start_s, 1e-6)
    size_bytes = len(text.encode("utf-8"))
    num_unknown = 0 if tokenizer.unk_id is None else int((ids == tokenizer.unk_id).sum())
    return Comparison(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        bytes_per_token=size_bytes / len(ids),
        num_unknown=num_unknown,
        unknown_ratio=num_unknown / len(ids),
        encode_mb_per_s=size_bytes / 1e6 / spent_s,
    )


def read_text(file: Path, max_bytes: int | None = None) -> str:
    """A UTF-8 file's text, or the whole characters in its first `max_bytes`.

    Raises:
        DataError: it is missing, empty or not UTF-8.
    """
    try:
        with file.open("rb") as source:
            data = source.read(-1 if max_bytes is None else max_bytes)
            is_cut = bool(source.read(1))
    except OSError as err:
        raise DataError(f"{file}: cannot be read ({err.strerror})") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as err:
        if is_cut and err.start > len(data) - 4:
            return data[: err.start].decode("utf-8")
        raise DataError(
            f"{file}: not UTF-8 at byte {err.start} (0x{data[err.start]:02X}); convert it first, "
            f"for example: iconv -f latin1 -t utf-8 {file.name}"
        ) from None
    if not text:
        raise DataError(f"{file}: an empty file; give one with text")
    return text

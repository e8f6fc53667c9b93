"""Training a byte-level BPE tokenizer from files or texts.

The work is native (csrc/text/bpe_train_*.cpp); train_reference.py is the same in readable Python.
Files are memory-mapped and read once, by all threads; the result does not depend on their number.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.base.machine import num_usable_cores
from lmworks.tokenizer.base import END_OF_TEXT, to_bytes
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.pretokenize import check_pattern
from lmworks.tokenizer.special import SpecialTokens

Merges = list[tuple[bytes, bytes]]
Progress = Callable[[str, int, int], None]
"""progress(phase, done, total): phase "count" in bytes, then "merge" in merges."""

MAX_THREADS = 1024  # each has a stack and counts of its own; far more exhaust the memory
BATCH_BYTES = 8 << 20  # of an iterable, handed to the threads together


def train_bpe(
    files: Sequence[Path],
    vocab_size: int,
    *,
    pattern: str = "gpt2",
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    num_threads: int | None = None,
    allow_invalid_utf8: bool = False,
    progress: Progress | None = None,
) -> BPETokenizer:
    """Train on text files. Special tokens split the text and are never merged across.

    The vocabulary is the 256 bytes, the merges and the special tokens, in this order. It is smaller
    than `vocab_size` when the corpus has no more pairs to merge: see the tokenizer's vocab_size.

    Args:
        files: text files, each at least one document; memory does not grow with their size.
        vocab_size: 256 + merges + special tokens.
        pattern: name of the pre-tokenizer pattern, see pretokenize.PATTERNS.
        special_tokens: of several that start at one place the longest counts.
        num_threads: default: the usable cores. The merges are the same for any number.
        allow_invalid_utf8: train on files that are not UTF-8 as bytes.
        progress: called a few times a second.

    Raises:
        ConfigError: vocab_size has no room for bytes and special tokens, or an unknown pattern.
        DataError: a file is missing, empty of text, or not UTF-8; a special token is too long or
            not valid Unicode.
    """
    if not files:
        raise ConfigError("no files to train a tokenizer on; give at least one text file")
    trainer, max_merges = _new_trainer(vocab_size, pattern, special_tokens, num_threads)
    total_bytes = sum(_file_bytes(path) for path in files)
    done_bytes = 0
    for path in files:
        _count_file(trainer, path, allow_invalid_utf8, _report(progress, done_bytes, total_bytes))
        done_bytes += _file_bytes(path)
    if trainer.num_pieces == 0:
        raise DataError(f"empty corpus: no text in {', '.join(map(str, files))}")
    return _finish(trainer, max_merges, pattern, special_tokens, progress)


def train_bpe_from_iterator(
    texts: Iterable[str | bytes],
    vocab_size: int,
    *,
    pattern: str = "gpt2",
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> BPETokenizer:
    """Like train_bpe, on texts that are documents of their own. Bytes need not be UTF-8."""
    trainer, max_merges = _new_trainer(vocab_size, pattern, special_tokens, num_threads)
    batch: list[bytes] = []
    batch_bytes = done_bytes = 0
    for text in texts:
        batch.append(to_bytes(text))
        batch_bytes += len(batch[-1])
        if batch_bytes >= BATCH_BYTES:
            trainer.count_texts(batch)
            done_bytes += batch_bytes
            if progress:
                progress("count", done_bytes, 0)
            batch, batch_bytes = [], 0
    trainer.count_texts(batch)
    if trainer.num_pieces == 0:
        raise DataError("empty corpus: the texts hold no character")
    return _finish(trainer, max_merges, pattern, special_tokens, progress)


def _new_trainer(
    vocab_size: int, pattern: str, special_tokens: Sequence[str], num_threads: int | None
) -> tuple[_text.BpeTrainer, int]:
    """A native trainer and the number of merges it may make."""
    specials = [to_bytes(token) for token in special_tokens]
    if b"" in specials:
        raise ConfigError("a special token is empty; each needs at least one character")
    if len(set(specials)) != len(specials):
        raise ConfigError(f"special tokens repeat: {list(special_tokens)}; each may occur once")
    SpecialTokens(dict.fromkeys(special_tokens, 0))  # refuses what the tokenizer would, but now
    smallest = 256 + len(specials)
    if vocab_size < smallest:
        raise ConfigError(
            f"vocab_size={vocab_size} has no room for 256 bytes and {len(specials)} special "
            f"tokens; use {smallest} or more"
        )
    if vocab_size >= _text.MAX_TOKENS:
        raise ConfigError(f"vocab_size={vocab_size}; fewer than {_text.MAX_TOKENS} are possible")
    if num_threads is not None and not 1 <= num_threads <= MAX_THREADS:
        raise ConfigError(f"num_threads={num_threads}; use 1 to {MAX_THREADS}")
    trainer = _text.BpeTrainer(check_pattern(pattern), specials, num_threads or num_usable_cores())
    return trainer, vocab_size - smallest


def _file_bytes(path: Path) -> int:
    try:
        if not path.is_file():
            raise DataError(f"{path} is no file; give text files to train a tokenizer on")
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _count_file(
    trainer: _text.BpeTrainer,
    path: Path,
    allow_invalid_utf8: bool,
    report: Callable[[int, int], None] | None,
) -> None:
    try:
        error_offset = trainer.count_file(os.fsencode(path), allow_invalid_utf8, report)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if error_offset is not None:
        raise DataError(
            f"{path} is not UTF-8: invalid byte at offset {error_offset:,}; convert it "
            "(iconv -f LATIN1 -t UTF-8), or train on the raw bytes with --allow-invalid-utf8 "
            "(allow_invalid_utf8=True)"
        )


def _report(
    progress: Progress | None, done_before: int, total: int
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, _: progress("count", done_before + done, total)


def _finish(
    trainer: _text.BpeTrainer,
    max_merges: int,
    pattern: str,
    special_tokens: Sequence[str],
    progress: Progress | None,
) -> BPETokenizer:
    report = partial(progress, "merge") if progress else None
    merges: Merges = trainer.train(max_merges, report)
    return BPETokenizer.from_merges(merges, pattern=pattern, special_tokens=special_tokens)

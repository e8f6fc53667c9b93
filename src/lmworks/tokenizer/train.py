"""Training a byte-level BPE tokenizer from files, URLs or texts.

The work is native (csrc/text/bpe_train_*.cpp); train_reference.py is the same in readable Python.
Here is what a caller sees. What shall be made and whether that can be is in train_settings.py, how
the corpus is read in corpus.py, how a count survives a kill in count_state.py.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Unpack

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError, StorageError
from lmworks.base.sources import Form, Source, find_sources
from lmworks.tokenizer.base import to_bytes
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.corpus import Corpus, OnFault, TextFeed
from lmworks.tokenizer.count_state import CountState, open_state
from lmworks.tokenizer.train_settings import Progress, TrainOptions, TrainSettings

SAVE_EVERY_S = 60.0

_SHOWN_INPUTS = 4


def train_bpe(
    inputs: str | Path | Sequence[str | Path],
    vocab_size: int,
    *,
    text_field: str = "text",
    input_form: Form | None = None,
    allow_invalid_utf8: bool = False,
    on_fault: OnFault | None = None,
    resume_dir: str | Path | None = None,
    save_every_s: float = SAVE_EVERY_S,
    progress: Progress | None = None,
    **options: Unpack[TrainOptions],
) -> BPETokenizer:
    """Train on files, directories, globs, URLs or standard input (`-`); see base/sources.py.

    Special and protected tokens split the text, are not learnt and are never merged across. The
    vocabulary is smaller than `vocab_size` when the corpus has no more pairs to merge: see the
    tokenizer's vocab_size.

    Args:
        inputs: text, or JSON lines with a document each, also as .gz and .zst. Memory grows with
            the number of different pieces, not with the size.
        vocab_size: of all tokens: bytes, merges, special and protected tokens, seeds.
        text_field: of JSON lines; the column of Parquet files.
        input_form: "text", "jsonl" or "parquet"; default: by suffix, and text for standard input.
        allow_invalid_utf8: train on text that is not UTF-8 as bytes.
        on_fault: called with what is wrong with a file, which is then left out (see corpus.py);
            default: the first is raised.
        resume_dir: keeps the counts, so that a killed training goes on where it was and a finished
            count serves other vocabulary sizes.
        save_every_s: seconds between saves to `resume_dir`.
        progress: called a few times a second.
        options: what to make of it (pattern, special tokens, mode, limits): train_settings.py.

    Raises:
        ConfigError: a setting cannot be, or does not fit the counts in `resume_dir`.
        DataError: an input is missing, bad or has changed while it was read, or there is no text.
        StorageError: counts cannot be written.
    """
    settings = TrainSettings(vocab_size=vocab_size, **options)
    sources = _sources(inputs, input_form, on_fault)
    faults: list[DataError] = []

    def note(err: DataError) -> None:
        faults.append(err)
        assert on_fault is not None, "only then faults are taken"
        on_fault(err)

    with ExitStack() as stack:
        state: CountState | None = None
        if resume_dir is not None:
            counted = {
                **settings.counted(),
                "text_field": text_field,
                "allow_invalid_utf8": allow_invalid_utf8,
            }
            state = stack.enter_context(
                open_state(Path(resume_dir), counted, sources, save_every_s=save_every_s)
            )
        trainer = stack.enter_context(_trainer(settings))
        if state is not None:
            state.load(trainer)
            for message in state.faults:
                note(DataError(message))
        Corpus(
            trainer,
            settings,
            sources,
            text_field=text_field,
            allow_invalid_utf8=allow_invalid_utf8,
            on_fault=note if on_fault else None,
            state=state,
            progress=progress,
        ).count()
        if trainer.num_pieces == 0:
            raise _empty(sources, faults)
        return settings.train(trainer, progress)


def train_bpe_from_iterator(
    texts: Iterable[str | bytes],
    vocab_size: int,
    *,
    progress: Progress | None = None,
    **options: Unpack[TrainOptions],
) -> BPETokenizer:
    """Like train_bpe, on texts that are documents of their own. Bytes need not be UTF-8."""
    settings = TrainSettings(vocab_size=vocab_size, **options)
    if isinstance(texts, str | bytes):
        raise ConfigError("the texts are one text, not an iterable of texts; pass [text]")
    with _trainer(settings) as trainer:
        feed = TextFeed(trainer, settings)
        done_bytes = 0
        for number, text in enumerate(texts):
            if not isinstance(text, str | bytes):
                raise DataError(
                    f"text {number} is {type(text).__name__}; each must be str or bytes"
                )
            data = to_bytes(text)
            feed.add(data)
            done_bytes += len(data)
            if progress and feed.is_empty:
                progress("count", done_bytes, 0)
        feed.flush()
        if trainer.num_pieces == 0:
            raise DataError("empty corpus: the texts hold no character")
        return settings.train(trainer, progress)


def _sources(
    inputs: str | Path | Sequence[str | Path], form: Form | None, on_fault: OnFault | None
) -> list[Source]:
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if not given:
        raise ConfigError("no files to train a tokenizer on; give at least one text file")
    sources, faults = find_sources(given, form=form)
    for fault in faults:
        if on_fault is None:
            raise fault
        on_fault(fault)
    if not sources:
        raise faults[0]
    return sources


@contextmanager
def _trainer(settings: TrainSettings) -> Iterator[_text.BpeTrainer]:
    """A native trainer; what it writes to the disk is gone afterwards."""
    parent = os.fspath(settings.spill_dir or tempfile.gettempdir())
    with ExitStack() as stack:
        folder = None
        try:
            if settings.max_memory is not None:
                temporary = tempfile.TemporaryDirectory(prefix="lmworks-counts-", dir=parent)
                folder = Path(stack.enter_context(temporary))
        except OSError as err:
            raise StorageError(f"could not write to {parent}: {err.strerror}") from None
        try:
            yield settings.new_trainer(folder)
        except MemoryError as err:
            if settings.max_memory is None:
                raise ConfigError(
                    "out of memory: the counts do not fit; with max_memory they go to the disk"
                ) from None
            raise ConfigError(f"max_memory={settings.max_memory!r} is too small: {err}") from None
        except OSError as err:
            if folder is not None and err.filename == os.fsencode(folder):
                raise StorageError(f"could not write to {parent}: {err.strerror}") from None
            raise


def _empty(sources: Sequence[Source], faults: Sequence[DataError]) -> DataError:
    names = ", ".join(source.name for source in sources[:_SHOWN_INPUTS])
    more = f" and {len(sources) - _SHOWN_INPUTS:,} more" if len(sources) > _SHOWN_INPUTS else ""
    reason = f"; {faults[0]}" if faults else ""
    return DataError(f"empty corpus: no text in {names}{more}{reason}")

"""Reading a training corpus into the native trainer's counts of pieces.

Plain local files are counted by native threads (BpeTrainer.count_file). Everything else is a stream
in constant memory: JSON lines and rows of Parquet give a document each; other text is cut at places
where no pattern sees a difference, or, for a regular expression that is not known, behind special
tokens.

A file with a fault is left out and the rest is read if the caller takes the fault. Nothing of a
plain file that is not UTF-8 is counted, for it is checked first; a damaged stream counts up to its
damage; a bad JSON line is left out alone. The fault says which it was.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO

from lmworks import _text
from lmworks.base.documents import encoding_hint, json_line_text, read_blocks, split_lines
from lmworks.base.errors import DataError
from lmworks.base.parquet import ParquetTexts
from lmworks.base.sources import Source
from lmworks.tokenizer.count_state import CountState, Position
from lmworks.tokenizer.train_settings import Progress, TrainSettings

OnFault = Callable[[DataError], None]

BATCH_BYTES = 8 << 20  # handed to the threads together
BATCH_TEXTS = 1 << 16
READ_BYTES = 1 << 20
MAX_UNCUT_BYTES = 1 << 30
"""Of text without a place to cut; more would fill the memory."""
RESUMABLE_BYTES = 1 << 30
"""A plain file of more is read as a stream when its count shall be resumable within it."""
GIVE_UP_LINES = 1000
"""JSON lines that are all bad before the whole file is taken for something else."""
_REPORT_EVERY_S = 0.1
_CUT_REACH_BYTES = 1 << 16


class Corpus:
    """Counts sources into a trainer, in their order."""

    def __init__(
        self,
        trainer: _text.BpeTrainer,
        settings: TrainSettings,
        sources: Sequence[Source],
        *,
        text_field: str = "text",
        allow_invalid_utf8: bool = False,
        on_fault: OnFault | None = None,
        state: CountState | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._trainer = trainer
        self._cutter = Cutter(settings)
        self._feed = TextFeed(trainer, settings)
        self._sources = sources
        self._text_field = text_field
        self._allow_invalid_utf8 = allow_invalid_utf8
        self._on_fault = on_fault
        self._state = state
        self._progress = progress
        self._can_count_files = settings.has_native_pattern and not settings.normalizes
        sizes = [source.size_bytes for source in sources]
        self._total_bytes = 0 if None in sizes else sum(filter(None, sizes))
        self._done_bytes = 0
        self._reported_s = 0.0
        self._position = state.saved if state else Position()

    def count(self) -> None:
        """Read everything that has not been counted yet.

        Raises:
            DataError: a file is bad and there is no `on_fault`.
        """
        for index, source in enumerate(self._sources):
            if index >= self._position.source:
                self._count_or_note(source)
                read_bytes = self._position.offset
                self._position = Position(index + 1)
                self._save_if_due()
                if source.size_bytes is None:
                    self._done_bytes += read_bytes
            self._done_bytes += source.size_bytes or 0
            self._report(0, force=True)
        self._feed.flush()
        if self._state and self._position != self._state.saved:
            self._state.save(self._trainer, self._position)

    def _count_or_note(self, source: Source) -> None:
        try:
            self._count_source(source)
        except DataError as err:
            self._note(err)
            return
        try:
            source.check_unchanged()
        except DataError as err:
            self._note(DataError(f"{err}; it is counted as it was read") if self._on_fault else err)

    def _note(self, fault: DataError) -> None:
        if self._on_fault is None:
            raise fault
        self._on_fault(fault)
        if self._state:
            self._state.faults.append(str(fault))

    def _count_source(self, source: Source) -> None:
        if not (source.is_plain_file and self._can_count_files):
            self._count_stream(source)
            return
        if self._on_fault and not self._allow_invalid_utf8:
            self._check_utf8(source)
        if self._state and (source.size_bytes or 0) > RESUMABLE_BYTES:
            self._count_stream(source)
        else:
            self._count_plain_file(source)

    def _count_plain_file(self, source: Source) -> None:
        assert source.path is not None, "a plain file is local"
        try:
            error_offset = self._trainer.count_file(
                os.fsencode(source.path),
                self._allow_invalid_utf8,
                (lambda done, _: self._report(done)) if self._progress else None,
            )
        except OSError as err:
            if err.filename != os.fsencode(source.path):
                raise  # of the folder for counts
            if err.errno == errno.ESTALE:
                source.check_unchanged()
            if err.errno == errno.EFBIG:
                raise self._cutter.no_place(source.name) from None
            raise DataError(f"{source.name}: cannot be read ({err.strerror})") from None
        if error_offset is not None:
            raise _not_utf8(source, error_offset)

    def _check_utf8(self, source: Source) -> None:
        """Before anything of it is counted: what threads have counted cannot be taken back."""
        held, offset = b"", 0
        with source.open() as raw:
            for block in read_blocks(source.name, raw, "", READ_BYTES):
                text = held + block
                valid = _text.utf8_error_offset(text)
                # The last character may go on in the next block; it has at most 4 bytes.
                if len(text) - valid >= 4:
                    raise _not_utf8(source, offset + valid, text)
                held, offset = text[valid:], offset + valid
        if held:
            raise _not_utf8(source, offset, held)

    def _count_stream(self, source: Source) -> None:
        with source.open() as raw:
            start = self._position
            if source.form == "parquet":
                self._count_rows(source, raw)
                return
            is_seekable = source.path is not None and not source.compression
            if start.offset and is_seekable:
                raw.seek(start.offset)
            blocks = read_blocks(
                source.name,
                raw,
                source.compression,
                READ_BYTES,
                is_remote=source.remote is not None,
            )
            rest = blocks if is_seekable else _skip(blocks, start.offset)
            if source.form == "jsonl":
                self._count_json_lines(source, raw, rest)
            else:
                self._count_text(source, raw, rest)

    def _count_text(self, source: Source, raw: IO[bytes], blocks: Iterable[bytes]) -> None:
        offset = self._position.offset
        try:
            for chunk in self._cutter.chunks(source.name, blocks):
                if not self._allow_invalid_utf8:
                    valid = _text.utf8_error_offset(chunk)
                    if valid != len(chunk):
                        raise _not_utf8(source, offset + valid, chunk)
                self._feed.add(chunk)
                offset += len(chunk)
                self._after(source, raw, replace(self._position, offset=offset))
        except DataError as err:
            raise self._with_use(err, f"{offset:,} bytes before that are used", offset) from None

    def _count_json_lines(self, source: Source, raw: IO[bytes], blocks: Iterable[bytes]) -> None:
        number, offset = self._position.line, self._position.offset
        bad = _BadLines(self._position, may_go_on=self._on_fault is not None)
        try:
            for line in split_lines(source.name, blocks):
                number += 1
                try:
                    text = json_line_text(
                        line, self._text_field, name=source.name, number=number, offset=offset
                    )
                except DataError as err:
                    bad.add(err)
                else:
                    bad.num_good += 1
                    if text:
                        self._feed.add(text.encode("utf-8"))
                offset += len(line)
                self._after(source, raw, bad.position(offset, number))
        except DataError as err:
            raise DataError(bad.why_it_ends(err)) from None
        if bad.num_bad:
            raise DataError(bad.summary())

    def _count_rows(self, source: Source, raw: IO[bytes]) -> None:
        number = self._position.line
        try:
            is_remote = source.remote is not None
            rows = ParquetTexts(
                source.name, raw, self._text_field, begin=number, is_remote=is_remote
            )
            for number, text in rows:
                if text:
                    self._feed.add(text.encode("utf-8"))
                self._position = replace(self._position, line=number)
                self._save_if_due()
                if self._progress and self._feed.is_empty:
                    self._report(number * (source.size_bytes or 0) // rows.num_rows)
        except DataError as err:
            raise self._with_use(err, f"{number:,} rows before that are used", number) from None

    def _after(self, source: Source, raw: IO[bytes], position: Position) -> None:
        """One more chunk or line of a stream has been handed on."""
        self._position = position
        self._save_if_due()
        if self._progress and self._feed.is_empty:
            self._report(raw.tell() if source.size_bytes is not None else position.offset)

    def _with_use(self, err: DataError, use: str, offset: int) -> DataError:
        """The fault of a file of which the beginning counts, when that is of interest."""
        return DataError(f"{err}; {use}") if offset and self._on_fault else err

    def _save_if_due(self) -> None:
        if self._state and self._state.is_due():
            self._feed.flush()
            self._state.save(self._trainer, self._position)

    def _report(self, done_in_source: int, *, force: bool = False) -> None:
        if self._progress is None:
            return
        now_s = time.monotonic()
        if force or now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            self._progress("count", self._done_bytes + done_in_source, self._total_bytes)


class TextFeed:
    """Hands texts to the trainer in batches that are large enough for all its threads."""

    def __init__(self, trainer: _text.BpeTrainer, settings: TrainSettings) -> None:
        self._trainer = trainer
        self._settings = settings
        self._is_direct = settings.has_native_pattern and not settings.normalizes
        self._specials = special_matcher(settings.splitting_tokens)
        self._batch: list[bytes] = []
        self._batch_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Everything added has been counted."""
        return not self._batch

    def add(self, text: bytes) -> None:
        """Count a document, or a part of one that may be counted apart."""
        if self._is_direct:
            self._append(text)
            return
        for part in self._specials.split(text) if self._specials else [text]:
            normal = self._settings.normalize(part)
            if self._settings.has_native_pattern:
                self._append(normal)
            elif normal:
                from lmworks.tokenizer.pretokenize import piece_ends

                self._trainer.count_pieces(normal, piece_ends(normal, self._settings.known_pattern))

    def flush(self) -> None:
        """Count what has been added."""
        if self._batch:
            self._trainer.count_texts(self._batch)
            self._batch, self._batch_bytes = [], 0

    def _append(self, text: bytes) -> None:
        self._batch.append(text)
        self._batch_bytes += len(text)
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_TEXTS:
            self.flush()


class Cutter:
    """Cuts a stream of text into chunks that give the same pieces as the whole."""

    def __init__(self, settings: TrainSettings) -> None:
        self._specials = [token for token in settings.splitting_tokens if len(token) > 1]
        self._matcher = special_matcher(settings.splitting_tokens)
        self._reach = max(map(len, settings.splitting_tokens), default=1)
        self._can_cut_text = settings.can_cut_text

    def chunks(self, name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Chunks of about READ_BYTES; DataError if there is no place to cut for very long."""
        held: list[bytes] = []
        held_bytes = tried_bytes = 0
        wanted_bytes = READ_BYTES
        for block in blocks:
            held.append(block)
            held_bytes += len(block)
            if held_bytes < wanted_bytes:
                continue
            text = b"".join(held)
            if cut := self._find(text, tried_bytes):
                yield text[:cut]
                held, held_bytes = [text[cut:]], len(text) - cut
                wanted_bytes, tried_bytes = max(READ_BYTES, held_bytes + 1), 0
                continue
            if held_bytes > MAX_UNCUT_BYTES:
                raise self.no_place(name)
            # Twice as much before the next look, so that looking stays linear.
            held, wanted_bytes = [text], 2 * held_bytes
            tried_bytes = max(0, held_bytes - self._reach)
        if text := b"".join(held):
            yield text

    def _find(self, text: bytes, tried_bytes: int) -> int:
        """A place behind `tried_bytes`, near the end if possible; 0 for none."""
        if not self._can_cut_text:
            return self._find_special(text)
        near_end = len(text) - _CUT_REACH_BYTES
        if near_end > tried_bytes and (cut := self._find_safe(text, near_end)):
            return cut
        return self._find_safe(text, max(1, tried_bytes))

    def _find_safe(self, text: bytes, start: int) -> int:
        cut = _text.safe_cut(text, start)
        while cut + self._reach <= len(text):
            if not self._straddles(text, cut):
                return cut
            cut = _text.safe_cut(text, cut + 1)
        return 0

    def _straddles(self, text: bytes, cut: int) -> bool:
        """Whether a special token begins before `cut` and ends after it."""
        for token in self._specials:
            first = text.find(token, max(0, cut - len(token) + 1), cut + len(token) - 1)
            if first >= 0:
                return True
        return False

    def _find_special(self, text: bytes) -> int:
        """Behind the last special token that no longer one can begin with."""
        cut = 0
        for match in self._matcher.finditer(text) if self._matcher else ():
            if match.end() + self._reach > len(text):
                break
            cut = match.end()
        return cut

    def no_place(self, name: str) -> DataError:
        """The error for a text that would have to be in memory as a whole."""
        what = f"{name}: no place to cut in more than {MAX_UNCUT_BYTES:,} bytes"
        if self._can_cut_text:
            return DataError(f"{what}: no line break and no blank between letters; is it text?")
        return DataError(
            f"{what}: a pattern of your own, or a normalizer, may look at the whole text, which is "
            "cut at special tokens only; put one between documents, or give them as JSON lines"
        )


def special_matcher(tokens: Sequence[bytes]) -> re.Pattern[bytes] | None:
    """Finds the tokens from left to right, at each place the longest; None if there are none."""
    by_length = sorted(tokens, key=len, reverse=True)
    return re.compile(b"|".join(map(re.escape, by_length))) if by_length else None


def read_texts(
    sources: Sequence[Source], *, text_field: str, on_fault: OnFault | None
) -> Iterator[str]:
    """The documents as text, each file of plain text whole: for kinds that learn in Python."""
    for source in sources:
        try:
            with source.open() as raw:
                is_remote = source.remote is not None
                if source.form == "parquet":
                    rows = ParquetTexts(source.name, raw, text_field, is_remote=is_remote)
                    yield from (text for _, text in rows if text)
                    continue
                blocks = read_blocks(source.name, raw, source.compression, is_remote=is_remote)
                if source.form == "jsonl":
                    yield from _json_texts(source.name, blocks, text_field)
                else:
                    data = b"".join(blocks)
                    valid = _text.utf8_error_offset(data)
                    if valid != len(data):
                        raise _not_utf8(source, valid, data)
                    yield data.decode("utf-8")
        except DataError as err:
            if on_fault is None:
                raise
            on_fault(err)


def _json_texts(name: str, blocks: Iterable[bytes], text_field: str) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(split_lines(name, blocks), start=1):
        text = json_line_text(line, text_field, name=name, number=number, offset=offset)
        offset += len(line)
        if text:
            yield text


class _BadLines:
    """Lines of one JSON file that are left out."""

    def __init__(self, start: Position, *, may_go_on: bool) -> None:
        self._start = start
        self._may_go_on = may_go_on
        self._first = DataError(start.first_bad) if start.num_bad else None
        self.num_good, self.num_bad = start.num_good, start.num_bad

    def position(self, offset: int, line: int) -> Position:
        """The place in the file, with what there is to remember of the lines before."""
        first_bad = str(self._first) if self._first else ""
        return Position(self._start.source, offset, line, self.num_good, self.num_bad, first_bad)

    def add(self, err: DataError) -> None:
        """Take note of one more, or raise the first if there is no point in going on."""
        self._first = self._first or err
        self.num_bad += 1
        if not self._may_go_on or self._is_hopeless():
            raise self._first

    def summary(self) -> str:
        """The first of them, how many there are, and what is used nevertheless."""
        others = f" and {self.num_bad - 1:,} more bad lines are" if self.num_bad > 1 else " line is"
        return f"{self._first}; this{others} left out, {self.num_good:,} lines are used"

    def why_it_ends(self, err: DataError) -> str:
        """The message for a file that is not read further because of `err`."""
        if not self._may_go_on:
            return str(err)
        if err is self._first and self._is_hopeless():
            return f"{err}; the first {self.num_bad:,} lines are all bad: the file is left out"
        bad = f"; {self.summary()}" if self.num_bad else ""
        return f"{err}; {self.num_good:,} lines before that are used{bad}"

    def _is_hopeless(self) -> bool:
        return self.num_bad >= GIVE_UP_LINES and not self.num_good


def _skip(blocks: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    """The blocks without their first bytes."""
    for block in blocks:
        if num_bytes < len(block):
            yield block[num_bytes:]
        num_bytes = max(0, num_bytes - len(block))


def _not_utf8(source: Source, offset: int, text: bytes = b"") -> DataError:
    if not text and source.path is not None and offset == 0:
        with source.path.open("rb") as raw:
            text = raw.read(2)
    return DataError(
        f"{source.name} is not UTF-8: invalid byte at offset {offset:,}; convert it "
        f"(iconv -f {encoding_hint(text, offset)} -t UTF-8), or train on the raw bytes with "
        "--allow-invalid-utf8 (allow_invalid_utf8=True)"
    )

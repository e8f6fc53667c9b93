"""Documents out of text files, one at a time, in constant memory but for one document.

    reader = DocumentReader([Path("books"), Path("web.jsonl.zst")], text_field="text")
    for document in reader: ...          # document.text, document.where == "web.jsonl.zst:12"

Formats, chosen by the file's suffix, each also compressed as .gz or .zst:
  .txt     UTF-8; a line `<|endoftext|>` ends a document, without such a line the file is one
           document; line breaks at a document's two ends are dropped
  .jsonl   one JSON object per line, the text under `text_field`, kept as it is
and .parquet, a text per row in the column `text_field`, kept as it is.

A directory stands for every such file under it; globs, URLs and `-` are inputs too, see
base/sources.py. Documents without any text are skipped. Whatever is wrong with a file (missing,
unreadable, not UTF-8, bad JSON, no such field) is a DataError that names the place.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from lmworks.base.documents import (
    MAX_LINE_BYTES,
    Document,
    decode,
    json_line_text,
    read_blocks,
    split_lines,
)
from lmworks.base.errors import ConfigError, DataError
from lmworks.base.parquet import ParquetTexts
from lmworks.base.sources import (
    SUFFIXES,
    Source,
    files_under,
    find_sources,
    near_name,
    no_text_file,
    suffix_of,
)

SEPARATOR = "<|endoftext|>"

_BLOCK_BYTES = 1 << 20

OnFault = Callable[[DataError], None]


class DocumentReader:
    """Iterates over the documents of `inputs`; each iteration starts from the beginning.

    With `on_fault`, what is wrong with a file is handed to it and reading goes on with the next
    file; documents before the fault have been given out by then. Without, the first fault is
    raised.

    Raises:
        DataError: an input does not exist or is known to be no text, or a directory holds no text
            file (at construction); a file's content is wrong, or the file changed while it was
            read (while iterating).
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        *,
        text_field: str = "text",
        on_fault: OnFault | None = None,
    ) -> None:
        self.sources, faults = find_sources(inputs)
        if faults and (on_fault is None or not self.sources):
            raise faults[0]
        self._not_found = faults
        self.faults: list[DataError] = []
        """What `on_fault` has been told in the current iteration."""
        self._on_fault = on_fault
        self.text_field = text_field
        self.total_bytes = sum(source.size_bytes or 0 for source in self.sources)
        """Size of all files as stored, compressed ones as they are; unknown sizes count nothing."""
        self.read_bytes = 0
        """How much of `total_bytes` the current iteration has passed, for a progress display."""

    @property
    def names(self) -> list[str]:
        """The files and URLs, as messages name them."""
        return [source.name for source in self.sources]

    def __iter__(self) -> Iterator[Document]:
        self.read_bytes = 0
        self.faults = []
        for fault in self._not_found:
            self._note(fault)
        for source in self.sources:
            before = self.read_bytes
            try:
                yield from self._documents(source)
                source.check_unchanged()
            except DataError as err:
                self._note(err)
            self.read_bytes = before + (source.size_bytes or 0)

    def _note(self, fault: DataError) -> None:
        if self._on_fault is None:
            raise fault
        self.faults.append(fault)
        self._on_fault(fault)

    def _documents(self, source: Source) -> Iterator[Document]:
        before = self.read_bytes
        num_documents = 0
        try:
            with source.open() as raw:
                for document in self._all_documents(source, raw):
                    if source.size_bytes:
                        self.read_bytes = before + min(raw.tell(), source.size_bytes)
                    if document.text and not document.text.isspace():
                        num_documents += 1
                        yield document
        except DataError as err:
            if self._on_fault is None or not num_documents:
                raise
            used = f"the documents before that ({num_documents:,}) are used"
            raise DataError(f"{err}; {used}") from None

    def _all_documents(self, source: Source, raw: IO[bytes]) -> Iterator[Document]:
        if source.form == "parquet":
            is_remote = source.remote is not None
            rows = ParquetTexts(source.name, raw, self.text_field, is_remote=is_remote)
            return (Document(text or "", f"{source.name}:{number}") for number, text in rows)
        blocks = read_blocks(
            source.name,
            raw,
            source.compression,
            _BLOCK_BYTES,
            is_remote=source.remote is not None,
        )
        if source.form == "text":
            return _text_documents(source.name, blocks)
        return _json_documents(source.name, split_lines(source.name, blocks), self.text_field)


def first_text(inputs: Sequence[str | Path], *, text_field: str = "text") -> str:
    """The beginning of the first text, after opening every file and reading a little of each.

    Raises:
        DataError: a file cannot be read, does not begin with text, or none holds any text.
    """
    found = ""
    sources = DocumentReader(inputs, text_field=text_field).sources
    for source in sources:
        with source.open() as raw:
            beginning = _beginning(source, raw, text_field)
        found = found or beginning
    if not found:
        raise DataError(f"no text in {', '.join(source.name for source in sources[:4])}")
    return found


def _beginning(source: Source, raw: IO[bytes], field: str) -> str:
    """Of the first text that is not blank; "" when there is none."""
    if source.form == "parquet":
        rows = ParquetTexts(source.name, raw, field, is_remote=source.remote is not None)
        return next((text for _, text in rows if text and not text.isspace()), "")
    is_remote = source.remote is not None
    blocks = read_blocks(source.name, raw, source.compression, is_remote=is_remote)
    if source.form == "jsonl":
        lines = split_lines(source.name, blocks)
        documents = _json_documents(source.name, lines, field)
        return next((d.text for d in documents if d.text and not d.text.isspace()), "")
    offset, decoder = 0, codecs.getincrementaldecoder("utf-8")()
    for block in blocks:
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError:
            decode(block, name=source.name, line=1, offset=offset)  # tells the place
            raise
        text = text.removeprefix("\ufeff").replace(SEPARATOR, "")
        if text and not text.isspace():
            return text
        offset += len(block)
    return ""


def list_files(inputs: Sequence[str | Path]) -> list[Path]:
    """The text files that `inputs` (files and directories) stand for, each directory's sorted."""
    if not inputs:
        raise ConfigError("no input given; name at least one text file or directory")
    files: list[Path] = []
    for path in map(Path, inputs):
        if path.is_dir():
            files += _files_under(path)
        elif not path.is_file():
            what = "is not a regular file" if path.exists() else "no such file or directory"
            raise DataError(f"{path}: {what}{near_name(path)}")
        elif suffix_of(path.name) is None:
            raise DataError(f"{path}: unknown kind of text file; allowed: {', '.join(SUFFIXES)}")
        else:
            files.append(path)
    return files


def _files_under(folder: Path) -> list[Path]:
    faults: list[DataError] = []
    found = files_under(folder, faults)
    if faults:
        raise faults[0]
    if not found:
        raise no_text_file(folder)
    return found


def _text_documents(name: str, blocks: Iterable[bytes]) -> Iterator[Document]:
    held: list[bytes] = []  # of the document at hand
    line, offset = 1, 0
    for lines in _whole_lines(name, blocks):
        at = 0
        for begin, end in _separators(lines):
            held.append(lines[at:begin])
            document = b"".join(held)
            yield _text_document(name, document, line, offset)
            line += document.count(b"\n") + 1
            offset += len(document) + end - begin
            held, at = [], end
        held.append(lines[at:])
    yield _text_document(name, b"".join(held), line, offset)


def _whole_lines(name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks, cut anew so that each ends with a line; the last one as it ends."""
    held: list[bytes] = []
    held_bytes = 0
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join([*held, block[:end]])
            held, held_bytes = [], 0
        held.append(block[end:])
        held_bytes += len(block) - end
        if held_bytes > MAX_LINE_BYTES:
            raise DataError(f"{name}: a line of more than {MAX_LINE_BYTES:,} bytes; is it text?")
    yield b"".join(held)


def _separators(lines: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each separator line, its line break included."""
    separator = SEPARATOR.encode()
    begin = lines.find(separator)
    while begin >= 0:
        end = lines.find(b"\n", begin) + 1 or len(lines)
        is_line = begin == 0 or lines[begin - 1 : begin] == b"\n"
        if is_line and lines[begin:end].rstrip(b"\r\n") == separator:
            yield begin, end
        begin = lines.find(separator, begin + len(separator))


def _text_document(name: str, data: bytes, line: int, offset: int) -> Document:
    text = decode(data, name=name, line=line, offset=offset)
    return Document(text.strip("\r\n"), f"{name}:{line}")


def _json_documents(name: str, lines: Iterator[bytes], field: str) -> Iterator[Document]:
    offset = 0
    for number, line in enumerate(lines, start=1):
        text = json_line_text(line, field, name=name, number=number, offset=offset)
        offset += len(line)
        if text is not None:
            yield Document(text, f"{name}:{number}")

"""Documents out of text files, one at a time, in constant memory but for one document.

    reader = DocumentReader([Path("books"), Path("web.jsonl.zst")], text_field="text")
    for document in reader: ...          # document.text, document.where == "web.jsonl.zst:12"

Formats, chosen by the file's suffix, each also compressed as .gz or .zst:
  .txt     UTF-8; a line `<|endoftext|>` ends a document, without such a line the file is one
           document; line breaks at a document's two ends are dropped
  .jsonl   one JSON object per line, the text under `text_field`, kept as it is

A directory stands for every such file under it, see base/sources.py. Documents without any text
are skipped. Whatever is wrong with a file (missing, unreadable, not UTF-8, bad JSON, no such field)
is a DataError that names the place.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from lmworks.base.documents import Document, decode, json_line_text, read_blocks, split_lines
from lmworks.base.errors import ConfigError, DataError
from lmworks.base.sources import SUFFIXES, files_under, near_name, no_text_file, suffix_of

SEPARATOR = "<|endoftext|>"


class DocumentReader:
    """Iterates over the documents of `inputs`; each iteration starts from the beginning.

    Raises:
        DataError: an input does not exist, has an unknown suffix, or a directory holds no text file
            (at construction); a file's content is wrong (while iterating).
    """

    def __init__(self, inputs: Sequence[str | Path], *, text_field: str = "text") -> None:
        self.files = list_files(inputs)
        self.text_field = text_field
        self.total_bytes = sum(file.stat().st_size for file in self.files)
        """Size of all files on the disk, compressed ones as they are."""
        self.read_bytes = 0
        """How much of `total_bytes` the current iteration has passed, for a progress display."""

    def __iter__(self) -> Iterator[Document]:
        self.read_bytes = 0
        for path in self.files:
            before = self.read_bytes
            with _open_raw(path) as raw:
                for document in self._documents(path, raw):
                    self.read_bytes = before + raw.tell()
                    if document.text and not document.text.isspace():
                        yield document
                self.read_bytes = before + raw.tell()

    def _documents(self, path: Path, raw: IO[bytes]) -> Iterator[Document]:
        suffix = suffix_of(path.name) or ""
        compression = "" if suffix in (".txt", ".jsonl") else Path(suffix).suffix
        lines = split_lines(str(path), read_blocks(str(path), raw, compression))
        if suffix.startswith(".txt"):
            return _text_documents(path, lines)
        return _json_documents(path, lines, self.text_field)


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


def _open_raw(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None


def _text_documents(path: Path, lines: Iterator[bytes]) -> Iterator[Document]:
    separator = SEPARATOR.encode()
    held: list[bytes] = []
    first_line, offset = 1, 0
    for number, line in enumerate(lines, start=1):
        if line.startswith(separator) and line.rstrip(b"\r\n") == separator:
            yield _text_document(path, held, first_line, offset)
            offset += sum(map(len, held)) + len(line)
            held, first_line = [], number + 1
        else:
            held.append(line)
    yield _text_document(path, held, first_line, offset)


def _text_document(path: Path, lines: list[bytes], first_line: int, offset: int) -> Document:
    text = decode(b"".join(lines), name=str(path), line=first_line, offset=offset)
    return Document(text.strip("\r\n"), f"{path}:{first_line}")


def _json_documents(path: Path, lines: Iterator[bytes], field: str) -> Iterator[Document]:
    offset = 0
    for number, line in enumerate(lines, start=1):
        text = json_line_text(line, field, name=str(path), number=number, offset=offset)
        offset += len(line)
        if text is not None:
            yield Document(text, f"{path}:{number}")

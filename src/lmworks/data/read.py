"""Documents out of text files, one at a time, in constant memory but for one document.

    reader = DocumentReader([Path("books"), Path("web.jsonl.zst")], text_field="text")
    for document in reader: ...          # document.text, document.where == "web.jsonl.zst:12"

Formats, chosen by the file's suffix:
  .txt     UTF-8; a line `<|endoftext|>` ends a document, without such a line the file is one
           document; line breaks at a document's two ends are dropped
  .jsonl .jsonl.gz .jsonl.zst
           one JSON object per line, the text under `text_field`, kept as it is

A directory stands for every such file under it, in the order of their sorted paths; hidden files
and other suffixes are passed over. Documents without any text are skipped. Whatever is wrong with a
file (missing, unreadable, not UTF-8, bad JSON, no such field) is a DataError that names the place.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lmworks.base.config import suggest
from lmworks.base.errors import ConfigError, DataError

SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst")
SEPARATOR = "<|endoftext|>"

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_BLOCK_BYTES = 1 << 17
_SHOWN_KEYS = 12


@dataclass(frozen=True, slots=True)
class Document:
    """One document and where it stands, for messages."""

    text: str
    where: str
    """`FILE:LINE`, the line on which the document begins."""


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
        suffix = _suffix(path)
        lines = _lines(path, raw, suffix)
        if suffix == ".txt":
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
            raise DataError(f"{path}: {what}{_neighbour(path)}")
        elif _suffix(path) is None:
            raise DataError(f"{path}: unknown kind of text file; allowed: {', '.join(SUFFIXES)}")
        else:
            files.append(path)
    return files


def _files_under(folder: Path) -> list[Path]:
    found = [
        path
        for path in folder.rglob("*")
        if _suffix(path)
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise DataError(f"{folder}: no text file in this directory; allowed: {', '.join(SUFFIXES)}")
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _suffix(path: Path) -> str | None:
    # Longest first, so that a.jsonl.gz is not taken for something that ends in .gz.
    name = path.name.lower()
    return next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(s)), None)


def _neighbour(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggest(path.name, names)
    return hint if "did you mean" in hint else ""


def _open_raw(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None


def _lines(path: Path, raw: IO[bytes], suffix: str | None) -> Iterator[bytes]:
    """Lines with their line breaks; what goes wrong below becomes a DataError."""
    failures: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    stream: Iterable[bytes] = raw
    if suffix == ".jsonl.gz":
        stream = gzip.GzipFile(fileobj=raw)
    elif suffix == ".jsonl.zst":
        zstandard = _zstandard(path)
        failures = (*failures, zstandard.ZstdError)
        stream = _split_lines(_decompress_zst(zstandard, raw))
    try:
        yield from stream
    except failures as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        raise DataError(
            f"{path}: cannot be read to its end ({reason}); the file may be damaged or cut short"
        ) from None


def _decompress_zst(zstandard: Any, raw: IO[bytes]) -> Iterator[bytes]:
    # zstandard's own stream reader takes a file that was cut short for a whole one.
    frame = None
    while data := raw.read(_BLOCK_BYTES):
        while data:
            if frame is None:
                frame = zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError("it ends inside a compressed frame")


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    for block in blocks:
        first, *rest = block.split(b"\n")
        held.append(first)
        for piece in rest:
            yield b"".join(held) + b"\n"
            held = [piece]
    if last := b"".join(held):
        yield last


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            f"{path}: .zst files need the zstandard package; pip install 'lmworks[data]'"
        ) from None
    return zstandard


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
    text = _decode(b"".join(lines), path, first_line, offset)
    return Document(text.strip("\r\n"), f"{path}:{first_line}")


def _json_documents(path: Path, lines: Iterator[bytes], field: str) -> Iterator[Document]:
    offset = 0
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        text = _decode(line, path, number, offset)
        offset += len(line)
        if not text.isspace():
            yield Document(_field_of(text, field, where), where)


def _field_of(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{where}: not valid JSON ({err}); one object per line is needed") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(value).__name__}")
    if field not in value:
        keys = [str(key) for key in value][:_SHOWN_KEYS]
        hint = suggest(field, keys) if keys else "; the object is empty"
        raise DataError(
            f"{where}: no field {field!r} among {keys}{hint if 'did you mean' in hint else ''}"
            " (--text-field chooses the field)"
        )
    text = value[field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} is {type(text).__name__}, must be a string")
    _refuse_lone_surrogate(text, line, where)
    return text


def _refuse_lone_surrogate(text: str, line: str, where: str) -> None:
    # Only an escape such as \ud83d can put one into decoded JSON; such a text has no UTF-8 form.
    if "\\u" not in line:
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise DataError(
            f"{where}: character {err.start} is half of a surrogate pair ({text[err.start]!r});"
            " write the whole character"
        ) from None


def _decode(data: bytes, path: Path, first_line: int, offset: int) -> str:
    """Text of `data`, which stands at line `first_line` and byte `offset` of the file."""
    try:
        text = data.decode("utf-8")
        return text.removeprefix("\ufeff") if offset == 0 else text
    except UnicodeDecodeError as err:
        at = offset + err.start
        line = first_line + data.count(b"\n", 0, err.start)
        utf16 = at == 0 and data[:2] in _UTF16_BOMS
        source = "UTF-16" if utf16 else "THE-ENCODING"
        raise DataError(
            f"{path}:{line}: not UTF-8: byte {at} is 0x{data[err.start]:02x} ({err.reason});"
            f" convert it, e.g. iconv -f {source} -t UTF-8 IN > OUT"
        ) from None

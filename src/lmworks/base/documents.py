"""What is in the bytes of a text source: decompressed blocks, lines, the texts of JSON lines.

Nothing here holds more than a block or a line. Whatever is wrong with the content (cut short,
damaged, not UTF-8, bad JSON, no such field) is a DataError that names the place.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from lmworks.base.errors import ConfigError, DataError

MAX_LINE_BYTES = 1 << 30
"""Of one line: one that never ends (a compressed file of zeros) must not fill the memory."""

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_BLOCK_BYTES = 1 << 17
_SHOWN_KEYS = 12


@dataclass(frozen=True, slots=True)
class Document:
    """One document and where it stands, for messages."""

    text: str
    where: str
    """`FILE:LINE`, the line on which the document begins, or the row of a Parquet file."""


def read_blocks(
    name: str,
    raw: IO[bytes],
    compression: str,
    block_bytes: int = _BLOCK_BYTES,
    *,
    is_remote: bool = False,
) -> Iterator[bytes]:
    """The content in blocks, decompressed; `compression` is "", ".gz" or ".zst".

    A remote file system has errors of its own; with `is_remote` they are DataErrors too.

    Raises:
        DataError: it cannot be read to its end.
        ConfigError: the package for ".zst" is not installed.
    """
    failures: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if is_remote:
        failures = (Exception,)
    if compression == ".zst":
        zstandard = _zstandard(name)
        failures = (*failures, zstandard.ZstdError)
        blocks = _decompress_zst(zstandard, raw)
    else:
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if compression == ".gz" else raw  # type: ignore[assignment]
        blocks = iter(lambda: stream.read(block_bytes), b"")
    try:
        yield from blocks
    except failures as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        raise DataError(
            f"{name}: cannot be read to its end ({reason}); the file may be damaged or cut short"
        ) from None


def split_lines(name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines with their line breaks."""
    held: list[bytes] = []
    held_bytes = 0
    for block in blocks:
        first, *rest = block.split(b"\n")
        held.append(first)
        held_bytes += len(first)
        if held_bytes > MAX_LINE_BYTES:
            raise DataError(f"{name}: a line of more than {MAX_LINE_BYTES:,} bytes; is it text?")
        for piece in rest:
            yield b"".join(held) + b"\n"
            held, held_bytes = [piece], len(piece)
    if last := b"".join(held):
        yield last


def json_line_text(line: bytes, field: str, *, name: str, number: int, offset: int) -> str | None:
    """The text under `field` of one JSON line; None for a blank line.

    Args:
        line: one line of the file.
        field: key of the text.
        name: of the file, for messages.
        number: of the line, from 1.
        offset: of the line's first byte.

    Raises:
        DataError: the line is not UTF-8, not a JSON object, or has no such text.
    """
    text = decode(line, name=name, line=number, offset=offset)
    return None if text.isspace() or not text else _field_of(text, field, f"{name}:{number}")


def decode(data: bytes, *, name: str, line: int, offset: int) -> str:
    """Text of UTF-8 `data`, which stands at `line` and byte `offset` of the file."""
    try:
        text = data.decode("utf-8")
        return text.removeprefix("\ufeff") if offset == 0 else text
    except UnicodeDecodeError as err:
        at = offset + err.start
        line += data.count(b"\n", 0, err.start)
        raise DataError(
            f"{name}:{line}: not UTF-8: byte {at} is 0x{data[err.start]:02x} ({err.reason});"
            f" convert it, e.g. iconv -f {encoding_hint(data, at)} -t UTF-8 IN > OUT"
        ) from None


def encoding_hint(data: bytes, error_offset: int) -> str:
    """What to convert from: UTF-16 shows itself by its first two bytes."""
    return "UTF-16" if error_offset == 0 and data[:2] in _UTF16_BOMS else "THE-ENCODING"


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


def _zstandard(name: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            f"{name}: .zst files need the zstandard package; pip install 'lmworks[data]'"
        ) from None
    return zstandard


def _field_of(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{where}: not valid JSON ({err}); one object per line is needed") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(value).__name__}")
    if field not in value:
        from lmworks.base.config import suggest

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

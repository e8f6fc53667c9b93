"""GGUF files: the key-value pairs at their start, read and written; tensors are left to others.

Format (ggml, docs/gguf.md, versions 2 and 3, little-endian): "GGUF", a uint32 version, the numbers
of tensors and of pairs as uint64, then each pair: a key, a uint32 type and a value. A string is a
uint64 size and that many bytes; an array is the type of its items, their number as uint64, and the
items. The file is read from the start as far as the pairs go, however large the rest is, and no
size in it is believed that the file has no room for. What follows the pairs (the list of tensors)
can be read with the same `Reader` (lmworks.models.gguf.container).
"""

import os
import struct
from array import array
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from lmworks.base.errors import DataError
from lmworks.base.storage import write_bytes

MAGIC: Final = b"GGUF"
VERSION: Final = 3
_READ_VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32
"""Of tensors, in bytes, where the file does not say otherwise."""
# A pair has at least an empty key, a type and one byte.
_MIN_PAIR_BYTES: Final = 8 + 4 + 1

Scalar = str | bool | int | float
Value = Scalar | list[str] | list[bool] | list[int] | list[float]


class ValueType(IntEnum):
    """Types of values, with their numbers in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# By type, the code that the modules struct and array share.
_CODES: Final = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}


def read(path: str | Path) -> dict[str, Value]:
    """The key-value pairs of a GGUF file; DataError says what is wrong with it and where."""
    try:
        with Path(path).open("rb") as file:
            return Reader(file).head().pairs
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def to_bytes(pairs: Mapping[str, Value]) -> bytes:
    """A GGUF file of these pairs and no tensors."""
    data = head_to_bytes(pairs, num_tensors=0)
    return data + bytes(-len(data) % ALIGNMENT)


def head_to_bytes(pairs: Mapping[str, Value], *, num_tensors: int) -> bytes:
    """The start of a GGUF file, up to the list of tensors.

    Text is a STRING, whole numbers are UINT32, in lists INT32, other numbers FLOAT32.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSION, num_tensors, len(pairs))]
    for key, value in pairs.items():
        parts += (string_to_bytes(key), *_value(key, value))
    return b"".join(parts)


def write(path: str | Path, pairs: Mapping[str, Value]) -> None:
    """Write `to_bytes(pairs)`, atomically."""
    write_bytes(path, to_bytes(pairs))


# ---- reading ----


class Head(NamedTuple):
    """What a GGUF file says before its list of tensors."""

    num_tensors: int
    """As the file has it: not checked against its size."""
    pairs: dict[str, Value]


class Reader:
    """Reads a GGUF file from its start; every size is compared with what is left of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size_bytes = self._left = os.fstat(file.fileno()).st_size

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._size_bytes - self._left

    def head(self) -> Head:
        """Version and key-value pairs."""
        magic = self._bytes(min(len(MAGIC), self._left), "the file")
        if magic != MAGIC:
            raise DataError(f"not a GGUF file: it must begin with {MAGIC!r}, found {magic!r}")
        version = self.number("I", "the version")
        if version not in _READ_VERSIONS:
            swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big")
            why = " (a big-endian file)" if swapped in _READ_VERSIONS else ""
            raise DataError(f"GGUF version {version}{why}; versions 2 and 3 can be read")
        num_tensors = int(self.number("Q", "the number of tensors"))
        num_pairs = int(self.number("Q", "the number of pairs"))
        self.check(num_pairs, _MIN_PAIR_BYTES, "the pairs")
        pairs: dict[str, Value] = {}
        for i in range(num_pairs):
            key = self.text(f"key {i}")
            if key in pairs:
                raise DataError(f"key {key!r} is given twice; keep one")
            pairs[key] = self._value(key)
        return Head(num_tensors, pairs)

    def _value(self, key: str) -> Value:
        kind = self._type(key)
        if kind == ValueType.STRING:
            return self.text(key)
        if kind != ValueType.ARRAY:
            number = self.number(_CODES[kind], key)
            return bool(number) if kind == ValueType.BOOL else number
        item = self._type(f"{key} (items)")
        count = int(self.number("Q", key))
        if item == ValueType.ARRAY:
            raise DataError(f"{key} is an array of arrays, which is not supported")
        if item == ValueType.STRING:
            self.check(count, 8, key)
            return self._texts(count, key)
        code = _CODES[item]
        size = struct.calcsize("<" + code)
        self.check(count, size, key)
        numbers = array(code, self._bytes(count * size, key)).tolist()
        return [bool(n) for n in numbers] if item == ValueType.BOOL else numbers

    def _texts(self, count: int, where: str) -> list[str]:
        """`text`, `count` times, without a call for each."""
        read, left = self._file.read, self._left
        rows = []
        for _ in range(count):
            head = read(8)
            size = int.from_bytes(head, "little")
            data = read(size) if size <= left - 8 else b""
            if len(head) < 8 or len(data) < size:
                self._left = left
                self.check(8, 1, where)
                self._left -= 8
                self.check(size, 1, where)
                raise DataError(f"the file ended while it was read, in {where}")
            left -= 8 + size
            rows.append(data)
        self._left = left
        return [row.decode("utf-8", "surrogateescape") for row in rows]

    def _type(self, where: str) -> ValueType:
        number = int(self.number("I", where))
        if number >= len(ValueType):
            raise DataError(f"{where} is of type {number}; types are 0 to {len(ValueType) - 1}")
        return ValueType(number)

    def text(self, where: str) -> str:
        """The next string; bytes that are no UTF-8 become surrogates."""
        # llama.cpp writes tokens that are parts of characters as they are.
        data = self._bytes(int(self.number("Q", where)), where)
        return data.decode("utf-8", "surrogateescape")

    def number(self, code: str, where: str) -> int | float:
        """The next number, of a struct code."""
        form = "<" + code
        number: int | float = struct.unpack(form, self._bytes(struct.calcsize(form), where))[0]
        return number

    def _bytes(self, size: int, where: str) -> bytes:
        self.check(size, 1, where)
        data = self._file.read(size)
        self._left -= size
        if len(data) < size:
            raise DataError(f"the file ended while it was read, in {where}")
        return data

    def check(self, count: int, size: int, where: str) -> None:
        """DataError if there is no room left for `count` items of at least `size` bytes."""
        if count * size > self._left:
            raise DataError(
                f"not a GGUF file, or cut short: {where} takes at least {count * size} bytes "
                f"where {self._left} are left"
            )


# ---- writing ----


def string_to_bytes(text: str) -> bytes:
    """A string as GGUF has it; surrogates that stand for bytes become those bytes."""
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Value) -> Iterable[bytes]:
    if not isinstance(value, list):
        kind = _type_of(key, value, ValueType.UINT32)
        yield struct.pack("<I", kind)
        yield _packed(kind, [value])
        return
    kind = _type_of(key, value[0] if value else 0, ValueType.INT32)
    yield struct.pack("<IIQ", ValueType.ARRAY, kind, len(value))
    yield _packed(kind, value)


def _type_of(key: str, value: Scalar, whole: ValueType) -> ValueType:
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, float):
        return ValueType.FLOAT32
    if not isinstance(value, int):
        raise TypeError(f"{key}: GGUF has no {type(value).__name__}")
    return whole


def _packed(kind: ValueType, values: Iterable[Scalar]) -> bytes:
    if kind == ValueType.STRING:
        return b"".join(string_to_bytes(value) for value in values if isinstance(value, str))
    values = list(values)
    return struct.pack(f"<{len(values)}{_CODES[kind]}", *values)

"""GGUF files: the key-value pairs at their start, read and written; no tensors.

Format (ggml, docs/gguf.md, versions 2 and 3, little-endian): "GGUF", a uint32 version, the numbers
of tensors and of pairs as uint64, then each pair: a key, a uint32 type and a value. A string is a
uint64 size and that many bytes; an array is the type of its items, their number as uint64, and the
items. The file is read from the start as far as the pairs go, however large the rest is, and no
size in it is believed that the file has no room for.
"""

import os
import struct
from array import array
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

from lmworks.base.errors import DataError
from lmworks.base.storage import write_bytes

MAGIC: Final = b"GGUF"
VERSION: Final = 3
_READ_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32
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
            return _Reader(file).pairs()
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def to_bytes(pairs: Mapping[str, Value]) -> bytes:
    """A GGUF file of these pairs and no tensors.

    Text is a STRING, whole numbers are UINT32, in lists INT32, other numbers FLOAT32.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSION, 0, len(pairs))]
    for key, value in pairs.items():
        parts += (_string(key), *_value(key, value))
    size = sum(map(len, parts))
    return b"".join([*parts, bytes(-size % _ALIGNMENT)])


def write(path: str | Path, pairs: Mapping[str, Value]) -> None:
    """Write `to_bytes(pairs)`, atomically."""
    write_bytes(path, to_bytes(pairs))


# ---- reading ----


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size

    def pairs(self) -> dict[str, Value]:
        magic = self._bytes(min(len(MAGIC), self._left), "the file")
        if magic != MAGIC:
            raise DataError(f"not a GGUF file: it must begin with {MAGIC!r}, found {magic!r}")
        version = self._number("I", "the version")
        if version not in _READ_VERSIONS:
            swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big")
            why = " (a big-endian file)" if swapped in _READ_VERSIONS else ""
            raise DataError(f"GGUF version {version}{why}; versions 2 and 3 can be read")
        self._number("Q", "the number of tensors")
        num_pairs = int(self._number("Q", "the number of pairs"))
        self._check(num_pairs, _MIN_PAIR_BYTES, "the pairs")
        pairs: dict[str, Value] = {}
        for i in range(num_pairs):
            key = self._text(f"key {i}")
            if key in pairs:
                raise DataError(f"key {key!r} is given twice; keep one")
            pairs[key] = self._value(key)
        return pairs

    def _value(self, key: str) -> Value:
        kind = self._type(key)
        if kind == ValueType.STRING:
            return self._text(key)
        if kind != ValueType.ARRAY:
            number = self._number(_CODES[kind], key)
            return bool(number) if kind == ValueType.BOOL else number
        item = self._type(f"{key} (items)")
        count = int(self._number("Q", key))
        if item == ValueType.ARRAY:
            raise DataError(f"{key} is an array of arrays, which is not supported")
        if item == ValueType.STRING:
            self._check(count, 8, key)
            return self._texts(count, key)
        code = _CODES[item]
        size = struct.calcsize("<" + code)
        self._check(count, size, key)
        numbers = array(code, self._bytes(count * size, key)).tolist()
        return [bool(n) for n in numbers] if item == ValueType.BOOL else numbers

    def _texts(self, count: int, where: str) -> list[str]:
        """`_text`, `count` times, without a call for each."""
        read, left = self._file.read, self._left
        rows = []
        for _ in range(count):
            head = read(8)
            size = int.from_bytes(head, "little")
            data = read(size) if size <= left - 8 else b""
            if len(head) < 8 or len(data) < size:
                self._left = left
                self._check(8, 1, where)
                self._left -= 8
                self._check(size, 1, where)
                raise DataError(f"the file ended while it was read, in {where}")
            left -= 8 + size
            rows.append(data)
        self._left = left
        return [row.decode("utf-8", "surrogateescape") for row in rows]

    def _type(self, where: str) -> ValueType:
        number = int(self._number("I", where))
        if number >= len(ValueType):
            raise DataError(f"{where} is of type {number}; types are 0 to {len(ValueType) - 1}")
        return ValueType(number)

    def _text(self, where: str) -> str:
        # llama.cpp writes tokens that are parts of characters as they are.
        data = self._bytes(int(self._number("Q", where)), where)
        return data.decode("utf-8", "surrogateescape")

    def _number(self, code: str, where: str) -> int | float:
        form = "<" + code
        number: int | float = struct.unpack(form, self._bytes(struct.calcsize(form), where))[0]
        return number

    def _bytes(self, size: int, where: str) -> bytes:
        self._check(size, 1, where)
        data = self._file.read(size)
        self._left -= size
        if len(data) < size:
            raise DataError(f"the file ended while it was read, in {where}")
        return data

    def _check(self, count: int, size: int, where: str) -> None:
        if count * size > self._left:
            raise DataError(
                f"not a GGUF file, or cut short: {where} takes at least {count * size} bytes "
                f"where {self._left} are left"
            )


# ---- writing ----


def _string(text: str) -> bytes:
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
        return b"".join(_string(value) for value in values if isinstance(value, str))
    values = list(values)
    return struct.pack(f"<{len(values)}{_CODES[kind]}", *values)

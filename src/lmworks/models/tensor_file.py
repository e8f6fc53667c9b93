"""safetensors files, read one tensor at a time into memory that the caller owns, and written so.

    with TensorFile("model.safetensors") as file:
        file.headers["embed.weight"]                     # shape and dtype; nothing is read yet
        file.read_into("embed.weight", weight)           # any float dtype, any strides

Format (github.com/huggingface/safetensors, "Format"): 8 bytes of header size, little-endian; a JSON
object {name: {dtype, shape, data_offsets}, "__metadata__": {text: text}}; the data without gaps.
Files come from strangers: whatever is in one, opening it gives true headers or a CheckpointError,
and costs no more memory than a small multiple of its header. Reads go past the page cache's mapping
(no mmap), so a file never counts twice and one that shrinks later is an error, not a signal.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from lmworks.base.errors import CheckpointError

COPY_BYTES: Final = 4 << 20
"""Largest buffer that reading, converting or writing a tensor takes, unless one row is larger."""
MAX_HEADER_BYTES: Final = 100_000_000
"""As in the safetensors library."""
_MAX_DIMS: Final = 16
_MAX_DIM: Final = 2**48
_SIZE_BYTES: Final = 8
_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class Header(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """An open safetensors file whose header has been checked against the file's size."""

    def __init__(self, path: str | Path) -> None:
        """Open `path` and read its header.

        Raises:
            CheckpointError: missing, truncated, or not what its header says.
        """
        self.path = Path(path)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        if not self.path.is_file():  # opening a pipe would wait for its writer
            raise CheckpointError(f"{self.path}: missing")
        try:
            self._file = self.path.open("rb", buffering=0)
        except OSError as err:
            raise CheckpointError(f"{self.path}: cannot be read ({err.strerror})") from None
        try:
            self.headers, self._begins = self._read_header()
        except CheckpointError as err:
            self._file.close()
            raise CheckpointError(
                f"{self.path}: truncated or not a safetensors file ({err})"
            ) from None

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was read stays."""
        self._file.close()

    def read_into(
        self, name: str, out: Tensor, *, part: tuple[slice, ...] = (slice(None),)
    ) -> None:
        """Copy the tensor, or the `part` of it that slices of its first dims cut out, into `out`.

        `out` has the part's shape, any dtype (values are converted) and any strides: a transposed
        view is filled as such. Buffers are at most COPY_BYTES, or one row.

        Raises:
            CheckpointError: the file became shorter since it was opened.
        """
        header = self.headers[name]
        begin = self._begins[name]
        if not header.shape:
            out.copy_(self._read(begin, Header((1,), header.dtype))[0])
            return
        first, last, _ = part[0].indices(header.shape[0])
        row = Header(header.shape[1:], header.dtype)
        columns = part[1:]
        begin += first * row.num_bytes
        if not columns and out.dtype == header.dtype and out.is_contiguous():
            self._fill(out, begin)
            return
        for start, stop in row_chunks(last - first, row.num_bytes):
            rows = self._read(
                begin + start * row.num_bytes, Header((stop - start, *row.shape), header.dtype)
            )
            out[start:stop].copy_(rows[(slice(None), *columns)])

    def _read(self, begin: int, header: Header) -> Tensor:
        """Values that stay until the next call: one buffer serves all, lest the heap be holed."""
        if len(self._buffer) < header.num_bytes:
            self._buffer = torch.empty(max(COPY_BYTES, header.num_bytes), dtype=torch.uint8)
        values = self._buffer[: header.num_bytes].view(header.dtype).view(header.shape)
        self._fill(values, begin)
        return values

    def _fill(self, values: Tensor, begin: int) -> None:
        """Overwrite contiguous `values` with the bytes from `begin` on."""
        if values.numel() == 0:
            return
        target = values.detach().reshape(-1).view(torch.uint8).numpy().data
        try:
            self._file.seek(begin)
            while target:
                count = self._file.readinto(target)
                if not count:
                    raise CheckpointError(f"{self.path}: truncated while it was read")
                target = target[count:]
        except OSError as err:
            raise CheckpointError(f"{self.path}: cannot be read ({err.strerror})") from None

    def _read_header(self) -> tuple[dict[str, Header], dict[str, int]]:
        file_bytes = os.fstat(self._file.fileno()).st_size
        size = int.from_bytes(self._file.read(_SIZE_BYTES), "little")
        data_begin = _SIZE_BYTES + size
        if file_bytes < _SIZE_BYTES or data_begin > file_bytes or size > MAX_HEADER_BYTES:
            raise CheckpointError(f"a header of {size} bytes in a file of {file_bytes}")
        text = self._file.read(size)
        if not text.startswith(b"{"):
            raise CheckpointError("the header does not begin with {")
        values = parse_json_object(text)
        check_metadata(values.pop("__metadata__", {}))
        headers: dict[str, Header] = {}
        begins: dict[str, int] = {}
        ranges: list[tuple[int, int, str]] = []
        for name, value in values.items():
            headers[name], begin, end = _tensor_entry(name, value)
            begins[name] = data_begin + begin
            ranges.append((begin, end, name))
        expected = 0
        for begin, end, name in sorted(ranges):
            if begin != expected:
                raise CheckpointError(
                    f"data of {name!r:.80} begins at {begin}, after {expected}: an overlap or a gap"
                )
            expected = end
        data_bytes = file_bytes - data_begin
        if expected != data_bytes:
            raise CheckpointError(f"its tensors take {expected} bytes, but {data_bytes} are there")
        return headers, begins


def row_chunks(num_rows: int, row_bytes: int) -> Iterable[tuple[int, int]]:
    """Ranges of rows that take COPY_BYTES at most, at least one row each."""
    step = max(1, COPY_BYTES // max(1, row_bytes))
    return ((start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def write_tensors(
    file: Path,
    headers: Mapping[str, Header],
    make: Callable[[str], Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file; `make(name)` gives each tensor when its turn comes.

    Not atomic: give it the path of `base.storage.atomic_file`. OSError when the disk is full.
    """
    # Larger elements first, so that all data lie aligned.
    names = sorted(headers, key=lambda name: -headers[name].dtype.itemsize)
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        begin, end = end, end + headers[name].num_bytes
        entries[name] = {
            "dtype": _NAMES[headers[name].dtype],
            "shape": list(headers[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _SIZE_BYTES)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(_SIZE_BYTES, "little") + text)
        for name in names:
            tensor = make(name).detach().cpu().contiguous()
            if Header(tuple(tensor.shape), tensor.dtype) != headers[name]:
                raise ValueError(
                    f"{name}: {tensor.shape} {tensor.dtype}, announced {headers[name]}"
                )
            if tensor.numel():
                out.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def header_of(tensor: Tensor) -> Header:
    """Shape and dtype of a tensor in memory."""
    return Header(tuple(tensor.shape), tensor.dtype)


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a small `file`; CheckpointError if it is missing or anything else."""
    if not file.is_file():
        raise CheckpointError(f"{file}: missing; {file.parent} is not a model folder")
    try:
        if file.stat().st_size > MAX_HEADER_BYTES:
            raise CheckpointError(f"larger than {MAX_HEADER_BYTES} bytes")
        return parse_json_object(file.read_bytes())
    except (OSError, CheckpointError) as err:
        raise CheckpointError(f"{file}: not readable as JSON ({err})") from None


def first_reason(err: ValidationError) -> str:
    """Where and what: the first of the errors that pydantic found."""
    first: Any = err.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def parse_json_object(text: bytes) -> dict[str, Any]:
    """The JSON object in `text`; CheckpointError for all else, repeated keys, NaN, deep nesting."""
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise CheckpointError("JSON nested too deeply") from None
    except ValueError as err:
        raise CheckpointError(f"not JSON: {err!s:.200}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"not a JSON object but {type(value).__name__}")
    return value


def check_metadata(metadata: Any) -> None:
    """Raise CheckpointError unless `metadata` maps text to text."""
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError("__metadata__ is not an object of texts")


def _tensor_entry(name: str, value: Any) -> tuple[Header, int, int]:
    """Header and range of data of one tensor, in which sizes agree."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{name!r:.80} needs dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointError(f"{name!r:.80}: dtype {dtype!r:.40}; known: {', '.join(_DTYPES)}")
    if not _are_counts(shape) or len(shape) > _MAX_DIMS:
        raise CheckpointError(f"{name!r:.80}: {shape!r:.80} is not a shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{name!r:.80}: data_offsets {offsets!r:.80} are not [begin, end]")
    header = Header(tuple(shape), _DTYPES[dtype])
    if offsets[1] - offsets[0] != header.num_bytes:
        raise CheckpointError(
            f"{name!r:.80}: {dtype} of shape {shape} takes {header.num_bytes} bytes, "
            f"but data_offsets are {offsets}"
        )
    return header, offsets[0], offsets[1]


def _are_counts(values: Any) -> bool:
    def is_count(value: Any) -> bool:
        return type(value) is int and 0 <= value < _MAX_DIM

    return (
        isinstance(values, Sequence) and not isinstance(values, str) and all(map(is_count, values))
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is given twice")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")

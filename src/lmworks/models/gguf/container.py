"""GGUF files opened for their tensors: the list is checked in full, the data stay in the file.

    with open_gguf("model.gguf") as file:
        info = file.tensors["token_embd.weight"]
        blocks = file.read(info, 0, 10)                  # uint8 (blocks, block_bytes)

After the key-value pairs (lmworks.tokenizer.gguf_metadata) come, for each tensor, its name, a
uint32 number of dims, the dims as uint64 with the fastest first, a uint32 type and the uint64
offset of its data, counted from the end of the list rounded up to `general.alignment`. Nothing is
believed: every size must fit the file, offsets must be aligned, and no two tensors may share bytes.
A model may be split over files NAME-00001-of-000NN.gguf; opening the first opens all.
"""

import mmap
import os
import re
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmworks.base.errors import CheckpointError, DataError
from lmworks.models.gguf.layout import TENSOR_TYPES, TYPE_OF_NUMBER, UNSUPPORTED, TensorType
from lmworks.models.gguf.pairs import whole
from lmworks.tokenizer.gguf_metadata import ALIGNMENT, Reader, Value

_MAX_DIMS: Final = 4
# A name's size, the number of dims, one dim, the type, the offset.
_MIN_INFO_BYTES: Final = 8 + 4 + 8 + 4 + 8
_MAX_ALIGNMENT: Final = 2**20
_SPLIT_NAME: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_MAX_SPLITS: Final = 1000


class TensorInfo(NamedTuple):
    """Where a tensor is and what it is made of."""

    name: str
    shape: tuple[int, ...]
    """Slowest dim first, as in torch: the file has them the other way round."""
    kind: TensorType
    part: int
    """Number of the file, from 0."""
    offset: int
    """Of the first byte, from the start of that file."""
    size_bytes: int


class GgufFile:
    """Pairs and tensors of an opened GGUF file, or of all parts of a split one."""

    def __init__(
        self,
        paths: list[Path],
        files: list[BinaryIO],
        pairs: dict[str, Value],
        tensors: dict[str, TensorInfo],
    ) -> None:
        """Made by `open_gguf`."""
        self.path = paths[0]
        self.pairs = pairs
        self.tensors = tensors
        self._files = files

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; what was read or mapped stays."""
        for file in self._files:
            file.close()

    def read(self, info: TensorInfo, first: int, stop: int) -> NDArray[np.uint8]:
        """Some of the tensor's blocks, copied: (stop - first, block_bytes).

        Raises:
            DataError: the file became shorter since it was opened.
        """
        size = info.kind.block_bytes
        out = np.empty((stop - first, size), np.uint8)
        left, offset = out.reshape(-1), info.offset + first * size
        while left.size:
            num_read = os.preadv(self._files[info.part].fileno(), [left.data], offset)
            if not num_read:
                raise DataError(f"{self.path}: the file became shorter while it was read")
            left, offset = left[num_read:], offset + num_read
        return out

    def map(self, info: TensorInfo) -> NDArray[np.uint8]:
        """All of the tensor's blocks without a copy: (blocks, block_bytes), read when used.

        Good for as long as nobody shortens the file: the system then kills who reads on.
        """
        page_offset = info.offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            self._files[info.part].fileno(),
            info.size_bytes + page_offset,
            access=mmap.ACCESS_READ,
            offset=info.offset - page_offset,
        )
        flat = np.frombuffer(mapped, np.uint8, count=info.size_bytes, offset=page_offset)
        return flat.reshape(-1, info.kind.block_bytes)


def open_gguf(path: str | Path) -> GgufFile:
    """Open a GGUF file and check its list of tensors; for a split model, the first of its files.

    Raises:
        CheckpointError: a tensor, or the split, is not what the format allows.
        DataError: the file cannot be read or its pairs are not what the format allows.
    """
    path = Path(path)
    pairs, infos = _read_list(path, part=0)
    files, infos_of = [path], [infos]
    for part, other in enumerate(_other_parts(path, pairs), start=1):
        other_pairs, other_infos = _read_list(other, part=part)
        if other_pairs.get("split.no") != part:
            raise CheckpointError(
                f"{other}: split.no={other_pairs.get('split.no')!r:.60}, not {part}"
            )
        files.append(other)
        infos_of.append(other_infos)
    tensors: dict[str, TensorInfo] = {}
    for file, found in zip(files, infos_of, strict=True):
        for info in found:
            if tensors.setdefault(info.name, info) is not info:
                raise CheckpointError(f"{file}: tensor {info.name!r:.80} is there twice")
    wanted = pairs.get("split.tensors.count", len(tensors))
    if len(files) > 1 and wanted != len(tensors):
        raise CheckpointError(f"{path}: the parts hold {len(tensors)} of {wanted!r:.60} tensors")
    return GgufFile(files, _open(files), pairs, tensors)


def _open(paths: list[Path]) -> list[BinaryIO]:
    files: list[BinaryIO] = []
    try:
        for path in paths:
            files.append(path.open("rb", buffering=0))
    except OSError as err:
        for file in files:
            file.close()
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None
    return files


# ---- one file ----


def _read_list(path: Path, *, part: int) -> tuple[dict[str, Value], list[TensorInfo]]:
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a file")  # opening a pipe would wait for ever
    try:
        with path.open("rb") as file:
            size_bytes = path.stat().st_size
            reader = Reader(file)
            head = reader.head()
            reader.check(head.num_tensors, _MIN_INFO_BYTES, "the list of tensors")
            infos = [_read_info(reader, i, part) for i in range(head.num_tensors)]
            alignment = _alignment(head.pairs)
            start = -(-reader.offset // alignment) * alignment
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None
    except DataError as err:
        raise DataError(f"{path}: {err}") from None
    except CheckpointError as err:
        raise CheckpointError(f"{path}: {err}") from None
    placed = [info._replace(offset=start + info.offset) for info in infos]
    _check_places(placed, start=start, alignment=alignment, size_bytes=size_bytes, path=path)
    return head.pairs, placed


def _read_info(reader: Reader, index: int, part: int) -> TensorInfo:
    name = reader.text(f"the name of tensor {index}")
    where = f"tensor {name!r:.80}"
    num_dims = int(reader.number("I", where))
    if not 1 <= num_dims <= _MAX_DIMS:
        raise CheckpointError(f"{where} has {num_dims} dims; 1 to {_MAX_DIMS} are possible")
    shape = tuple(int(reader.number("Q", where)) for _ in range(num_dims))[::-1]
    kind = _tensor_type(int(reader.number("I", where)), where)
    if min(shape) < 1:
        raise CheckpointError(f"{where} has shape {shape}; every dim must be at least 1")
    if shape[-1] % kind.num_elements:
        raise CheckpointError(
            f"{where} has rows of {shape[-1]} elements; {kind.name} needs a multiple of "
            f"{kind.num_elements}"
        )
    num_elements = 1
    for dim in shape:
        num_elements *= dim
    offset = int(reader.number("Q", where))
    return TensorInfo(name, shape, kind, part, offset, kind.size_bytes(num_elements))


def _tensor_type(number: int, where: str) -> TensorType:
    kind = TYPE_OF_NUMBER.get(number)
    if kind is None:
        name = UNSUPPORTED.get(number, "unknown")
        raise CheckpointError(
            f"{where} is of type {number} ({name}), which cannot be read; types that can: "
            f"{', '.join(TENSOR_TYPES)}"
        )
    return kind


def _alignment(pairs: dict[str, Value]) -> int:
    value = whole(pairs, "general.alignment", ALIGNMENT)
    if not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise CheckpointError(
            f"general.alignment={value} is not a power of two up to {_MAX_ALIGNMENT}"
        )
    return value


def _check_places(
    infos: list[TensorInfo], *, start: int, alignment: int, size_bytes: int, path: Path
) -> None:
    """All data lie behind the list, on aligned offsets, apart from each other, in the file."""
    for info in infos:
        end = info.offset + info.size_bytes
        if end > size_bytes:
            raise CheckpointError(
                f"{path}: tensor {info.name!r:.80} ends at byte {end} of a file of {size_bytes} "
                "bytes; the file is cut short or forged"
            )
        if (info.offset - start) % alignment:
            raise CheckpointError(
                f"{path}: tensor {info.name!r:.80} is at offset {info.offset - start}, which is "
                f"not a multiple of general.alignment={alignment}"
            )
    in_order = sorted(infos, key=lambda info: info.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.size_bytes > after.offset:
            raise CheckpointError(
                f"{path}: tensors {before.name!r:.80} and {after.name!r:.80} overlap"
            )


# ---- split models ----


def _other_parts(path: Path, pairs: dict[str, Value]) -> list[Path]:
    """The second and further files of a split model; none if it is whole."""
    count = whole(pairs, "split.count", 1)
    if count > _MAX_SPLITS:
        raise CheckpointError(f"{path}: split.count={count} is more than {_MAX_SPLITS}")
    if count <= 1:
        return []
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{path}: one of {count} parts; their names must end in -00001-of-{count:05}.gguf"
        )
    names = [f"{match[1]}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    if int(match[2]) != 1 or pairs.get("split.no", 0) != 0:
        raise CheckpointError(f"{path}: one of {count} parts; open the first, {names[0]}")
    parts = [path.with_name(name) for name in names[1:]]
    for part in parts:
        if not part.is_file():
            raise CheckpointError(f"{part}: missing; {path.name} is one of {count} parts")
    return parts

"""GGUF files written: pairs, the list of tensors, then the data of one tensor after the other."""

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from torch import Tensor

from lmworks.base.errors import CheckpointError
from lmworks.base.storage import atomic_file
from lmworks.models.gguf.convert import pieces_of, quantize
from lmworks.models.gguf.layout import TensorType
from lmworks.tokenizer.gguf_metadata import ALIGNMENT, Value, head_to_bytes, string_to_bytes

_F16_MAX: Final = 65504.0
_WIDE_TYPES: Final = ("F32", "BF16")
"""Those that hold whatever fp32 holds; the others have numbers or scales in F16."""


class OutTensor(NamedTuple):
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    """Slowest dim first, as in torch; the last is a whole number of blocks of `kind`."""
    kind: TensorType
    make: Callable[[], Tensor]
    """The values, of any float dtype; asked for when their turn comes."""

    @property
    def size_bytes(self) -> int:
        """In the file, without padding."""
        return self.kind.size_bytes(math.prod(self.shape))


def write_gguf(path: str | Path, pairs: Mapping[str, Value], tensors: Sequence[OutTensor]) -> None:
    """Write a GGUF file, version 3, atomically; beside the tensors it needs a few MB of memory.

    Raises:
        CheckpointError: a weight cannot be written in its format.
        StorageError: the disk is full or read-only; a file that was there before is intact.
    """
    with atomic_file(path) as part, part.open("wb") as file:
        file.write(_padded(head_to_bytes(pairs, num_tensors=len(tensors)) + _list(tensors)))
        for tensor in tensors:
            _write_data(file, tensor)
            file.write(bytes(-tensor.size_bytes % ALIGNMENT))


def _write_data(file: BinaryIO, tensor: OutTensor) -> None:
    weight = tensor.make()
    assert tuple(weight.shape) == tensor.shape, "the list has been written with this shape"
    is_wide = tensor.kind.name in _WIDE_TYPES
    for piece in pieces_of(weight):
        largest = 0.0 if is_wide else abs(piece).max()
        if not largest <= _F16_MAX:  # NaN, too
            raise CheckpointError(
                f"{tensor.name}: {largest} cannot be written as {tensor.kind.name}, which goes up "
                f"to {_F16_MAX}; write F32 or BF16"
            )
        file.write(quantize(piece.reshape(-1, tensor.kind.num_elements), tensor.kind).data)


def _list(tensors: Iterable[OutTensor]) -> bytes:
    """Name, dims with the fastest first, type and offset of each tensor."""
    parts, offset = [], 0
    for tensor in tensors:
        shape = tensor.shape
        parts.append(string_to_bytes(tensor.name))
        parts.append(struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
        parts.append(struct.pack("<IQ", tensor.kind.number, offset))
        offset += -(-tensor.size_bytes // ALIGNMENT) * ALIGNMENT
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)

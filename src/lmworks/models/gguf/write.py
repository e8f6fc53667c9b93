"""GGUF files written: pairs, the list of tensors, then the data of one tensor after the other."""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from lmworks.base.storage import atomic_file
from lmworks.models.gguf.convert import quantized_pieces
from lmworks.models.gguf.layout import TensorType
from lmworks.tokenizer.gguf_metadata import ALIGNMENT, Value, head_to_bytes, string_to_bytes


class OutTensor(NamedTuple):
    """A tensor to be written."""

    name: str
    kind: TensorType
    weight: Tensor
    """Of any float dtype; its last dim is a whole number of blocks of `kind`."""

    @property
    def size_bytes(self) -> int:
        """In the file, without padding."""
        return self.kind.size_bytes(math.prod(self.weight.shape))


def write_gguf(path: str | Path, pairs: Mapping[str, Value], tensors: Sequence[OutTensor]) -> None:
    """Write a GGUF file, version 3, atomically; beside the tensors it needs a few MB of memory.

    Raises:
        StorageError: the disk is full or read-only; a file that was there before is intact.
    """
    with atomic_file(path) as part, part.open("wb") as file:
        file.write(_padded(head_to_bytes(pairs, num_tensors=len(tensors)) + _list(tensors)))
        for tensor in tensors:
            for piece in quantized_pieces(tensor.weight, tensor.kind):
                file.write(piece.data)
            file.write(bytes(-tensor.size_bytes % ALIGNMENT))


def _list(tensors: Iterable[OutTensor]) -> bytes:
    """Name, dims with the fastest first, type and offset of each tensor."""
    parts, offset = [], 0
    for tensor in tensors:
        shape = tensor.weight.shape
        parts.append(string_to_bytes(tensor.name))
        parts.append(struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
        parts.append(struct.pack("<IQ", tensor.kind.number, offset))
        offset += -(-tensor.size_bytes // ALIGNMENT) * ALIGNMENT
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)

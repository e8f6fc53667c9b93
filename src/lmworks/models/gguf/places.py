"""Where each of our weights lies in a GGUF file, and what must be done to it on the way.

A place reads its weight from the file's tensors (`load`) and makes the tensors that hold it
(`store`). Rows are moved before they are decoded, so that quantized tensors come through whole.
Shapes: H heads, D head_dim, C columns, R rank of a latent, N and V elements of a key without
position and of a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmworks.models.gguf.container import GgufFile
from lmworks.models.gguf.convert import dequantize_into

Shape = tuple[int, ...]


@runtime_checkable
class Place(Protocol):
    """One weight of ours."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors in the file that hold it, alone or with others."""

    def shape(self, theirs: Mapping[str, Shape]) -> Shape:
        """The weight's shape as it follows from the file's, right or wrong."""

    def load(self, file: GgufFile, out: Tensor) -> None:
        """Fill `out`, contiguous, of that shape and any float dtype."""

    def store(self, weight: Tensor) -> dict[str, Tensor]:
        """The tensors, or this weight's rows of them."""


@dataclass(frozen=True)
class Plain:
    """The same under another name."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def shape(self, theirs: Mapping[str, Shape]) -> Shape:
        return theirs[self.name]

    def load(self, file: GgufFile, out: Tensor) -> None:
        info = file.tensors[self.name]
        dequantize_into(partial(file.read, info), info.kind, out)

    def store(self, weight: Tensor) -> dict[str, Tensor]:
        return {self.name: weight}


@dataclass(frozen=True)
class Paired(Plain):
    """Rows of queries or keys: the file has both elements of a rotated pair side by side, we have
    element i and i + D/2."""

    num_heads: int

    def load(self, file: GgufFile, out: Tensor) -> None:
        info = file.tensors[self.name]
        half = len(out) // self.num_heads // 2
        per_head = out[0].numel() * 2 * half // info.kind.num_elements
        for head, head_out in enumerate(out.view(self.num_heads, -1)):
            rows = file.read(info, head * per_head, (head + 1) * per_head)
            pairs = rows.reshape(half, 2, -1).swapaxes(0, 1)
            halves = pairs.reshape(per_head, info.kind.block_bytes)
            dequantize_into(lambda start, stop: halves[start:stop], info.kind, head_out)  # noqa: B023

    def store(self, weight: Tensor) -> dict[str, Tensor]:
        rest = weight.shape[1:]
        pairs = weight.view(self.num_heads, 2, -1, *rest).transpose(1, 2)
        return {self.name: pairs.reshape(weight.shape)}


@dataclass(frozen=True)
class Offset(Plain):
    """A norm's factor, which we store as its offset from one."""

    def load(self, file: GgufFile, out: Tensor) -> None:
        # In fp32: a shorter format has more digits left for the offset than for the factor.
        factor = torch.empty(out.shape)
        super().load(file, factor)
        out.copy_(factor - 1)

    def store(self, weight: Tensor) -> dict[str, Tensor]:
        return {self.name: weight.float() + 1}


@dataclass(frozen=True)
class Rows(Plain):
    """Some rows of a tensor that holds several weights, one below the other."""

    first: int
    stop: int
    total: int
    """Rows of the whole tensor."""

    def shape(self, theirs: Mapping[str, Shape]) -> Shape:
        whole = theirs[self.name]
        # A tensor of other size fails with its own shape in the message.
        return (self.stop - self.first, *whole[1:]) if whole[0] == self.total else whole

    def load(self, file: GgufFile, out: Tensor) -> None:
        info = file.tensors[self.name]
        per_row = out[0].numel() // info.kind.num_elements
        dequantize_into(partial(file.read, info), info.kind, out, first=self.first * per_row)


@dataclass(frozen=True)
class LatentUp:
    """What makes keys and values from a latent, (H (N + V), R): the file has the keys' part
    transposed, (H, R, N), as decoding without keys wants it, and the values' as (H, V, R)."""

    keys: str
    values: str
    num_heads: int
    nope_dim: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.keys, self.values

    def shape(self, theirs: Mapping[str, Shape]) -> Shape:
        keys, values = theirs[self.keys], theirs[self.values]
        if (
            len(keys) != 3
            or values != (self.num_heads, *values[1:2], keys[1])
            or keys[0] != values[0]
        ):
            return keys + values  # wrong, and says what is there
        return (self.num_heads * (keys[2] + values[1]), keys[1])

    def load(self, file: GgufFile, out: Tensor) -> None:
        keys, values = file.tensors[self.keys], file.tensors[self.values]
        _, rank, nope_dim = keys.shape
        part = torch.empty(rank, nope_dim)
        out_HDR = out.view(self.num_heads, -1, rank)
        for head, out_DR in enumerate(out_HDR):
            first = head * part.numel() // keys.kind.num_elements
            dequantize_into(partial(file.read, keys), keys.kind, part, first=first)
            out_DR[:nope_dim] = part.T
            first = head * out_DR[nope_dim:].numel() // values.kind.num_elements
            dequantize_into(partial(file.read, values), values.kind, out_DR[nope_dim:], first=first)

    def store(self, weight: Tensor) -> dict[str, Tensor]:
        heads = weight.view(self.num_heads, -1, weight.shape[1])
        return {
            self.keys: heads[:, : self.nope_dim].transpose(1, 2),
            self.values: heads[:, self.nope_dim :],
        }

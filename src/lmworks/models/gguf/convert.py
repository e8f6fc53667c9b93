"""Tensors of any GGUF type to fp32 and back, in pieces, so that memory stays bounded.

The pieces fit a core's cache; nothing of a tensor's own size is allocated but the result.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lmworks.models.gguf import blocks32, blocks256, floats
from lmworks.models.gguf.bits import F32Array, U8Array
from lmworks.models.gguf.layout import TensorType

_READ: Final[Mapping[str, Callable[[U8Array], F32Array]]] = {
    "F32": floats.from_f32,
    "F16": floats.from_f16,
    "BF16": floats.from_bf16,
    "Q4_0": blocks32.from_q4_0,
    "Q4_1": blocks32.from_q4_1,
    "Q5_0": blocks32.from_q5_0,
    "Q5_1": blocks32.from_q5_1,
    "Q8_0": blocks32.from_q8_0,
    "MXFP4": blocks32.from_mxfp4,
    "Q2_K": blocks256.from_q2_k,
    "Q3_K": blocks256.from_q3_k,
    "Q4_K": blocks256.from_q4_k,
    "Q5_K": blocks256.from_q5_k,
    "Q6_K": blocks256.from_q6_k,
}
_WRITE: Final[Mapping[str, Callable[[F32Array], U8Array]]] = {
    "F32": floats.to_f32,
    "F16": floats.to_f16,
    "BF16": floats.to_bf16,
    "Q8_0": blocks32.to_q8_0,
    "Q4_0": blocks32.to_q4_0,
    "Q4_1": blocks32.to_q4_1,
}
WRITABLE_TYPES: Final = tuple(_WRITE)
_PIECE_ELEMENTS: Final = 2**17


def dequantize(blocks_NB: U8Array, kind: TensorType) -> F32Array:
    """The numbers in some blocks, shape (N, elements of a block), all at once."""
    # A forged scale may be infinite or NaN: the result then is, too, as in ggml.
    with np.errstate(all="ignore"):
        return _READ[kind.name](blocks_NB)


def quantize(values_NE: F32Array, kind: TensorType) -> U8Array:
    """Blocks of numbers, shape (N, bytes of a block), all at once."""
    return _WRITE[kind.name](values_NE)


def dequantize_into(
    read: Callable[[int, int], U8Array], kind: TensorType, out: Tensor, *, first: int = 0
) -> None:
    """Fill `out`, contiguous and of any float dtype, from block `first` on.

    `read(start, stop)` gives blocks; it is asked for a piece at a time.
    """
    flat = out.view(-1)
    for start in range(0, len(flat), _PIECE_ELEMENTS):
        piece = flat[start : start + _PIECE_ELEMENTS]
        block = first + start // kind.num_elements
        values = dequantize(read(block, block + len(piece) // kind.num_elements), kind)
        piece.copy_(torch.from_numpy(values.reshape(-1)))


def pieces_of(weight: Tensor) -> Iterator[F32Array]:
    """A tensor's numbers in order, in fp32, piece after piece; pieces are whole blocks."""
    flat = weight.detach().reshape(-1)
    for start in range(0, len(flat), _PIECE_ELEMENTS):
        piece: F32Array = flat[start : start + _PIECE_ELEMENTS].to("cpu", torch.float32).numpy()
        yield piece

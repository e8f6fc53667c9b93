"""Formats with blocks of 256 elements in groups with scales of their own: Q2_K to Q6_K.

    Q2_K, Q4_K, Q5_K   (scale * scales[g]) * q - minimum * minima[g]
    Q3_K, Q6_K         (scale * scales[g]) * q, q and scales signed

Groups are 16 elements, in Q4_K and Q5_K 32. All arithmetic is fp32 in ggml's order, so that results
are equal bit for bit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmworks.models.gguf.bits import F32Array, U8Array, column, fp32, unpack
from lmworks.models.gguf.layout import TENSOR_TYPES


def from_q2_k(blocks_NB: U8Array) -> F32Array:
    """Group scales and minima are the lower and upper halves of `scales`."""
    block = _fields("Q2_K", blocks_NB)
    scales = column(block["scale"]) * fp32(block["scales"] & 0xF)
    minima = column(block["minimum"]) * fp32(block["scales"] >> 4)
    return _grouped(unpack(block["low"], bits=2, run=32), scales, minima)


def from_q3_k(blocks_NB: U8Array) -> F32Array:
    """q is low - 4, or low where the bit in `high` is set; group scales are 6 bits, minus 32."""
    block = _fields("Q3_K", blocks_NB)
    low_scales = unpack(block["scales"][:, :8], bits=4, run=8)
    high_scales = unpack(block["scales"][:, 8:], bits=2, run=4)
    six_bits = low_scales | (high_scales << np.uint8(4))
    scales = column(block["scale"]) * fp32(six_bits.view(np.int8) - np.int8(32))
    is_small = unpack(block["high"], bits=1, run=32) ^ np.uint8(1)
    q = unpack(block["low"], bits=2, run=32).view(np.int8) - (is_small << np.uint8(2)).view(np.int8)
    return _grouped(q, scales)


def from_q4_k(blocks_NB: U8Array) -> F32Array:
    """Eight groups of 32."""
    block = _fields("Q4_K", blocks_NB)
    return _grouped(unpack(block["low"], bits=4, run=32), *_scales_and_minima(block))


def from_q5_k(blocks_NB: U8Array) -> F32Array:
    """As Q4_K, with a fifth bit."""
    block = _fields("Q5_K", blocks_NB)
    high = unpack(block["high"], bits=1, run=32)
    q = unpack(block["low"], bits=4, run=32) | (high << np.uint8(4))
    return _grouped(q, *_scales_and_minima(block))


def from_q6_k(blocks_NB: U8Array) -> F32Array:
    """q is 6 bits, minus 32; group scales are signed bytes."""
    block = _fields("Q6_K", blocks_NB)
    high = unpack(block["high"], bits=2, run=32)
    six_bits = unpack(block["low"], bits=4, run=64) | (high << np.uint8(4))
    scales = column(block["scale"]) * fp32(block["scales"])
    return _grouped(six_bits.view(np.int8) - np.int8(32), scales)


def _fields(name: str, blocks_NB: U8Array) -> NDArray[Any]:
    return blocks_NB.view(TENSOR_TYPES[name].block)[:, 0]


def _grouped(
    q_NE: NDArray[np.generic], scales_NG: F32Array, minima_NG: F32Array | None = None
) -> F32Array:
    """Each group's scale times its elements, less its minimum."""
    q_NGE = fp32(q_NE).reshape(*scales_NG.shape, -1)
    values = scales_NG[..., None] * q_NGE
    if minima_NG is not None:
        values -= minima_NG[..., None]
    return values.reshape(len(q_NE), -1)


def _scales_and_minima(block: NDArray[Any]) -> tuple[F32Array, F32Array]:
    """Eight 6-bit scales and minima in 12 bytes, and the block's own multiplied onto them.

    Bytes 0 to 3 hold scales 0 to 3 and in their upper two bits the upper bits of scales 4 to 7;
    bytes 4 to 7 do the same for minima; bytes 8 to 11 hold the lower four bits of scales and minima
    4 to 7.
    """
    first, second, rest = np.split(block["scales"], 3, axis=1)
    scales = np.hstack([first & 0x3F, (rest & 0xF) | ((first >> 2) & 0x30)])
    minima = np.hstack([second & 0x3F, (rest >> 4) | ((second >> 2) & 0x30)])
    return column(block["scale"]) * fp32(scales), column(block["minimum"]) * fp32(minima)

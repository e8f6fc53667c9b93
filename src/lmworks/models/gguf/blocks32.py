"""Formats with blocks of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4.

    Q4_0, Q5_0   scale * (q - 8), scale * (q - 16)
    Q4_1, Q5_1   scale * q + minimum
    Q8_0         scale * q, q signed
    MXFP4        2^(exponent - 127) * E2M1

All arithmetic is fp32 in ggml's order, so that results are equal bit for bit. Where ggml's rounding
would depend on the compiler (a fused multiply-add in Q4_0), it is that without fusion.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lmworks.models.gguf.bits import F32Array, U8Array, column, fp32, pack_nibbles, unpack
from lmworks.models.gguf.layout import TENSOR_TYPES

# 4-bit floats with 1 sign, 2 exponent and 1 mantissa bit (OCP MX 1.0, section 5.3.3), doubled.
_E2M1_DOUBLED: Final = fp32(np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]))


def from_q4_0(blocks_NB: U8Array) -> F32Array:
    """scale * (q - 8)."""
    block = _fields("Q4_0", blocks_NB)
    q = unpack(block["low"], bits=4, run=16).view(np.int8) - np.int8(8)
    return column(block["scale"]) * fp32(q)


def from_q4_1(blocks_NB: U8Array) -> F32Array:
    """scale * q + minimum."""
    block = _fields("Q4_1", blocks_NB)
    q = unpack(block["low"], bits=4, run=16)
    return column(block["scale"]) * fp32(q) + column(block["minimum"])


def from_q5_0(blocks_NB: U8Array) -> F32Array:
    """scale * (q - 16)."""
    block = _fields("Q5_0", blocks_NB)
    return column(block["scale"]) * fp32(_five_bits(block).view(np.int8) - np.int8(16))


def from_q5_1(blocks_NB: U8Array) -> F32Array:
    """scale * q + minimum."""
    block = _fields("Q5_1", blocks_NB)
    return column(block["scale"]) * fp32(_five_bits(block)) + column(block["minimum"])


def from_q8_0(blocks_NB: U8Array) -> F32Array:
    """scale * q."""
    block = _fields("Q8_0", blocks_NB)
    return fp32(block["low"]) * column(block["scale"])


def from_mxfp4(blocks_NB: U8Array) -> F32Array:
    """2^(exponent - 128) * the doubled 4-bit float."""
    block = _fields("MXFP4", blocks_NB)
    exponent = block["exponent"].astype(np.uint32)
    # The bits of an fp32; the two smallest powers are denormal.
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - 1) << 23)
    power = bits.astype(np.uint32).view(np.float32)
    return column(power) * _E2M1_DOUBLED[unpack(block["low"], bits=4, run=16)]


def to_q4_0(values_NE: F32Array) -> U8Array:
    """scale = -extreme / 8, so that the element of largest magnitude is exact at q = 0."""
    extreme = np.take_along_axis(values_NE, abs(values_NE).argmax(axis=1, keepdims=True), axis=1)
    scale = extreme / np.float32(-8)
    with np.errstate(invalid="ignore"):
        q = np.trunc(values_NE * _inverse(scale) + np.float32(8.5))
    return _packed("Q4_0", scale=scale, low=pack_nibbles(_clipped(q)))


def to_q4_1(values_NE: F32Array) -> U8Array:
    """15 equal steps from the smallest to the largest element."""
    minimum = values_NE.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (values_NE.max(axis=1, keepdims=True) - minimum) / np.float32(15)
        q = np.trunc((values_NE - minimum) * _inverse(scale) + np.float32(0.5))
    return _packed("Q4_1", scale=scale, minimum=minimum, low=pack_nibbles(_clipped(q)))


def to_q8_0(values_NE: F32Array) -> U8Array:
    """scale = largest magnitude / 127; halves are rounded away from zero."""
    scale = abs(values_NE).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore"):
        scaled = values_NE * _inverse(scale)
        magnitude = abs(scaled)
        whole = np.floor(magnitude)
        rounded = np.copysign(whole + np.floor(2 * (magnitude - whole)), scaled)
        return _packed("Q8_0", scale=scale, low=rounded.astype(np.int8))


def _fields(name: str, blocks_NB: U8Array) -> NDArray[Any]:
    return blocks_NB.view(TENSOR_TYPES[name].block)[:, 0]


def _five_bits(block: NDArray[Any]) -> U8Array:
    high = unpack(block["high"], bits=1, run=1)
    return unpack(block["low"], bits=4, run=16) | (high << np.uint8(4))


def _inverse(scale: F32Array) -> F32Array:
    """1 / scale, and 0 for blocks of zeros."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _clipped(q: F32Array) -> U8Array:
    with np.errstate(invalid="ignore"):
        return q.astype(np.uint8).clip(0, 15)


def _packed(name: str, **parts: NDArray[Any]) -> U8Array:
    blocks = np.empty(len(parts["low"]), TENSOR_TYPES[name].block)
    with np.errstate(over="ignore"):
        for part, values in parts.items():
            blocks[part] = values if part == "low" else values[:, 0]
    return blocks.view(np.uint8).reshape(len(blocks), -1)

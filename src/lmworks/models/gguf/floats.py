"""F32, F16 and BF16: blocks of one number.

Rounding is to the nearest, ties to even; BF16 keeps NaNs quiet, as ggml does. Values beyond F16's
largest, 65504, become infinite.
"""

import numpy as np

from lmworks.models.gguf.bits import F32Array, U8Array, fp32


def from_f32(blocks_NB: U8Array) -> F32Array:
    """Bytes seen as fp32."""
    return blocks_NB.view("<f4")


def to_f32(values_N1: F32Array) -> U8Array:
    """Bytes of fp32."""
    return np.ascontiguousarray(values_N1, "<f4").view(np.uint8)


def from_f16(blocks_NB: U8Array) -> F32Array:
    """IEEE half precision."""
    return fp32(blocks_NB.view("<f2"))


def to_f16(values_N1: F32Array) -> U8Array:
    """IEEE half precision."""
    with np.errstate(over="ignore"):
        return values_N1.astype("<f2").view(np.uint8)


def from_bf16(blocks_NB: U8Array) -> F32Array:
    """The upper half of an fp32."""
    return (blocks_NB.view("<u2").astype(np.uint32) << 16).view(np.float32)


def to_bf16(values_N1: F32Array) -> U8Array:
    """The upper half of the nearest fp32 that has no lower half."""
    bits = np.ascontiguousarray(values_N1, np.float32).view(np.uint32)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    quiet_nan = (bits >> 16) | 0x40
    tie_to_even = (bits >> 16) & 1
    with np.errstate(over="ignore"):
        rounded = (bits + (0x7FFF + tie_to_even)) >> 16
    return np.where(is_nan, quiet_nan, rounded).astype("<u2").view(np.uint8)

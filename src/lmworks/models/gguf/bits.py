"""Fields of bits out of bytes and into them, for all blocks of a tensor at once."""

import numpy as np
from numpy.typing import NDArray

U8Array = NDArray[np.uint8]
F32Array = NDArray[np.float32]


def unpack(packed_NB: U8Array, *, bits: int, run: int) -> U8Array:
    """Fields of `bits` bits in ggml's order, shape (N, B * 8 / bits).

    Every `run` bytes first give their lowest fields, then their next ones, and so on.
    """
    num_blocks = len(packed_NB)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = (packed_NB.reshape(num_blocks, -1, 1, run) >> shifts) & np.uint8(2**bits - 1)
    return fields.reshape(num_blocks, -1)


def pack_nibbles(fields_NE: U8Array) -> U8Array:
    """The inverse for 4-bit fields whose `run` is the whole block: shape (N, E / 2)."""
    low, high = np.split(fields_NE, 2, axis=1)
    return low | (high << np.uint8(4))


def fp32(values: NDArray[np.generic]) -> F32Array:
    """The same numbers in fp32."""
    return values.astype(np.float32)


def column(values_N: NDArray[np.generic]) -> F32Array:
    """One fp32 number per block, shape (N, 1)."""
    return fp32(values_N)[:, None]

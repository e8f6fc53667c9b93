"""How ggml lays out tensors: the one table of types, their numbers and their blocks.

Rows are cut into blocks of `num_elements` neighbours; a block is `block.itemsize` bytes, its fields
packed without gaps, little-endian (ggml, ggml-common.h). Field names are the same everywhere:
`scale` and `minimum` multiply or shift a whole block, `scales` those of its groups, `low` holds the
lowest bits of the elements (2 or 4 each), `high` the bits above them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np


class TensorType(NamedTuple):
    """One way of storing numbers."""

    name: str
    """As everyone writes it, in capitals: "Q8_0"."""
    number: int
    """In the file."""
    num_elements: int
    """Of a block; a row is a whole number of blocks."""
    block: np.dtype[Any]
    """The bytes of a block."""

    @property
    def block_bytes(self) -> int:
        """Size of a block."""
        return int(self.block.itemsize)

    def size_bytes(self, num_elements: int) -> int:
        """Of `num_elements` elements, which are whole blocks."""
        return num_elements // self.num_elements * self.block_bytes


def _block(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype(list(fields))


F16, U8, I8 = "<f2", "u1", "i1"

_TYPES: Final = (
    TensorType("F32", 0, 1, _block(("value", "<f4"))),
    TensorType("F16", 1, 1, _block(("value", F16))),
    TensorType("BF16", 30, 1, _block(("value", "<u2"))),
    # Blocks of 32. Element i is the lower half of byte i, element i + 16 the upper half.
    TensorType("Q4_0", 2, 32, _block(("scale", F16), ("low", U8, 16))),
    TensorType("Q4_1", 3, 32, _block(("scale", F16), ("minimum", F16), ("low", U8, 16))),
    # The fifth bit of element i is bit i % 8 of byte i / 8 of `high`.
    TensorType("Q5_0", 6, 32, _block(("scale", F16), ("high", U8, 4), ("low", U8, 16))),
    TensorType(
        "Q5_1", 7, 32, _block(("scale", F16), ("minimum", F16), ("high", U8, 4), ("low", U8, 16))
    ),
    TensorType("Q8_0", 8, 32, _block(("scale", F16), ("low", I8, 32))),
    # Microscaling (OCP MX specification 1.0): a power of two and 4-bit floats.
    TensorType("MXFP4", 39, 32, _block(("exponent", U8), ("low", U8, 16))),
    # Blocks of 256 ("K-quants"), in groups of 16 or 32 with scales of their own.
    TensorType(
        "Q2_K",
        10,
        256,
        _block(("scales", U8, 16), ("low", U8, 64), ("scale", F16), ("minimum", F16)),
    ),
    TensorType(
        "Q3_K",
        11,
        256,
        _block(("high", U8, 32), ("low", U8, 64), ("scales", U8, 12), ("scale", F16)),
    ),
    TensorType(
        "Q4_K",
        12,
        256,
        _block(("scale", F16), ("minimum", F16), ("scales", U8, 12), ("low", U8, 128)),
    ),
    TensorType(
        "Q5_K",
        13,
        256,
        _block(
            ("scale", F16), ("minimum", F16), ("scales", U8, 12), ("high", U8, 32), ("low", U8, 128)
        ),
    ),
    TensorType(
        "Q6_K",
        14,
        256,
        _block(("low", U8, 128), ("high", U8, 64), ("scales", I8, 16), ("scale", F16)),
    ),
)
TENSOR_TYPES: Final[Mapping[str, TensorType]] = {kind.name: kind for kind in _TYPES}
TYPE_OF_NUMBER: Final[Mapping[int, TensorType]] = {kind.number: kind for kind in _TYPES}

UNSUPPORTED: Final[Mapping[int, str]] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
"""Names of types that ggml has and this does not read, for error messages."""

"""Number formats of GGUF equal gguf-py's, bit for bit, on random blocks and on awkward values."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmworks.models.gguf import convert
from lmworks.models.gguf.layout import TENSOR_TYPES, UNSUPPORTED

gguf = pytest.importorskip("gguf")


def theirs(name: str) -> Any:
    return gguf.GGMLQuantizationType[name]


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_the_table_of_layouts_is_ggmls(name: str) -> None:
    kind = TENSOR_TYPES[name]
    assert kind.number == theirs(name).value
    assert (kind.num_elements, kind.block_bytes) == gguf.GGML_QUANT_SIZES[theirs(name)]


def test_unsupported_types_have_their_names() -> None:
    assert all(theirs(name).value == number for number, name in UNSUPPORTED.items())


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_any_bytes_are_read_as_gguf_py_reads_them(name: str) -> None:
    """Random scales hold infinities, NaNs, denormals and negative numbers."""
    kind = TENSOR_TYPES[name]
    rng = np.random.default_rng(0)
    # Single numbers are drawn until every F16 has probably come up.
    num_blocks = 2**19 if kind.num_elements == 1 else 2**13
    blocks = rng.integers(0, 256, (num_blocks, kind.block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:256, 0] = np.arange(256)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(blocks, theirs(name))
    found = convert.dequantize(blocks, kind)
    is_nan = np.isnan(wanted)
    assert name == "MXFP4" or is_nan.any()
    np.testing.assert_array_equal(np.isnan(found), is_nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~is_nan], wanted.view(np.uint32)[~is_nan])


def _normal(rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.standard_normal((512, 256)).astype(np.float32)


def _ties(rng: np.random.Generator) -> NDArray[np.float32]:
    """Halves of steps, repeated extremes, zeros of both signs and blocks of zeros."""
    values = np.round(_normal(rng) * 4) / 4
    values[:8] = 0
    values[8:16, ::3] = -0.0
    return values


def _wide(rng: np.random.Generator) -> NDArray[np.float32]:
    """From scales that are denormal in F16 to those that are infinite in it."""
    exponents = rng.uniform(-12, 9, (512, 1)).astype(np.float32)
    return _normal(rng) * np.float32(10) ** exponents


@pytest.mark.parametrize("draw", [_normal, _ties, _wide])
@pytest.mark.parametrize("name", convert.WRITABLE_TYPES)
def test_numbers_are_written_as_gguf_py_writes_them(name: str, draw: Any) -> None:
    kind = TENSOR_TYPES[name]
    values = draw(np.random.default_rng(1))
    with np.errstate(all="ignore"):
        wanted = gguf.quants.quantize(values, theirs(name)).view(np.uint8)
    found = convert.quantize(values.reshape(-1, kind.num_elements), kind)
    np.testing.assert_array_equal(found.reshape(-1), wanted.reshape(-1))


def test_bf16_rounds_every_kind_of_number_as_gguf_py() -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, (1024, 256), dtype=np.uint32)
    values = bits.view(np.float32)
    wanted = gguf.quants.quantize(values, theirs("BF16")).view(np.uint8)
    found = convert.quantize(values.reshape(-1, 1), TENSOR_TYPES["BF16"])
    np.testing.assert_array_equal(found.reshape(-1), wanted.reshape(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_0", "Q6_K"])
def test_pieces_make_up_the_whole(name: str, dtype: torch.dtype) -> None:
    """A tensor of more than one piece, the last of them short."""
    kind = TENSOR_TYPES[name]
    num_blocks = 3 * 2**16 // kind.num_elements + 5
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 64, (num_blocks, kind.block_bytes), dtype=np.uint8)
    out = torch.empty(num_blocks * kind.num_elements, dtype=dtype)
    convert.dequantize_into(lambda start, stop: blocks[start:stop], kind, out)
    wanted = torch.from_numpy(convert.dequantize(blocks, kind).reshape(-1).copy())
    torch.testing.assert_close(out, wanted.to(dtype), rtol=0, atol=0)


def test_written_pieces_are_the_whole_in_order() -> None:
    weight = torch.randn(3, 2**16 + 32, generator=torch.Generator().manual_seed(0))
    pieces = list(convert.pieces_of(weight))
    assert len(pieces) == 2
    assert len(pieces[0]) % 256 == 0
    np.testing.assert_array_equal(np.concatenate(pieces), weight.numpy().reshape(-1))

"""safetensors files: equal to the library's on good ones, an error on all others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmworks.base.errors import CheckpointError
from lmworks.models.tensor_file import COPY_BYTES, Header, TensorFile, header_of, write_tensors

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)


def write(file: Path, header: Any, data: bytes = b"", *, size: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if size is None else size
    file.write_bytes(length.to_bytes(8, "little") + text + data)


def entry(begin: int, end: int, **values: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]} | values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4), (4, 0)])
def test_files_of_the_library_are_read(tmp_path, dtype, shape):
    tensors = {"a": some(dtype, *shape), "b.c": some(torch.float32, 2, 2)}
    save_file(tensors, tmp_path / "x", metadata={"format": "pt"})
    with TensorFile(tmp_path / "x") as file:
        assert file.headers == {name: header_of(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            out = torch.empty(tensor.shape, dtype=tensor.dtype)
            file.read_into(name, out)
            assert torch.equal(out.double(), tensor.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_library_reads_what_is_written(tmp_path, dtype):
    tensors = {"odd": some(torch.uint8, 3), "a": some(dtype, 3, 5), "t": some(dtype, 5, 2).T}
    headers = {name: header_of(tensor) for name, tensor in tensors.items()}
    write_tensors(tmp_path / "x", headers, tensors.__getitem__, metadata={"format": "pt"})
    found = load_file(tmp_path / "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name].double(), tensor.double())


def test_values_are_converted_into_any_view(tmp_path):
    tensor = some(torch.float32, 700, 3000)  # more than one buffer of COPY_BYTES
    assert tensor.nbytes > COPY_BYTES
    save_file({"a": tensor}, tmp_path / "x")
    out = torch.empty(3000, 700, dtype=torch.bfloat16)
    cut = torch.empty(700, 100)
    with TensorFile(tmp_path / "x") as file:
        file.read_into("a", out.T)
        file.read_into("a", cut, part=(slice(None), slice(50, 150)))
        few = torch.empty(5, 3000)
        file.read_into("a", few, part=(slice(690, 695),))
    assert torch.equal(out, tensor.T.bfloat16())
    assert torch.equal(cut, tensor[:, 50:150])
    assert torch.equal(few, tensor[690:695])


HOSTILE: dict[str, tuple[Any, bytes]] = {
    "no object": ([], b""),
    "not JSON": (b"{", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "NaN": (b'{"a": NaN}', b""),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "long number": (b'{"a": ' + b"9" * 10_000 + b"}", b""),
    "leading space": (b" {}", b""),
    "names twice": (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        bytes(8),
    ),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "another key": ({"a": entry(0, 4, x=1)}, bytes(4)),
    "not an object": ({"a": 3}, b""),
    "unknown dtype": ({"a": entry(0, 4, dtype="F31")}, bytes(4)),
    "dtype of another type": ({"a": entry(0, 4, dtype=["F32"])}, bytes(4)),
    "negative dim": ({"a": entry(0, 4, shape=[-1])}, bytes(4)),
    "two negative dims": ({"a": entry(0, 4, shape=[-1, -1])}, bytes(4)),
    "true dim": ({"a": entry(0, 4, shape=[True])}, bytes(4)),
    "text for dims": ({"a": entry(0, 4, shape="1")}, bytes(4)),
    "fraction": ({"a": entry(0, 4, shape=[1.0])}, bytes(4)),
    "huge dim": ({"a": entry(0, 4, shape=[2**63])}, bytes(4)),
    "product wraps around": ({"a": entry(0, 4, shape=[2**32, 2**32, 1])}, bytes(4)),
    "many dims": ({"a": entry(0, 4, shape=[1] * 10_000)}, bytes(4)),
    "huge by nothing": ({"a": entry(0, 0, shape=[2**60, 0])}, b""),
    "larger than its data": ({"a": entry(0, 4, shape=[2])}, bytes(4)),
    "one offset": ({"a": entry(0, 4, data_offsets=[0])}, bytes(4)),
    "backwards": ({"a": entry(0, 4, shape=[0], data_offsets=[4, 0])}, bytes(4)),
    "negative offset": ({"a": entry(0, 4, data_offsets=[-4, 0])}, bytes(4)),
    "beyond the end": ({"a": entry(0, 8)}, bytes(4)),
    "overlap": ({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
    "same data": ({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)),
    "gap": ({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)),
    "data left over": ({"a": entry(0, 4)}, bytes(5)),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b""),
    "metadata of another type": ({"__metadata__": 3}, b""),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused(tmp_path, case):
    write(tmp_path / "x", *HOSTILE[case])
    with pytest.raises(CheckpointError, match=r"x: truncated or not a safetensors file \("):
        TensorFile(tmp_path / "x")


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 10**8 + 1, 3])
def test_header_sizes_beyond_the_file_are_refused(tmp_path, size):
    write(tmp_path / "x", b"{}", size=size)
    with pytest.raises(CheckpointError, match="a header of"):
        TensorFile(tmp_path / "x")


@pytest.mark.parametrize("length", range(0, 90, 7))
def test_every_truncation_is_refused(tmp_path, length):
    save_file({"a": some(torch.float32, 2)}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(data[: min(length, len(data) - 1)])
    with pytest.raises(CheckpointError):
        TensorFile(tmp_path / "x")


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    save_file({"a": some(torch.float32, 1000)}, tmp_path / "x")
    with TensorFile(tmp_path / "x") as file:
        with (tmp_path / "x").open("r+b") as other:
            other.truncate(2000)
        with pytest.raises(CheckpointError, match="truncated while it was read"):
            file.read_into("a", torch.empty(1000))


def test_pipes_and_folders_are_not_opened(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="missing"):
            TensorFile(path)


def test_a_tensor_of_another_shape_than_announced_is_a_bug(tmp_path):
    with pytest.raises(ValueError, match="announced"):
        write_tensors(tmp_path / "x", {"a": Header((2,), torch.float32)}, lambda _: torch.zeros(3))

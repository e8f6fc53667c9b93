"""GGUF containers: what is written is read, by others too; what cannot be right is refused."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lmworks.base.errors import CheckpointError, DataError, LmworksError
from lmworks.models.gguf import convert
from lmworks.models.gguf.container import GgufFile, open_gguf
from lmworks.models.gguf.layout import TENSOR_TYPES
from lmworks.models.gguf.write import OutTensor, write_gguf
from lmworks.tokenizer.gguf_metadata import Value

PAIRS: dict[str, Value] = {"general.architecture": "llama", "llama.block_count": 2}


def tensors(names: str = "ab") -> list[OutTensor]:
    """F32 and Q8_0 alternate."""
    generator = torch.Generator().manual_seed(0)
    kinds = [TENSOR_TYPES["F32"], TENSOR_TYPES["Q8_0"]]
    weights = [torch.randn(3, 64, generator=generator) for _ in names]
    return [
        OutTensor(name, (3, 64), kinds[i % 2], partial(weights.__getitem__, i))
        for i, name in enumerate(names)
    ]


def dequantized(file: GgufFile, name: str) -> torch.Tensor:
    info = file.tensors[name]
    out = torch.empty(info.shape)
    convert.dequantize_into(partial(file.read, info), info.kind, out)
    return out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_gguf(path, PAIRS, tensors())
    return path


def test_written_tensors_are_read(model: Path) -> None:
    with open_gguf(model) as file:
        assert file.pairs == PAIRS
        assert {name: info.shape for name, info in file.tensors.items()} == {
            "a": (3, 64),
            "b": (3, 64),
        }
        a, b = (tensor.make() for tensor in tensors())
        torch.testing.assert_close(dequantized(file, "a"), a, rtol=0, atol=0)
        # Q8_0 rounds to steps of the largest magnitude / 127; fp16 rounds the step.
        torch.testing.assert_close(dequantized(file, "b"), b, rtol=0, atol=4 / 127)


def test_gguf_py_reads_what_is_written(model: Path) -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(model).tensors}
    with open_gguf(model) as file:
        assert list(theirs) == list(file.tensors)
        for name, info in file.tensors.items():
            assert theirs[name].data_offset == info.offset
            assert tuple(theirs[name].shape[::-1]) == info.shape
            np.testing.assert_array_equal(
                theirs[name].data.view(np.uint8).reshape(-1), file.map(info).reshape(-1)
            )


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_files_of_gguf_py_are_read(tmp_path: Path, alignment: int) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    values = {f"t{i}": np.arange(i + 3, dtype=np.float32).reshape(1, -1) for i in range(4)}
    for name, value in values.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as file:
        assert file.pairs["general.alignment"] == alignment
        for name, value in values.items():
            np.testing.assert_array_equal(dequantized(file, name).numpy(), value)


def test_version_2_is_read(model: Path) -> None:
    data = bytearray(model.read_bytes())
    data[4] = 2
    model.write_bytes(data)
    with open_gguf(model) as file:
        assert len(file.tensors) == 2


def test_big_endian_is_refused_by_name(model: Path) -> None:
    data = bytearray(model.read_bytes())
    data[4:8] = (3).to_bytes(4, "big")
    model.write_bytes(data)
    with pytest.raises(DataError, match="big-endian"):
        open_gguf(model)


def test_mapped_blocks_outlive_the_file_object(model: Path) -> None:
    with open_gguf(model) as file:
        info = file.tensors["b"]
        mapped, copied = file.map(info), file.read(info, 0, 6)
    np.testing.assert_array_equal(mapped, copied)


def test_a_file_that_shrinks_is_an_error(model: Path) -> None:
    with open_gguf(model) as file:
        model.write_bytes(model.read_bytes()[:-64])
        with pytest.raises(DataError, match="became shorter"):
            file.read(file.tensors["b"], 0, 6)


# ---- lists that cannot be right ----


def forged(
    shape: tuple[int, ...] = (64,), kind: int = 0, offset: int = 0, name: str = "a"
) -> bytes:
    return struct.pack(
        f"<Q{len(name)}sI{len(shape)}QIQ",
        len(name), name.encode(), len(shape), *shape[::-1], kind, offset,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("infos", "reason"),
    [
        ([forged((2**40, 2**40))], "ends at byte"),
        ([forged((2**63, 2**63, 2**63, 2**63))], "ends at byte"),
        ([forged((0,))], "must be at least 1"),
        ([forged(())], "0 dims"),
        ([forged((1,) * 5)], "5 dims"),
        ([forged((33,), 8)], "multiple of 32"),
        ([forged((128,), 14)], "multiple of 256"),
        ([forged(kind=16)], "IQ2_XXS"),
        ([forged(kind=4)], "unknown"),
        ([forged(kind=2**32 - 1)], "unknown"),
        ([forged(offset=4)], "not a multiple of general.alignment=32"),
        ([forged(offset=2**64 - 32)], "ends at byte"),
        ([forged(), forged(name="b")], "overlap"),
        ([forged(), forged(name="b", offset=128)], "overlap"),
        ([forged(), forged(offset=256)], "there twice"),
    ],
)
def test_impossible_tensors_are_refused(tmp_path: Path, infos: list[bytes], reason: str) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), 0) + b"".join(infos)
    path = tmp_path / "forged.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(1024))
    with pytest.raises(CheckpointError, match=reason):
        open_gguf(path)


def test_more_tensors_than_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "forged.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(1000))
    with pytest.raises(DataError, match="the list of tensors takes at least"):
        open_gguf(path)


@pytest.mark.parametrize("alignment", [0, 3, 2**21, True, "32", 2.0])
def test_impossible_alignments_are_refused(tmp_path: Path, alignment: Value) -> None:
    path = tmp_path / "forged.gguf"
    write_gguf(path, {"general.alignment": alignment}, tensors())
    with pytest.raises(CheckpointError, match=r"general\.alignment"):
        open_gguf(path)


def test_every_truncation_is_refused(model: Path) -> None:
    data = model.read_bytes()
    # The last tensor's data end where its padding begins.
    end = len(data) - (-tensors()[1].size_bytes % 32)
    for size in [*range(0, 200), *range(200, end, 7), end - 1]:
        model.write_bytes(data[:size])
        with pytest.raises(LmworksError):
            open_gguf(model)


def test_a_folder_or_pipe_is_refused_at_once(tmp_path: Path) -> None:
    import os

    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(DataError, match="not a file"):
            open_gguf(path)
    with pytest.raises(DataError, match="cannot be read"):
        open_gguf(tmp_path / "missing.gguf")


# ---- split models ----


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Four tensors in two files."""
    paths = [tmp_path / f"model-0000{i}-of-00002.gguf" for i in (1, 2)]
    for number, (path, names) in enumerate(zip(paths, ("ab", "cd"), strict=True)):
        split: dict[str, Value] = {
            "split.no": number, "split.count": 2, "split.tensors.count": 4,
        }  # fmt: skip
        write_gguf(path, (PAIRS if number == 0 else {}) | split, tensors(names))
    return paths


def test_all_parts_are_opened_with_the_first(parts: list[Path]) -> None:
    with open_gguf(parts[0]) as file:
        assert sorted(file.tensors) == ["a", "b", "c", "d"]
        torch.testing.assert_close(dequantized(file, "c"), tensors()[0].make(), rtol=0, atol=0)


def _drop(paths: list[Path]) -> Path:
    paths[1].unlink()
    return paths[0]


def _repeat(paths: list[Path]) -> Path:
    paths[1].write_bytes(paths[0].read_bytes())
    return paths[0]


def _rename(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("model.gguf"))


def _swap(paths: list[Path]) -> Path:
    split: dict[str, Value] = {"split.no": 1, "split.count": 2, "split.tensors.count": 4}
    write_gguf(paths[1], split, tensors("ce"[:1]))
    return paths[0]


def _double(paths: list[Path]) -> Path:
    split: dict[str, Value] = {"split.no": 1, "split.count": 2, "split.tensors.count": 4}
    write_gguf(paths[1], split, tensors("bc"))
    return paths[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda paths: paths[1], "open the first, model-00001-of-00002.gguf"),
        (_drop, "missing"),
        (_repeat, r"split\.no"),
        (_rename, "names must end in -00001-of-00002"),
        (_swap, "hold 3 of 4 tensors"),
        (_double, "there twice"),
    ],
)
def test_incomplete_splits_are_refused(
    parts: list[Path], change: Callable[[list[Path]], Path], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        open_gguf(change(parts))

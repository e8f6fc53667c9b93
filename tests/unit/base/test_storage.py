"""Files and folders are whole or absent, whatever fails."""

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lmworks.base import storage
from lmworks.base.errors import StorageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_inside(writer: AbstractContextManager[Path], name: str) -> None:
    """Write half of what was meant, then fail."""
    with writer as part:
        (part / name).write_text("half")
        raise RuntimeError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    storage.write_text(file, "é")
    storage.write_json(file, {"b": 1})
    assert file.read_text(encoding="utf-8") == '{\n  "b": 1\n}\n'
    assert names(file.parent) == ["a.txt"]


def test_a_failure_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    storage.write_text(file, "old")
    with pytest.raises(RuntimeError):
        fail_inside(storage.atomic_file(file), "")
    assert file.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with pytest.raises(RuntimeError):
        fail_inside(storage.atomic_dir(folder), "x")
    assert names(tmp_path) == []
    with storage.atomic_dir(folder) as part:
        (part / "x").write_text("whole")
        assert not folder.exists()
    assert (folder / "x").read_text() == "whole"
    assert names(tmp_path) == ["a"]


def test_a_folder_that_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("old")
    with (
        pytest.raises(StorageError, match="in the way"),
        storage.atomic_dir(tmp_path / "a") as part,
    ):
        (part / "x").write_text("new")
    assert (tmp_path / "a" / "x").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_content_is_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(storage, "fsync", synced.append)
    with storage.atomic_file(tmp_path / "a") as part:
        part.write_text("x")
    assert synced == [part, tmp_path]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "in the way"),
        (lambda path: path.parent.rmdir() or path.parent.touch(), "in the way"),
    ],
)
def test_what_stands_in_the_way_is_a_storage_error(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "folder" / "a.txt"
    path.parent.mkdir()
    make(path)
    with pytest.raises(StorageError, match=rf"could not write .*a\.txt: .*{message}"):
        storage.write_text(path, "x")


def test_a_name_that_is_too_long_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="shorter"):
        storage.write_text(tmp_path / ("x" * 300), "x")


@pytest.mark.parametrize(
    ("code", "message"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission")]
)
def test_what_the_system_refuses_is_a_storage_error(
    tmp_path: Path, code: int, message: str
) -> None:
    with pytest.raises(StorageError, match=message), storage.atomic_file(tmp_path / "a"):
        raise OSError(code, os.strerror(code))
    assert names(tmp_path) == []


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    storage.part_path(tmp_path / "a.txt").touch()
    left = storage.part_path(tmp_path / "folder")
    left.mkdir()
    (left / "x").touch()
    others = [".a.part-1", ".a.part-0123abcd.txt", "a.part-0123abcd", ".part-0123abcd"]
    for name in others:
        (tmp_path / name).touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / ".link.part-0123abcd").symlink_to(outside)
    storage.remove_parts(tmp_path)
    assert names(tmp_path) == sorted([*others, "outside"])


def test_removing_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    storage.remove_parts(tmp_path / "missing")


def test_sha256_is_that_of_the_content(tmp_path: Path) -> None:
    storage.write_bytes(tmp_path / "a", b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert storage.sha256_file(tmp_path / "a") == digest


@pytest.mark.parametrize("target", ["", ".", "/"])
def test_a_target_without_a_name_is_refused(target: str) -> None:
    with pytest.raises(StorageError, match="needs a name of its own"):
        storage.write_text(target, "text")


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (lambda: storage.write_text(pipe, "x"), lambda: storage.check_writable(pipe)):
        with pytest.raises(StorageError, match="is a device or a pipe"):
            write()
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]

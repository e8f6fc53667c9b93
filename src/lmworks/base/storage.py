"""Files that are either whole or absent: write beside the target, fsync, rename.

A reader never sees a half-written file or folder, whatever moment a process is killed or the disk
fills up. Failures become StorageError and leave what was there before.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmworks.base.errors import StorageError

_FULL_DISK = "the disk is full or a size limit was hit; free some space and run it again"
_NO_PERMISSION = "no permission to write there"
_IN_THE_WAY = "something else of that name, or of a parent's name, is in the way; choose another"
_REASONS = {
    errno.ENOSPC: _FULL_DISK,
    errno.EDQUOT: _FULL_DISK,
    errno.EFBIG: _FULL_DISK,
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: _NO_PERMISSION,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTEMPTY: _IN_THE_WAY,
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.EIO: "the device failed; choose another disk",
}
# What `part_path` makes, and nothing else: these files are deleted unasked.
_PART_NAME = re.compile(r"\..+\.part-[0-9a-f]{8}")


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success fsync it and rename it over `path`.

    On any failure the temporary file is removed and `path` keeps its old content.
    """
    path = Path(path)
    _refuse_device(path)
    part = part_path(path)
    with _storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            fsync(part)
            part.replace(path)
            fsync(path.parent)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_dir(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; on success fsync its files and rename it to `path`.

    `path` must not exist yet. On any failure the temporary folder is removed.
    """
    path = Path(path)
    part = part_path(path)
    with _storage_errors(path):
        try:
            part.mkdir(parents=True)
            yield part
            for file in sorted(part.rglob("*")):
                fsync(file)
            fsync(part)
            part.rename(path)
            fsync(path.parent)
        finally:
            if part.exists():
                shutil.rmtree(part, ignore_errors=True)


def remove_parts(folder: str | Path) -> None:
    """Delete what killed writers left directly in `folder`. Call only when no writer is alive.

    Only names that `part_path` makes count. What cannot be deleted stays: it is in nobody's way.
    """
    for part in Path(folder).glob(".*.part-*"):
        if _PART_NAME.fullmatch(part.name) is None:
            continue
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                part.unlink()


def part_path(path: Path) -> Path:
    """A new hidden name beside `path` for what is not finished; `remove_parts` knows it."""
    if not path.name:
        raise StorageError(f"could not write {str(path)!r}: the output needs a name of its own")
    return path.with_name(f".{path.name}.part-{uuid.uuid4().hex[:8]}")


def check_writable(path: str | Path) -> None:
    """StorageError if `path` could not be written: said before hours of work. Writes nothing."""
    path = Path(path)
    _refuse_device(path)
    with _storage_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        parent = path.absolute().parent
        while not os.path.lexists(parent):
            parent = parent.parent
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _refuse_device(path: Path) -> None:
    """A file renamed over a device or a pipe would take its place, for all users of it."""
    with _storage_errors(path):
        is_other = path.exists() and not path.is_file() and not path.is_dir()
    if is_other:
        raise StorageError(f"{path} is a device or a pipe, not a file; give the name of a file")


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_file(path) as part:
        part.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` to `path` atomically, as indented UTF-8 JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256_file(path: str | Path) -> str:
    """Hex SHA-256 of a file's content, read in constant memory."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Force a file's or folder's content to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as err:
        what = _REASONS.get(err.errno or 0)
        if what is None:
            raise
        raise StorageError(f"could not write {path}: {what} ({err.strerror})") from err

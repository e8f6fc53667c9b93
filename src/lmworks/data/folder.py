"""An output folder that appears whole, replaces an older one in one step, and leaves no ruins.

`storage.atomic_dir` makes a new folder whole or absent. Added here, for outputs that are large and
may be made again: replacing an existing one, and removing what a killed process left beside it.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from lmworks.base.errors import ConfigError
from lmworks.base.storage import atomic_dir, part_path
from lmworks.data.shard import MANIFEST_NAME

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def new_folder(out: str | Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a folder to fill; on success it becomes `out`, on any failure nothing is left of it.

    Raises:
        ConfigError: `out` exists and `overwrite` is false, or it does not look like our output.
    """
    out = Path(os.path.abspath(out))
    empty = out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    replace = os.path.lexists(out) and not empty
    if replace:
        _refuse_replacing(out, overwrite)
    _remove_abandoned(out)
    target = part_path(out) if replace else out
    with contextlib.ExitStack() as stack:
        with atomic_dir(target) as part:
            # The folder keeps its lock through the renames, until it stands at `out`.
            lock = os.open(part, os.O_RDONLY)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield part
        if replace:
            _exchange(target, out)
            shutil.rmtree(target)


def _refuse_replacing(out: Path, overwrite: bool) -> None:
    if not overwrite:
        raise ConfigError(
            f"{out} exists already; choose another folder, or replace it with --overwrite"
            " (overwrite=True)"
        )
    manifests = [out / MANIFEST_NAME, out / "train" / MANIFEST_NAME]
    if out.is_symlink() or not any(file.is_file() for file in manifests):
        raise ConfigError(
            f"{out} is not a folder of token shards (no {MANIFEST_NAME}), so it is not replaced;"
            " choose another folder"
        )


def _remove_abandoned(out: Path) -> None:
    """Delete unfinished outputs of the same name whose process is gone: its lock is free."""
    suffix = r"\.part-[0-9a-f]{8}"
    name = re.compile(rf"\.{re.escape(out.name)}{suffix}|\.\.{re.escape(out.name)}{suffix}{suffix}")
    for part in out.parent.glob(".*.part-*"):
        if name.fullmatch(part.name) is None or not part.is_dir():
            continue
        with contextlib.suppress(OSError):  # being written, gone meanwhile, or of another user
            lock = os.open(part, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(part)
            finally:
                os.close(lock)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step; where the system cannot, two renames, which a kill can part."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        status = renameat2(
            _AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE
        )
        if status == 0:
            return
        code = ctypes.get_errno()
        if code not in {errno.EINVAL, errno.ENOSYS, errno.EXDEV}:
            raise OSError(code, os.strerror(code), str(old))
    aside = new.with_name(new.name + "-old")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)

"""Where text comes from: files, directories, globs, URLs and standard input become `Source`s.

    sources, faults = find_sources(["books", "web/*.jsonl.zst", "s3://bucket/news.txt.gz", "-"])
    with sources[0].open() as raw: ...          # the bytes as they are, compressed or not

A directory stands for every file under it whose suffix is in SUFFIXES, in the order of their
sorted paths; hidden files and other suffixes are passed over, links to directories are followed,
once. A glob (`*`, `?`, `[...]`, `**`) stands for the files that match. A file that is named, or
matched by a glob, may have any suffix that is not known to be something else than text. URLs go
through fsspec, which knows s3, gs, https, zip and many more. What is in the bytes is the business
of documents.py and parquet.py.
"""

import glob
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from lmworks.base.errors import ConfigError, DataError
from lmworks.base.parquet import check_installed

Form = Literal["text", "jsonl", "parquet"]

SUFFIXES = (".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
COMPRESSIONS = (".gz", ".zst")
STANDARD_INPUT = "-"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_GLOB = re.compile(r"[*?\[]")
_NOT_TEXT = {
    **dict.fromkeys((".arrow", ".feather"), "write its text as .parquet or .jsonl first"),
    **dict.fromkeys((".bz2", ".xz", ".lz4", ".br"), "decompress it, or use .gz or .zst"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "unpack the archive first"),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".epub", ".odt"), "extract its text first"),
}


@dataclass(frozen=True)
class Source:
    """One file, URL or stream that holds text."""

    name: str
    """As a message names it: path, URL or `standard input`."""
    form: Form
    compression: str
    """"", ".gz" or ".zst"."""
    size_bytes: int | None
    """As stored, before decompression; None if that cannot be known."""
    version: str
    """Differs once the content has changed: modification time or entity tag; "" if unknown."""
    path: Path | None = None
    """Of a local file."""
    is_stream: bool = False
    """Can be read only once: standard input, a pipe."""
    remote: Any = field(default=None, repr=False)
    """(fsspec file system, path in it) of a URL."""

    @property
    def is_plain_file(self) -> bool:
        """A local file whose bytes are the text."""
        return (
            self.path is not None
            and not self.is_stream
            and self.form == "text"
            and not self.compression
        )

    def open(self) -> IO[bytes]:
        """The stored bytes, as long as this object lives; DataError if there is no way to them."""
        try:
            if self.remote is not None:
                system, path = self.remote
                remote_file: IO[bytes] = system.open(path, "rb")
                return remote_file
            if self.path is not None:
                return self.path.open("rb")
            if sys.stdin is None:
                raise DataError(f"{self.name}: cannot be read (it is closed)")
            # A copy, so that closing the source leaves the process's standard input alone.
            return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
        except OSError as err:
            raise DataError(f"{self.name}: cannot be read ({_reason(err)})") from None
        except Exception as err:
            if self.remote is None:
                raise
            # Every file system of fsspec has errors of its own.
            raise DataError(f"{self.name}: cannot be read ({_reason(err)})") from err

    def check_unchanged(self) -> None:
        """DataError if the file is another one than when it was found."""
        if self.path is None or self.is_stream:
            return
        try:
            size_bytes, version = _stamp(self.path.stat())
        except OSError as err:
            raise DataError(f"{self.name}: vanished while it was read ({_reason(err)})") from None
        if size_bytes != self.size_bytes:
            raise DataError(
                f"{self.name}: changed while it was read: it had {self.size_bytes:,} bytes and has "
                f"{size_bytes:,} now; read files that nothing writes to"
            )
        if version != self.version:
            raise DataError(
                f"{self.name}: changed while it was read: it was written to meanwhile; "
                "read files that nothing writes to"
            )


def find_sources(
    inputs: Sequence[str | Path], *, form: Form | None = None
) -> tuple[list[Source], list[DataError]]:
    """What `inputs` stand for, in their order, and what is wrong with some of it.

    Args:
        inputs: files, directories, globs, URLs, `-`.
        form: what every input holds; default: by its suffix.

    Raises:
        ConfigError: there are no inputs, a package for a URL or for Parquet is missing, or `-` is
            given twice.
        DataError: an input that is named does not exist, or stands for no file at all.
    """
    if not inputs:
        raise ConfigError("no input given; name at least one text file or directory")
    if list(map(str, inputs)).count(STANDARD_INPUT) > 1:
        raise ConfigError("standard input (-) is given twice; it can be read once")
    faults: list[DataError] = []
    sources: list[Source] = []
    for item in inputs:
        for source in _expand(str(item), form, faults):
            try:
                _check_readable(source)
                sources.append(source)
            except DataError as err:
                faults.append(err)
    return sources, faults


def suffix_of(name: str) -> str | None:
    """The suffix that names the kind of text, in lower case; None for any other."""
    # Longest first, so that a.jsonl.gz is not taken for something that ends in .gz.
    name = name.lower()
    return next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(s)), None)


def files_under(folder: Path, faults: list[DataError]) -> list[Path]:
    """The text files under a directory, sorted; what cannot be looked at goes to `faults`."""
    found = [path for path in _walk(folder, faults) if suffix_of(path.name)]
    files: list[Path] = []
    for path in sorted(found, key=lambda path: path.relative_to(folder).as_posix()):
        try:
            if stat.S_ISREG(path.stat().st_mode):
                files.append(path)
        except OSError as err:
            broken = ": a broken link" if path.is_symlink() else ""
            faults.append(DataError(f"{path}: cannot be read ({_reason(err)}{broken})"))
    return files


def _walk(folder: Path, faults: list[DataError]) -> Iterator[Path]:
    """All files that are not hidden. A directory that several links lead to is entered once."""

    def note(err: OSError) -> None:
        faults.append(DataError(f"{err.filename}: cannot be read ({_reason(err)})"))

    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=note, followlinks=True):
        # A device and a number, for a link may lead back to a directory above it.
        identity = _identity(root)
        if identity in seen:
            folders.clear()
            continue
        seen.add(identity)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in names if not name.startswith("."))


def _identity(folder: str) -> tuple[int, int]:
    info = os.stat(folder)
    return info.st_dev, info.st_ino


def _expand(item: str, form: Form | None, faults: list[DataError]) -> Iterator[Source]:
    if item == STANDARD_INPUT:
        yield Source("standard input", form or "text", "", None, "", is_stream=True)
    elif _URL.match(item) and not os.path.lexists(item):
        yield from _expand_url(item, form)
    elif _GLOB.search(item) and not os.path.lexists(item):
        yield from _expand_glob(item, form, faults)
    elif Path(item).is_dir():
        num_faults = len(faults)
        files = files_under(Path(item), faults)
        if not files and len(faults) == num_faults:
            raise no_text_file(item)
        yield from (_local(path, form) for path in files)
    else:
        yield _local(Path(item), form)


def no_text_file(folder: str | Path) -> DataError:
    """The error for a directory in which nothing can be text."""
    return DataError(
        f"{folder}: no text file in this directory; allowed: {', '.join(SUFFIXES)}; a glob such as "
        f"'{Path(folder) / '**' / '*.md'}' takes any suffix"
    )


def _expand_glob(pattern: str, form: Form | None, faults: list[DataError]) -> Iterator[Source]:
    matches = sorted(glob.glob(pattern, recursive=True))
    # A link that leads nowhere is a fault; a directory or a pipe is no file and passed over.
    files = [Path(m) for m in matches if os.path.isfile(m) or not os.path.exists(m)]
    if not files:
        what = "matches no regular file" if matches else "matches no file"
        raise DataError(
            f"{pattern}: {what}; name a directory, or a glob of files such as '**/*.txt'"
        )
    for path in files:
        try:
            yield _local(path, form)
        except DataError as err:
            faults.append(err)


def _local(path: Path, form: Form | None) -> Source:
    try:
        info = path.stat()
    except OSError as err:
        if isinstance(err, FileNotFoundError) and not path.is_symlink():
            raise DataError(f"{path}: no such file or directory{near_name(path)}") from None
        raise DataError(f"{path}: cannot be read ({_reason(err)})") from None
    is_stream = stat.S_ISFIFO(info.st_mode) or stat.S_ISCHR(info.st_mode)
    size_bytes, version = (None, "") if is_stream else _stamp(info)
    kind = _kind(path.name, form)
    return Source(str(path), *kind, size_bytes, version, path=path, is_stream=is_stream)


def near_name(path: Path) -> str:
    """A hint at the file beside `path` with almost its name; "" if there is none."""
    from lmworks.base.config import suggest

    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggest(path.name, names)
    return hint if "did you mean" in hint else ""


def _expand_url(url: str, form: Form | None) -> Iterator[Source]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as err:
        raise ConfigError(f"{url}: {err}; install that package to read such URLs") from None
    except ValueError as err:
        raise ConfigError(f"{url}: {err}; see fsspec.available_protocols()") from None
    if "file" in _protocols(system):
        yield from _expand(path, form, [])
        return
    try:
        infos = _remote_infos(system, path)
    except FileNotFoundError:
        raise DataError(f"{url}: no such file") from None
    except Exception as err:
        # Every file system of fsspec has errors of its own.
        raise DataError(f"{url}: cannot be read ({_reason(err)})") from err
    if not infos:
        raise DataError(
            f"{url}: stands for no text file; allowed in a folder: {', '.join(SUFFIXES)}"
        )
    for info in infos:
        name = url if len(infos) == 1 else system.unstrip_protocol(info["name"])
        size_bytes = info.get("size")
        version = next(
            (str(info[k]) for k in ("ETag", "etag", "mtime", "created") if k in info), ""
        )
        remote = (system, info["name"])
        kind = _kind(info["name"].split("?")[0], form)  # a query of https is no part of the name
        yield Source(name, *kind, size_bytes, version, remote=remote)


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _remote_infos(system: Any, path: str) -> list[dict[str, Any]]:
    if _GLOB.search(path) and not {"http", "https"} & set(_protocols(system)):
        found = system.glob(path, detail=True)
        return [info for _, info in sorted(found.items()) if info["type"] == "file"]
    info = system.info(path)
    if info["type"] != "directory":
        return [{**info, "name": path}]
    found = system.find(path, detail=True)
    return [info for name, info in sorted(found.items()) if suffix_of(name)]


def _kind(name: str, form: Form | None) -> tuple[Form, str]:
    name = name.lower()
    if form == "parquet" or (form is None and name.endswith(".parquet")):
        return "parquet", ""
    compression = next((c for c in COMPRESSIONS if name.endswith(c)), "")
    is_jsonl = name.removesuffix(compression).endswith(".jsonl")
    return form or ("jsonl" if is_jsonl else "text"), compression


def _check_readable(source: Source) -> None:
    """What can be known of a source before it is opened, said before hours of work."""
    stored_name = source.remote[1] if source.remote else source.name
    suffix = Path(stored_name.split("?")[0]).suffix.lower()
    if suffix in _NOT_TEXT:
        raise DataError(f"{source.name}: a {suffix} file is no text; {_NOT_TEXT[suffix]}")
    if source.form == "parquet":
        check_installed(source.name)
        if source.is_stream:
            raise DataError(f"{source.name}: Parquet is read from its end, so not from a stream")
    path = source.path
    if path is None:
        return
    if not (source.is_stream or path.is_file()):
        raise DataError(f"{source.name}: is not a regular file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{source.name}: cannot be read (Permission denied)")


def _stamp(info: os.stat_result) -> tuple[int, str]:
    return info.st_size, f"{info.st_mtime_ns}-{info.st_ino}"


def _reason(err: Exception) -> str:
    if isinstance(err, OSError) and err.strerror:
        return err.strerror
    return str(err) or type(err).__name__

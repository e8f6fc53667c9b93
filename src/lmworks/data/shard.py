"""Token shards: a folder of flat token files, memory-mapped, described by one manifest.

    DIR/shard-00000.bin   token ids, little-endian uint16 (vocabulary <= 65,536) or uint32
    DIR/shard-00000.idx   little-endian uint64: where each document starts, in tokens of its shard
    DIR/manifest.json     counts, sizes, SHA-256 of every file, and the tokenizer that was used

Every document is followed by the end-of-text token, so the last token of every shard is one. A
document never spans two shards. The manifest is the last file written and the folder appears
under its name in one rename (see `lmworks.data.pack`), so a folder with a manifest is whole;
`open_shards` still compares all sizes (a copy can be cut short) and, asked to, all checksums.
"""

import hashlib
import json
from bisect import bisect_right
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from lmworks.base.config import Config
from lmworks.base.errors import DataError
from lmworks.base.storage import sha256_file

MANIFEST_NAME = "manifest.json"
FORMAT = "lmworks.tokens"
FORMAT_VERSION = 1
DEFAULT_MAX_SHARD_TOKENS = 100_000_000

_INDEX_DTYPE = np.dtype("<u8")
_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_UINT16_VOCAB = 1 << 16

Tokens = npt.NDArray[Any]


class ShardInfo(Config):
    """One shard: its two files, what they hold, and how to tell whether they still hold it."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    """File name without suffix."""
    num_tokens: int = Field(ge=1)
    num_documents: int = Field(ge=1)
    tokens_bytes: int
    tokens_sha256: str
    index_bytes: int
    index_sha256: str


class Manifest(Config):
    """What a shard folder holds."""

    format: Literal["lmworks.tokens"] = "lmworks.tokens"
    version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    vocab_size: int = Field(ge=1)
    max_token_id: int = Field(ge=0)
    """Largest id that occurs; below vocab_size."""
    eot_id: int = Field(ge=0)
    """Id that follows every document."""
    tokenizer_kind: str
    tokenizer_fingerprint: str
    num_documents: int
    num_tokens: int
    """All tokens, end-of-text tokens included."""
    text_bytes: int = Field(ge=0)
    """UTF-8 bytes of the documents' text, for bits per byte."""
    sources: tuple[str, ...]
    """Input files, as they were named."""
    shards: tuple[ShardInfo, ...]

    @property
    def bytes_per_token(self) -> float:
        """Text bytes per token of text (end-of-text tokens do not count)."""
        return self.text_bytes / max(1, self.num_tokens - self.num_documents)


class ShardWriter:
    """Writes documents into shards of at most about `max_shard_tokens`; `finish` adds the manifest.

    A document longer than the limit gets a shard of its own. Used as a context manager it closes
    its file on any error; removing what was written is the caller's part (`storage.atomic_dir`).
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        eot_id: int,
        max_shard_tokens: int = DEFAULT_MAX_SHARD_TOKENS,
    ) -> None:
        self.folder = folder
        self.vocab_size = vocab_size
        self.eot_id = eot_id
        self.max_shard_tokens = max_shard_tokens
        self.dtype: Literal["uint16", "uint32"] = dtype_for(vocab_size)
        self.num_documents = 0
        self.num_tokens = 0
        self.text_bytes = 0
        self._max_token_id = 0
        self._done: list[ShardInfo] = []
        self._shard: _OpenShard | None = None

    def append(self, tokens: Tokens, lengths: Tokens, *, text_bytes: int) -> None:
        """Add documents: their `tokens` one after another, and the length of each in tokens.

        Raises:
            DataError: an id that is not below vocab_size.
        """
        if not len(lengths):
            return
        largest = int(tokens.max())
        if largest >= self.vocab_size:
            raise DataError(
                f"token id {largest} is not below the tokenizer's vocab_size={self.vocab_size};"
                " the tokenizer file is damaged or its vocab_size is wrong"
            )
        self._max_token_id = max(self._max_token_id, largest)
        self.num_documents += len(lengths)
        self.num_tokens += len(tokens)
        self.text_bytes += text_bytes
        ends = np.cumsum(lengths, dtype=np.int64)
        first, token_start = 0, 0
        while first < len(ends):
            shard = self._shard_with_room(int(ends[first]) - token_start)
            room = self.max_shard_tokens - shard.num_tokens
            fitting = int(np.searchsorted(ends, token_start + room, side="right"))
            last = max(first + 1, fitting)
            token_end = int(ends[last - 1])
            shard.write(tokens[token_start:token_end], ends[first:last] - token_start)
            first, token_start = last, token_end

    def finish(
        self, *, tokenizer_kind: str, tokenizer_fingerprint: str, sources: tuple[str, ...]
    ) -> Manifest:
        """Close the last shard, write the manifest and return it."""
        self._close_shard()
        manifest = Manifest(
            dtype=self.dtype,
            vocab_size=self.vocab_size,
            max_token_id=self._max_token_id,
            eot_id=self.eot_id,
            tokenizer_kind=tokenizer_kind,
            tokenizer_fingerprint=tokenizer_fingerprint,
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            text_bytes=self.text_bytes,
            sources=sources,
            shards=tuple(self._done),
        )
        text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
        (self.folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
        return manifest

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shard is not None:
            self._shard.file.close()

    def _shard_with_room(self, num_tokens: int) -> "_OpenShard":
        shard = self._shard
        if shard and shard.num_tokens and shard.num_tokens + num_tokens > self.max_shard_tokens:
            self._close_shard()
        if self._shard is None:
            name = f"shard-{len(self._done):05d}"
            self._shard = _OpenShard(self.folder, name, _DTYPES[self.dtype])
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._done.append(self._shard.close())
            self._shard = None


class _OpenShard:
    """The shard being written: hashes while it writes, so that no file is read again."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]) -> None:
        self.folder, self.name, self.dtype = folder, name, dtype
        self.num_tokens = 0
        self.file: IO[bytes] = (folder / f"{name}.bin").open("wb")
        self._hash = hashlib.sha256()
        self._starts: list[Tokens] = []

    def write(self, tokens: Tokens, ends: Tokens) -> None:
        """`ends[i]` is where document i of `tokens` ends, counted from the first of them."""
        data = tokens.astype(self.dtype).tobytes()
        self.file.write(data)
        self._hash.update(data)
        starts = np.concatenate([[0], ends[:-1]]) + self.num_tokens
        self._starts.append(starts.astype(_INDEX_DTYPE))
        self.num_tokens += len(tokens)

    def close(self) -> ShardInfo:
        self.file.close()
        index = np.concatenate(self._starts)
        index_data = index.tobytes()
        (self.folder / f"{self.name}.idx").write_bytes(index_data)
        return ShardInfo(
            name=self.name,
            num_tokens=self.num_tokens,
            num_documents=len(index),
            tokens_bytes=self.num_tokens * self.dtype.itemsize,
            tokens_sha256=self._hash.hexdigest(),
            index_bytes=len(index_data),
            index_sha256=hashlib.sha256(index_data).hexdigest(),
        )


class ShardSet:
    """The shards of one folder as one long array of `num_tokens` ids, read when used."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.num_tokens = manifest.num_tokens
        self._starts = [0]
        self._shards: list[Tokens] = []
        dtype = _DTYPES[manifest.dtype]
        for info in manifest.shards:
            mapped = _mapped(path / f"{info.name}.bin", dtype)
            # A plain array: slicing the memmap class costs several times as much.
            self._shards.append(np.asarray(mapped))
            self._starts.append(self._starts[-1] + info.num_tokens)

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 over the checksums of all token files and the tokenizer's fingerprint."""
        parts = [
            self.manifest.tokenizer_fingerprint,
            *(s.tokens_sha256 for s in self.manifest.shards),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def read(self, start: int, stop: int) -> Tokens:
        """Ids `start` to `stop` as a new int64 array; 0 <= start <= stop <= num_tokens."""
        out = np.empty(stop - start, dtype=np.int64)
        self.read_into(out, start)
        return out

    def read_into(self, out: Tokens, start: int) -> None:
        """Fill `out` with the ids from `start` on."""
        shard = bisect_right(self._starts, start) - 1
        filled = 0
        while filled < len(out):
            at = start + filled - self._starts[shard]
            piece = self._shards[shard][at : at + len(out) - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            shard += 1

    def document_starts(self) -> Tokens:
        """Where each document starts, counted over all shards (int64, one entry per document)."""
        parts = [
            np.fromfile(self.path / f"{info.name}.idx", dtype=_INDEX_DTYPE).astype(np.int64) + start
            for info, start in zip(self.manifest.shards, self._starts, strict=False)
        ]
        return np.concatenate(parts)

    def verify(self) -> None:
        """Read every file and compare its SHA-256; raises DataError at the first that differs."""
        for info in self.manifest.shards:
            for suffix, expected in (("bin", info.tokens_sha256), ("idx", info.index_sha256)):
                file = self.path / f"{info.name}.{suffix}"
                actual = sha256_file(file)
                if actual != expected:
                    raise DataError(
                        f"{file}: its content has changed: SHA-256 is {actual[:16]}…, the manifest"
                        f" says {expected[:16]}…; copy it again or pack the text again"
                    )


def open_shards(
    folder: str | Path, *, tokenizer_fingerprint: str | None = None, verify: bool = False
) -> ShardSet:
    """Memory-map the shards of a folder.

    Args:
        folder: what `lmworks data pack` wrote (`OUT`, or `OUT/train` and `OUT/val`).
        tokenizer_fingerprint: of the tokenizer that will read the ids; None accepts any.
        verify: read all files and compare their checksums as well (sizes always are).

    Raises:
        DataError: no or a damaged manifest, a missing, truncated or changed file, or ids of another
            tokenizer.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    expected = tokenizer_fingerprint
    if expected is not None and expected != manifest.tokenizer_fingerprint:
        raise DataError(
            f"{folder} was packed with another tokenizer: its fingerprint is"
            f" {manifest.tokenizer_fingerprint[:16]}… ({manifest.tokenizer_kind}, vocab_size"
            f" {manifest.vocab_size}), yours is {expected[:16]}…; pack the text again with your"
            " tokenizer, or use the one it was packed with"
        )
    for info in manifest.shards:
        _check_size(folder / f"{info.name}.bin", info.tokens_bytes)
        _check_size(folder / f"{info.name}.idx", info.index_bytes)
    shards = ShardSet(folder, manifest)
    if verify:
        shards.verify()
    return shards


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a shard folder, checked; DataError when it is missing or makes no sense."""
    folder = Path(folder)
    file = folder / MANIFEST_NAME
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as err:
        raise DataError(f"{_no_manifest(folder)} ({err.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{file}: damaged (not UTF-8); pack the text again") from None
    try:
        value = json.loads(text)
    except ValueError as err:
        raise DataError(f"{file}: damaged, not valid JSON ({err}); pack the text again") from None
    _check_format(file, value)
    try:
        manifest = Manifest.model_validate(value)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{file}: {where}: {first['msg']}; pack the text again") from None
    _check_sums(file, manifest)
    return manifest


def dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= _UINT16_VOCAB else "uint32"


def _no_manifest(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such directory of token shards; `lmworks data pack` makes one"
    parts = [p.name for p in sorted(folder.iterdir()) if (p / MANIFEST_NAME).is_file()]
    if parts:
        names = " or ".join(str(folder / part) for part in parts)
        return f"{folder}: no {MANIFEST_NAME} here; did you mean {names}?"
    return f"{folder}: no {MANIFEST_NAME} here, so these are no token shards"


def _check_format(file: Path, value: Any) -> None:
    found = (value.get("format"), value.get("version")) if isinstance(value, dict) else None
    if found != (FORMAT, FORMAT_VERSION):
        raise DataError(
            f"{file}: format and version are {found}, this program reads"
            f" {(FORMAT, FORMAT_VERSION)}; pack the text again"
        )


def _check_sums(file: Path, manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself: it was edited or damaged."""
    itemsize = _DTYPES[manifest.dtype].itemsize
    shards = manifest.shards
    sane = (
        bool(shards)
        and manifest.num_tokens == sum(s.num_tokens for s in shards)
        and manifest.num_documents == sum(s.num_documents for s in shards)
        and all(s.tokens_bytes == s.num_tokens * itemsize for s in shards)
        and all(s.index_bytes == s.num_documents * _INDEX_DTYPE.itemsize for s in shards)
        and max(manifest.max_token_id, manifest.eot_id) < manifest.vocab_size
    )
    if not sane:
        raise DataError(f"{file}: its counts contradict each other; pack the text again")


def _mapped(file: Path, dtype: np.dtype[Any]) -> Tokens:
    try:
        return np.memmap(file, dtype=dtype, mode="r")
    except OSError as err:
        raise DataError(f"{file}: cannot be read ({err.strerror})") from None


def _check_size(file: Path, expected_bytes: int) -> None:
    try:
        actual = file.stat().st_size
    except OSError as err:
        raise DataError(
            f"{file}: missing ({err.strerror}); copy it again or pack the text again"
        ) from None
    if actual != expected_bytes:
        state = "truncated" if actual < expected_bytes else "too long"
        raise DataError(
            f"{file}: {state}: {actual:,} bytes, the manifest says {expected_bytes:,};"
            " copy it again or pack the text again"
        )

"""Text files to token shards: read, split into train and val, encode in parallel, write.

    report = pack([Path("books")], Path("tokens"), tokenizer, val_fraction=0.05)

What the result depends on: the documents in their order, the tokenizer, and the arguments that
change it; never on the number of threads. One thread reads and writes, the others encode batches
of a few megabytes, of which a bounded number is in flight, so memory stays constant.

Validation split. A document goes to val when the BLAKE2b hash of its text, read as a fraction of
2**64, is below `val_fraction`: the same text always lands on the same side, whatever else is packed
and in which order. So that a book or two can be split as well, a document longer than `piece_chars`
is first cut at blank lines into pieces of about that length and each piece is dealt out by its own
hash; neighbouring pieces that land on the same side stay together as one document.

Text that looks like a special token (`<|endoftext|>` inside a JSON field) is encoded as the plain
characters it is: only this module ends documents.
"""

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lmworks.base.documents import Document
from lmworks.base.errors import ConfigError, DataError, LmworksError
from lmworks.base.machine import num_usable_cores
from lmworks.data.folder import new_folder
from lmworks.data.read import DocumentReader, OnFault
from lmworks.data.shard import DEFAULT_MAX_SHARD_TOKENS, Manifest, ShardWriter, Tokens, dtype_for

if TYPE_CHECKING:
    from lmworks.tokenizer.base import Tokenizer

DEFAULT_PIECE_CHARS = 16_384

# Large enough for several threads to share; each in flight takes about five times as many bytes.
_BATCH_CHARS = 1 << 22
_MAX_IN_FLIGHT = 2
_MAX_THREADS = 1024

Progress = Callable[[int, int], None]
"""Called with (input bytes done, input bytes in all)."""


@dataclass(frozen=True)
class PackReport:
    """What `pack` wrote."""

    manifests: dict[Path, Manifest]
    """Shard folder -> its manifest: OUT alone, or OUT/train and OUT/val."""
    input_bytes: int
    """Size of the input files on the disk."""
    elapsed_s: float

    @property
    def num_documents(self) -> int:
        """Documents in all folders; pieces that were dealt out count as documents."""
        return sum(m.num_documents for m in self.manifests.values())

    @property
    def num_tokens(self) -> int:
        """Tokens in all folders, end-of-text tokens included."""
        return sum(m.num_tokens for m in self.manifests.values())

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(m.text_bytes for m in self.manifests.values())

    @property
    def bytes_per_token(self) -> float:
        """Text bytes per token of text (end-of-text tokens do not count)."""
        return self.text_bytes / max(1, self.num_tokens - self.num_documents)


def pack(
    inputs: Sequence[str | Path],
    out: str | Path,
    tokenizer: "Tokenizer",
    *,
    val_fraction: float = 0.0,
    piece_chars: int | None = DEFAULT_PIECE_CHARS,
    num_threads: int | None = None,
    max_shard_tokens: int = DEFAULT_MAX_SHARD_TOKENS,
    text_field: str = "text",
    overwrite: bool = False,
    on_fault: OnFault | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Tokenize text files into the shard folder `out`, or `out/train` and `out/val`.

    Args:
        inputs: files, directories, globs and URLs, see `lmworks.data.read`.
        out: appears whole or not at all.
        val_fraction: share of the text for `out/val`, about; 0 writes `out` alone.
        piece_chars: with val_fraction, cut longer documents as said above; None never cuts.
        num_threads: default: the usable cores. One reads and writes, the others encode; kinds
            other than BPE encode in one.
        max_shard_tokens: start the next shard at the document that would pass this.
        overwrite: replace an `out` that `pack` wrote earlier, in one step at the end.
        on_fault: called with what is wrong with a file, which is then left out from there on;
            default: the first fault is raised.
        progress: called after each batch.

    Raises:
        ConfigError: `out` exists, an argument is out of range, the tokenizer has no end-of-text
            token, or one side of the split would be empty.
        DataError: an input is missing, wrong or has changed while it was read, or there is no text.
        StorageError: the disk is full or `out` cannot be written; nothing is left behind.
    """
    start_s = time.perf_counter()
    eot_id = _checked(tokenizer, val_fraction, piece_chars, num_threads, max_shard_tokens)
    reader = DocumentReader(inputs, text_field=text_field, on_fault=on_fault)
    rule = _Rule(eot_id, dtype_for(tokenizer.vocab_size), val_fraction, piece_chars)
    sides = ["train", "val"] if val_fraction else [""]
    batches = _report_progress(_batches(reader), reader, progress)
    encoded = _encode_all(batches, tokenizer, rule, num_threads or num_usable_cores())
    with new_folder(out, overwrite=overwrite) as part, ExitStack() as stack:
        writers = [
            stack.enter_context(
                ShardWriter(
                    part / side,
                    vocab_size=tokenizer.vocab_size,
                    eot_id=eot_id,
                    max_shard_tokens=max_shard_tokens,
                )
            )
            for side in sides
        ]
        # Closed at once on an error: threads that encode must not outlive it.
        stack.enter_context(closing(encoded))
        hash_range = _write_all(encoded, writers)
        _refuse_empty(writers, reader, val_fraction, piece_chars, hash_range)
        manifests = [
            writer.finish(
                tokenizer_kind=tokenizer.kind,
                tokenizer_fingerprint=tokenizer.fingerprint,
                # A file's name need not be UTF-8, the manifest must be.
                sources=tuple(
                    os.fsencode(name).decode("utf-8", "backslashreplace") for name in reader.names
                ),
            )
            for writer in writers
        ]
    return PackReport(
        manifests={Path(out) / side: m for side, m in zip(sides, manifests, strict=True)},
        input_bytes=reader.total_bytes,
        elapsed_s=time.perf_counter() - start_s,
    )


def split_hash(text: str) -> float:
    """The number in [0, 1) that decides the side of a document: val when it is < val_fraction."""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    # 53 bits, all that a float holds: more could round up to 1.
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def cut_at_blank_lines(text: str, piece_chars: int) -> list[str]:
    """Pieces of at least `piece_chars` (the last may be shorter) whose concatenation is `text`.

    Each piece but the last ends in the blank lines after a paragraph; a longer stretch without a
    blank line stays whole.
    """
    pieces: list[str] = []
    start = 0
    for border in re.finditer(r"\n(?:[ \t\r]*\n)+", text):
        if border.end() - start >= piece_chars:
            pieces.append(text[start : border.end()])
            start = border.end()
    if start < len(text):
        pieces.append(text[start:])
    return pieces


@dataclass(frozen=True, slots=True)
class _Rule:
    """How documents are dealt out and stored."""

    eot_id: int
    dtype: str
    val_fraction: float
    piece_chars: int | None


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The documents of one batch that go to one side."""

    side: int
    tokens: Tokens
    lengths: Tokens
    text_bytes: int
    hash_min: float
    hash_max: float


def _checked(
    tokenizer: "Tokenizer",
    val_fraction: float,
    piece_chars: int | None,
    num_threads: int | None,
    max_shard_tokens: int,
) -> int:
    if not 0 <= val_fraction < 1:
        raise ConfigError(f"val_fraction={val_fraction} must be at least 0 and below 1")
    for name, value in (
        ("piece_chars", piece_chars),
        ("num_threads", num_threads),
        ("max_shard_tokens", max_shard_tokens),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    if num_threads is not None and num_threads > _MAX_THREADS:
        raise ConfigError(f"num_threads={num_threads} must be at most {_MAX_THREADS}")
    if tokenizer.eot_id is None:
        raise ConfigError(
            f"this {tokenizer.kind} tokenizer has no <|endoftext|> token, which has to end every"
            " document; train it with special_tokens=['<|endoftext|>']"
        )
    return tokenizer.eot_id


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    num_chars = 0
    for document in documents:
        batch.append(document)
        num_chars += len(document.text) + 1
        if num_chars >= _BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


def _report_progress(
    batches: Iterator[list[Document]], reader: DocumentReader, progress: Progress | None
) -> Iterator[list[Document]]:
    for batch in batches:
        yield batch
        if progress is not None:
            progress(reader.read_bytes, reader.total_bytes)


def _encode_all(
    batches: Iterator[list[Document]], tokenizer: "Tokenizer", rule: _Rule, num_threads: int
) -> Generator[list[_Encoded], None, None]:
    """Encoded batches in the order of `batches`."""
    if num_threads == 1:
        yield from map(partial(_encode_batch, tokenizer, rule, 1), batches)
        return
    encode = partial(_encode_batch, tokenizer, rule, num_threads - 1)
    in_flight: deque[Future[list[_Encoded]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="lmworks-pack") as pool:
        try:
            for batch in batches:
                in_flight.append(pool.submit(encode, batch))
                if len(in_flight) > _MAX_IN_FLIGHT:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _encode_batch(
    tokenizer: "Tokenizer", rule: _Rule, num_threads: int, batch: list[Document]
) -> list[_Encoded]:
    parts = [part for document in batch for part in _parts(document, rule)]
    try:
        tokens, starts = tokenizer.encode_batch_to_numpy(
            [part.data for part in parts], num_threads=num_threads, disallowed_special=()
        )
    except LmworksError:
        raise _located(tokenizer, parts) from None
    bounds = starts.tolist()
    for part, begin, end in zip(parts, bounds, bounds[1:], strict=False):
        part.tokens = tokens[begin:end]
    sides = [[part for part in parts if part.side == side] for side in (0, 1)]
    return [_joined(members, rule) for members in sides if members]


@dataclass(slots=True)
class _Part:
    """A document, or the run of its pieces that went to one side."""

    side: int
    data: bytes
    hashes: list[float]
    where: str
    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.uint32))


def _parts(document: Document, rule: _Rule) -> Iterator[_Part]:
    text = document.text
    if not rule.val_fraction:
        yield _Part(0, text.encode("utf-8"), [], document.where)
        return
    pieces = [text]
    if rule.piece_chars is not None and len(text) > rule.piece_chars:
        pieces = cut_at_blank_lines(text, rule.piece_chars)
    dealt = [(split_hash(piece), piece) for piece in pieces]
    for is_val, run in groupby(dealt, key=lambda pair: pair[0] < rule.val_fraction):
        hashes, texts = zip(*run, strict=True)
        whole = "".join(texts)
        part = whole if whole == text else whole.strip("\r\n")
        yield _Part(int(is_val), part.encode("utf-8"), [*hashes], document.where)


def _located(tokenizer: "Tokenizer", parts: list[_Part]) -> LmworksError:
    """The error of the first part that cannot be encoded, with its place."""
    for part in parts:
        try:
            tokenizer.encode_to_numpy(part.data, disallowed_special=())
        except LmworksError as err:
            return type(err)(f"{part.where}: {err}")
    raise AssertionError("a batch fails only when one of its texts does")


def _joined(parts: list[_Part], rule: _Rule) -> _Encoded:
    lengths = np.array([len(part.tokens) + 1 for part in parts], dtype=np.int64)
    largest = max(int(part.tokens.max(initial=rule.eot_id)) for part in parts)
    # An id that does not fit must reach ShardWriter's check as it is.
    fits = largest <= np.iinfo(rule.dtype).max
    tokens = np.empty(lengths.sum(), dtype=rule.dtype if fits else np.uint32)
    end = 0
    for part in parts:
        begin, end = end, end + len(part.tokens)
        tokens[begin:end] = part.tokens
        tokens[end] = rule.eot_id
        end += 1
    hashes = [value for part in parts for value in part.hashes] or [0.0]
    return _Encoded(
        side=parts[0].side,
        tokens=tokens,
        lengths=lengths,
        text_bytes=sum(len(part.data) for part in parts),
        hash_min=min(hashes),
        hash_max=max(hashes),
    )


def _write_all(
    encoded: Iterator[list[_Encoded]], writers: list[ShardWriter]
) -> tuple[float, float]:
    """Write everything; the smallest and the largest split hash that occurred."""
    low, high = 1.0, 0.0
    for batch in encoded:
        for part in batch:
            writers[part.side].append(part.tokens, part.lengths, text_bytes=part.text_bytes)
            low, high = min(low, part.hash_min), max(high, part.hash_max)
    return low, high


def _refuse_empty(
    writers: list[ShardWriter],
    reader: DocumentReader,
    val_fraction: float,
    piece_chars: int | None,
    hash_range: tuple[float, float],
) -> None:
    num_documents = sum(writer.num_documents for writer in writers)
    if not num_documents:
        why = str(reader.faults[0]) if reader.faults else "every document is empty"
        raise DataError(f"no text in {_short(reader.names)}: {why}")
    if all(writer.num_documents for writer in writers):
        return
    low, high = hash_range
    side = "val" if writers[0].num_documents else "train"
    if low == high:
        cut = (
            ""
            if piece_chars is None
            else f" (it is cut at blank lines, into pieces of about {piece_chars} characters)"
        )
        hint = f"there is only one piece of text{cut}; give more text, or hold none out"
    elif side == "val":
        hint = f"val_fraction={low * 1.06:.2g} or more would fill it"
    else:
        hint = f"val_fraction={high * 0.94:.2g} or less would fill it"
    raise ConfigError(f"val_fraction={val_fraction} leaves {side} empty; {hint}")


def _short(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} files ({names[0]}, ...)"

"""Tokenizer files: our JSON, Hugging Face `tokenizer.json` (huggingface.py), tiktoken rank files.

`load` tells JSON formats apart by their content. A tiktoken file holds only ranks, so its pattern
and special tokens must be given: `load_tiktoken`. Files come from strangers: whatever is in them,
the outcome is a tokenizer or a DataError that says what is wrong, where, and what would be right.
"""

import base64
import binascii
import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.base.storage import write_bytes
from lmworks.tokenizer import huggingface
from lmworks.tokenizer.base import FORMAT, VERSION, Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.schema import (
    Check,
    check_fields,
    is_bool,
    is_id_map,
    is_list_of,
    is_pair,
    is_string,
    optional,
)
from lmworks.tokenizer.template import Template
from lmworks.tokenizer.word import WordTokenizer

Format = Literal["lmworks", "hf", "tiktoken"]

_KINDS: dict[str, type[Tokenizer]] = {
    cls.kind: cls for cls in (BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer)
}
_FIELDS: dict[str, dict[str, Check]] = {
    "bpe": {
        "pattern": is_string,
        "normalizer": Check(
            "null, 'NFC' or a list of steps", lambda v: v is None or isinstance(v, str | list)
        ),
        "ignore_merges": is_bool,
        "special_tokens": is_id_map,
        "added_tokens": is_id_map,
        "tokens": is_list_of(optional(is_string)),
        "merges": is_list_of(is_pair),
    },
    "byte": {"special_tokens": is_list_of(is_string)},
    "char": {"special_tokens": is_list_of(is_string), "chars": is_string},
    "word": {
        "pattern": is_string,
        "special_tokens": is_list_of(is_string),
        "words": is_list_of(is_string),
    },
}


def load(path: str | Path) -> Tokenizer:
    """The tokenizer in our JSON, in a Hugging Face tokenizer.json, or in a folder with one."""
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    data = _read(path)
    try:
        if not data.lstrip().startswith(b"{"):
            raise DataError(_not_json(data))
        value = parse_json(data)
        if value.get("format") == FORMAT:
            return _from_own(value)
        if "model" in value:
            return huggingface.from_json(value)
        raise DataError(
            f'neither our format ("format": "{FORMAT}") nor a Hugging Face tokenizer.json '
            f'("model": ...); its keys are {", ".join(map(repr, list(value)[:8])) or "none"}'
        )
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def save(tokenizer: Tokenizer, path: str | Path, *, format: Format = "lmworks") -> None:
    """Write a tokenizer in one of the formats, atomically; BPE alone has all three."""
    if format == "lmworks":
        tokenizer.save(path)
        return
    if not isinstance(tokenizer, BPETokenizer):
        raise ConfigError(
            f"a {tokenizer.kind} tokenizer has no {format!r} format; write it as 'lmworks'"
        )
    if format == "hf":
        write_bytes(path, huggingface.to_json(tokenizer).encode("utf-8"))
    else:
        write_bytes(path, to_tiktoken(tokenizer))


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object; DataError for anything else, a repeated key, NaN or absurd nesting."""
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
    except UnicodeDecodeError as err:
        raise DataError(f"not UTF-8 at byte {err.start}") from None
    except RecursionError:
        raise DataError("not a tokenizer: JSON nested too deeply") from None
    except DataError:
        raise
    except ValueError as err:
        raise DataError(f"not valid JSON ({err})") from None
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, got {type(value).__name__}")
    return value


# ---- our own format ----


def _from_own(value: dict[str, Any]) -> Tokenizer:
    version = value.get("version")
    if version != VERSION or isinstance(version, bool):
        raise DataError(f"format version {version!r}; this lmworks reads version {VERSION}")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(f"kind={kind!r}; known: {', '.join(sorted(_KINDS))}")
    head = {"format": is_string, "version": Check("a number", lambda v: True), "kind": is_string}
    template = value.pop("template", None)
    check_fields(value, {**head, **_FIELDS[kind]})
    tokenizer = _KINDS[kind].from_content({k: v for k, v in value.items() if k not in head})
    tokenizer.template = None if template is None else Template.from_json(template)
    return tokenizer


# ---- tiktoken rank files: lines of base64(token) and rank = id ----


def load_tiktoken(
    path: str | Path, pattern: str, special_tokens: Mapping[str, int] | None = None
) -> BPETokenizer:
    """The vocabulary in a .tiktoken file, with the merges recovered from the ranks."""
    try:
        tokens = _parse_ranks(_read(Path(path)))
        merges, has_unreachable = recover_merges(tokens)
        return BPETokenizer(
            tokens,
            merges,
            pattern=pattern,
            special_tokens=special_tokens or {},
            ignore_merges=has_unreachable,
        )
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def to_tiktoken(tokenizer: BPETokenizer) -> bytes:
    """The rank file's bytes; DataError when ranks alone cannot express this vocabulary."""
    merges, _ = recover_merges(tokenizer.tokens)
    if tuple(merges) != tokenizer.merges:
        raise DataError(
            "this vocabulary has no tiktoken form: its merges do not follow from the order of its "
            "token ids; write it as 'lmworks' or 'hf'"
        )
    if tokenizer.normalizer or tokenizer.added_tokens:
        raise DataError(
            "this vocabulary has no tiktoken form: it has a normalizer or added tokens; "
            "write it as 'lmworks' or 'hf'"
        )
    lines = [
        base64.b64encode(token) + b" %d\n" % rank
        for rank, token in enumerate(tokenizer.tokens)
        if token is not None
    ]
    return b"".join(lines)


def recover_merges(tokens: Sequence[bytes | None]) -> tuple[list[tuple[int, int]], bool]:
    """Merges that give tiktoken's results, and whether some token is reached only as a whole piece.

    tiktoken merges whatever two neighbours make a token of lowest rank. Run on a token itself with
    the ranks below its own, this ends in the two parts that form it. When it ends in more, the
    token is unreachable from its bytes alone, but two parts may still meet inside a longer piece:
    then every split into two tokens is a merge.
    """
    rank_of = {token: rank for rank, token in enumerate(tokens) if token is not None}
    sizes = sorted({len(token) for token in rank_of})
    merges: list[tuple[int, int]] = []
    has_unreachable = False
    for token, rank in rank_of.items():
        if len(token) < 2:
            continue
        parts = _merge_below(token, rank, rank_of)
        if len(parts) == 2:
            merges.append((rank_of[parts[0]], rank_of[parts[1]]))
            continue
        has_unreachable = True
        # Only at sizes that tokens have: a long token of a hostile file would take its square.
        splits = ((token[:i], token[i:]) for i in sizes if 0 < i < len(token))
        merges += [(rank_of[a], rank_of[b]) for a, b in splits if a in rank_of and b in rank_of]
    return merges, has_unreachable


def _merge_below(token: bytes, limit: int, rank_of: Mapping[bytes, int]) -> list[bytes]:
    """The tokens that `token` is left in by all merges of rank below `limit`, or the last two.

    A heap of (rank, start, end) over parts that know their neighbours; an entry counts while both
    of its parts still stand. O(n log n) look-ups, for tokens may be long.
    """
    size = len(token)
    end_of = list(range(1, size + 1))  # by where a part starts; 0: merged into the one before
    start_of = list(range(-1, size))  # of the part that ends here
    heap: list[tuple[int, int, int]] = []

    def push(start: int, end: int) -> None:
        rank = rank_of.get(token[start:end], limit)
        if rank < limit:
            heapq.heappush(heap, (rank, start, end))

    for i in range(size - 1):
        push(i, i + 2)
    num_parts = size
    while heap and num_parts > 2:
        _, start, end = heapq.heappop(heap)
        middle = end_of[start]
        if not start < middle < end or end_of[middle] != end:
            continue
        end_of[start], end_of[middle] = end, 0
        start_of[end] = start
        num_parts -= 1
        if end < size:
            push(start, end_of[end])
        if start > 0:
            push(start_of[start], end)
    parts = [token[i:end] for i, end in enumerate(end_of) if end]
    return [part for part in parts if part in rank_of]


def _parse_ranks(data: bytes) -> list[bytes | None]:
    by_rank: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        fields = line.split()
        if len(fields) != 2:
            raise DataError(f"line {number}: expected `base64 rank`, got {line[:60]!r}")
        try:
            token = base64.b64decode(fields[0], validate=True)
        except binascii.Error as err:
            raise DataError(f"line {number}: {fields[0][:60]!r} is not base64 ({err})") from None
        if not fields[1].isdigit() or len(fields[1]) > 9 or int(fields[1]) >= _text.MAX_TOKENS:
            raise DataError(
                f"line {number}: rank {fields[1][:30]!r} is not in 0..{_text.MAX_TOKENS - 1}"
            )
        rank = int(fields[1])
        if rank in by_rank:
            raise DataError(f"line {number}: rank {rank} is given twice; keep one")
        by_rank[rank] = token
    if not by_rank:
        raise DataError("no ranks: an empty tiktoken file")
    return [by_rank.get(rank) for rank in range(max(by_rank) + 1)]


# ---- reading ----


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such tokenizer file") from None
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None


def _not_json(data: bytes) -> str:
    first = data[:200].split(b"\n")[0].split()
    if len(first) == 2 and first[1].isdigit():
        return (
            "looks like a tiktoken rank file, which names neither its pattern nor its special "
            "tokens; read it with load_tiktoken(path, pattern, special_tokens)"
        )
    return "not a tokenizer file: expected a JSON object"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise DataError(f"key {twice!r} is given twice; keep one")
    return value


def _no_constant(text: str) -> None:
    raise DataError(f"{text} is not a JSON number")

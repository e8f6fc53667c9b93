"""tiktoken's rank files: lines of base64(token) and rank. The rank is the id and the merge order.

A file names neither its pattern nor its special tokens; those of OpenAI's encodings are here. The
merges are recovered from the ranks (csrc/text/vocabulary.cpp).
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.token_table import TokenTable, pack_tokens


class RankEncoding(NamedTuple):
    """What a rank file leaves out."""

    pattern: str
    special_tokens: dict[str, int]


_FIM: Final = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
ENCODINGS: Final[dict[str, RankEncoding]] = {
    "r50k_base": RankEncoding("gpt2", {"<|endoftext|>": 50256}),
    "p50k_base": RankEncoding("gpt2", {"<|endoftext|>": 50256}),
    "p50k_edit": RankEncoding(
        "gpt2", {"<|endoftext|>": 50256, **{name: 50281 + i for i, name in enumerate(_FIM)}}
    ),
    "cl100k_base": RankEncoding(
        "cl100k",
        {
            "<|endoftext|>": 100257,
            **{name: 100258 + i for i, name in enumerate(_FIM)},
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": RankEncoding("o200k", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}
"""OpenAI's encodings by tiktoken's names (tiktoken_ext/openai_public.py)."""


def from_ranks(
    data: bytes, pattern: str, special_tokens: Mapping[str, int] | None = None
) -> BPETokenizer:
    """The vocabulary in a rank file's bytes.

    Args:
        data: the file's content.
        pattern: a pre-tokenizer pattern, or a name of ENCODINGS, which has the special tokens too.
        special_tokens: text -> id.

    Raises:
        DataError: the file is damaged; says where.
    """
    if pattern in ENCODINGS:
        known = ENCODINGS[pattern]
        pattern = known.pattern
        special_tokens = known.special_tokens if special_tokens is None else special_tokens
    usual = _text.parse_ranks(data)
    tokens = TokenTable.of(_parse(data)) if usual is None else TokenTable(*usual)
    merges, has_unreachable = _text.recover_merges(tokens.token_bytes, tokens.offsets)
    return BPETokenizer(
        tokens,
        merges.reshape(-1, 3),
        pattern=pattern,
        special_tokens=special_tokens or {},
        ignore_merges=has_unreachable,
    )


def to_ranks(tokenizer: BPETokenizer) -> bytes:
    """The rank file's bytes; DataError when ranks alone cannot express this vocabulary."""
    merges, _ = recover_merges(tokenizer.tokens)
    if tuple(merges) != tokenizer.merges:
        raise DataError(
            "this vocabulary has no tiktoken form: its merges do not follow from the order of its "
            "token ids; write it as 'lmworks' or 'hf'"
        )
    what = {
        "a normalizer": tokenizer.normalizer,
        "added tokens": tokenizer.added_tokens,
        "flags of special tokens": tokenizer._specials.flags,
        "add_prefix_space": tokenizer.add_prefix_space,
        "steps that cut pieces": tokenizer.piece_steps,
        "bytes that are no tokens": tokenizer.unknown,
    }
    for name, value in what.items():
        if value:
            raise DataError(
                f"this vocabulary has no tiktoken form: it has {name}; write it as 'lmworks' or "
                "'hf'"
            )
    lines = [
        base64.b64encode(token) + b" %d\n" % rank
        for rank, token in enumerate(tokenizer.tokens)
        if token is not None
    ]
    return b"".join(lines)


def recover_merges(tokens: Sequence[bytes | None]) -> tuple[list[tuple[int, int]], bool]:
    """Merges that give tiktoken's results, and whether some token is reached only as a whole piece.

    tiktoken merges whatever two neighbours make a token of lowest rank; see vocabulary.h.
    """
    merges, has_unreachable = _text.recover_merges(*pack_tokens(token or b"" for token in tokens))
    ids = merges.tolist()
    return list(zip(ids[::3], ids[1::3], strict=True)), has_unreachable


def _parse(data: bytes) -> list[bytes | None]:
    """Token bytes by rank, of every spelling of such a file; the usual one is read natively."""
    rows = [row for row in map(bytes.split, data.splitlines()) if row]
    if not rows:
        raise DataError("no ranks: an empty tiktoken file")
    if set(map(len, rows)) != {2}:
        _refuse_line(data)
    ranks = [row[1] for row in rows]
    if not all(map(bytes.isdigit, ranks)) or max(map(len, ranks)) > 9:
        _refuse_line(data)
    try:
        tokens = [binascii.a2b_base64(row[0], strict_mode=True) for row in rows]
    except binascii.Error:
        _refuse_line(data)
        raise
    ids = list(map(int, ranks))
    if max(ids) >= _text.MAX_TOKENS or len(set(ids)) < len(ids):
        _refuse_line(data)
    by_rank: list[bytes | None] = [None] * (max(ids) + 1)
    for rank, token in zip(ids, tokens, strict=True):
        by_rank[rank] = token
    return by_rank


def _refuse_line(data: bytes) -> None:
    """Raises DataError for the first line that is wrong."""
    seen: set[int] = set()
    for number, line in enumerate(data.splitlines(), 1):
        row = line.split()
        if not row:
            continue
        if len(row) != 2:
            raise DataError(f"line {number}: expected `base64 rank`, got {line[:60]!r}")
        try:
            binascii.a2b_base64(row[0], strict_mode=True)
        except binascii.Error as err:
            raise DataError(f"line {number}: {row[0][:60]!r} is not base64 ({err})") from None
        if not row[1].isdigit() or len(row[1]) > 9 or int(row[1]) >= _text.MAX_TOKENS:
            raise DataError(
                f"line {number}: rank {row[1][:30]!r} is not in 0..{_text.MAX_TOKENS - 1}"
            )
        if int(row[1]) in seen:
            raise DataError(f"line {number}: rank {int(row[1])} is given twice; keep one")
        seen.add(int(row[1]))

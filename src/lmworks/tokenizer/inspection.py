"""Facts about a tokenizer for people: its size, special tokens, longest tokens, first merges."""

from dataclasses import dataclass

from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.template import Template


@dataclass(frozen=True)
class Inspection:
    """What `lmworks tokenizer inspect` prints."""

    kind: str
    vocab_size: int
    num_unused_ids: int
    fingerprint: str
    pattern: str | None
    special_tokens: dict[str, int]
    added_tokens: dict[str, int]
    template: Template | None
    longest_tokens: list[tuple[int, bytes]]
    mean_token_bytes: float
    first_merges: list[tuple[bytes, bytes]]
    num_merges: int
    num_utf8_tokens: int
    """Tokens that are whole characters; the others are parts of a character."""


def inspect(tokenizer: Tokenizer, *, num_shown: int = 10) -> Inspection:
    """Look through the vocabulary once."""
    special_ids = set(tokenizer.special_tokens.values())
    tokens = [
        (i, token)
        for i, token in enumerate(tokenizer.all_token_bytes())
        if token and i not in special_ids
    ]
    merges = tokenizer.merged_bytes if isinstance(tokenizer, BPETokenizer) else []
    return Inspection(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        num_unused_ids=tokenizer.vocab_size - len(tokens) - len(special_ids),
        fingerprint=tokenizer.fingerprint,
        pattern=tokenizer.pattern,
        special_tokens=tokenizer.special_tokens,
        added_tokens=tokenizer.added_tokens,
        template=tokenizer.template,
        longest_tokens=sorted(tokens, key=lambda item: (-len(item[1]), item[0]))[:num_shown],
        mean_token_bytes=sum(len(token) for _, token in tokens) / len(tokens),
        first_merges=merges[:num_shown],
        num_merges=len(merges),
        num_utf8_tokens=sum(_is_utf8(token) for _, token in tokens),
    )


def _is_utf8(token: bytes) -> bool:
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True

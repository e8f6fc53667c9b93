"""Bytes as tokens: ids 0..255 are the bytes of the UTF-8 text, special tokens follow.

Nothing to train, nothing unknown, and the longest sequences of all.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmworks.base.errors import DataError
from lmworks.tokenizer.base import END_OF_TEXT, Tokenizer

if TYPE_CHECKING:
    from lmworks.tokenizer.base import Ids

NUM_BYTES = 256


class ByteTokenizer(Tokenizer):
    """One token per byte."""

    kind = "byte"

    def __init__(self, special_tokens: Sequence[str] = (END_OF_TEXT,)) -> None:
        if len(set(special_tokens)) < len(special_tokens):
            raise DataError(f"special tokens {list(special_tokens)} hold one twice; keep one")
        super().__init__({name: NUM_BYTES + i for i, name in enumerate(special_tokens)})

    @property
    def vocab_size(self) -> int:
        return NUM_BYTES + len(self._specials.names)

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < NUM_BYTES:
            return bytes([token_id])
        if not NUM_BYTES <= token_id < self.vocab_size:
            self._refuse_id(token_id)
        return self._specials.encoded[token_id - NUM_BYTES]

    def _encode_plain(self, text: bytes) -> "Ids":
        import numpy as np

        return np.frombuffer(text, np.uint8).astype(np.uint32)

    def content(self) -> dict[str, Any]:
        return {"special_tokens": list(self._specials.names)}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "ByteTokenizer":
        return cls(content["special_tokens"])

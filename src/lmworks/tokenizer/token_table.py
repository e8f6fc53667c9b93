"""Token bytes by id as one row of bytes: no Python object per token until one is asked for."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from lmworks.base.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TokenTable:
    """The bytes of each id; None where an id has no token."""

    def __init__(self, token_bytes: bytes, offsets: "NDArray[np.uint64]") -> None:
        """Args:
        token_bytes: all tokens in a row, in the order of their ids.
        offsets: where each begins, and the end; an id without a token takes no bytes.
        """
        self.token_bytes = token_bytes
        self.offsets = offsets

    @classmethod
    def of(cls, tokens: Iterable[bytes | None]) -> "TokenTable":
        """The table of these tokens; DataError when one is empty."""
        tokens = list(tokens)
        if b"" in tokens:
            raise DataError(f"token {tokens.index(b'')} is empty; a token has at least one byte")
        return cls(*pack_tokens([token or b"" for token in tokens]))

    @classmethod
    def by_id(cls, token_bytes: bytes, sizes: Iterable[int], ids: Iterable[int]) -> "TokenTable":
        """The table of tokens in a row that have these rising ids."""
        import numpy as np

        at = np.fromiter(ids, np.int64)
        lengths = np.zeros(int(at[-1]) + 1 if len(at) else 0, np.uint64)
        lengths[at] = np.fromiter(sizes, np.uint64, len(at))
        return cls(token_bytes, np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, token_id: int) -> bytes | None:
        begin, end = int(self.offsets[token_id]), int(self.offsets[token_id + 1])
        return self.token_bytes[begin:end] or None

    def __iter__(self) -> Iterator[bytes | None]:
        for begin, end in pairwise(self.offsets.tolist()):
            yield self.token_bytes[begin:end] or None

    def missing_bytes(self) -> bytes:
        """The bytes that are no tokens of their own."""
        import numpy as np

        begins = self.offsets[:-1][np.diff(self.offsets) == 1]
        is_there = np.zeros(256, np.bool_)
        is_there[np.frombuffer(self.token_bytes, np.uint8)[begins]] = True
        return bytes(np.flatnonzero(~is_there).tolist())


def pack_tokens(tokens: Iterable[bytes]) -> "tuple[bytes, NDArray[np.uint64]]":
    """All tokens in a row and the place of each, one more place than tokens (native format)."""
    import numpy as np

    tokens = list(tokens)
    offsets = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(np.fromiter(map(len, tokens), np.uint64, len(tokens)), out=offsets[1:])
    return b"".join(tokens), offsets

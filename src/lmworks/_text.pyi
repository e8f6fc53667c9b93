"""Types of the native tokenizer core (csrc/bindings/text_*.cpp)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# ---- pre-tokenization and training (text_train.cpp) ----

PATTERNS: dict[str, str]

def split(text: bytes, pattern: str) -> list[bytes]: ...
def count_pieces(text: bytes, pattern: str) -> int: ...
def utf8_error_offset(text: bytes) -> int: ...
def safe_cut(text: bytes, start: int) -> int: ...

class BpeTrainer:
    """Reports are called as report(done, total): bytes while counting, then merges."""

    def __init__(self, pattern: str, special_tokens: Sequence[bytes], num_threads: int) -> None: ...
    def count_file(
        self, path: bytes, allow_invalid_utf8: bool, report: Callable[[int, int], None] | None
    ) -> int | None:
        """Offset of the first byte that is not UTF-8, or None."""
    def count_texts(self, texts: list[bytes]) -> None: ...
    def train(
        self, max_merges: int, report: Callable[[int, int], None] | None
    ) -> list[tuple[bytes, bytes]]: ...
    @property
    def num_pieces(self) -> int: ...

# ---- encoding and decoding (text_encode.cpp) ----

MAX_TOKENS: int
MAX_MERGES: int

def decode_bytes(
    token_bytes: bytes, token_offsets: NDArray[np.uint64], ids: NDArray[np.uint32]
) -> bytes: ...

class SpecialSplitter:
    def __init__(self, tokens: Sequence[bytes]) -> None: ...
    def find(self, text: bytes, actions: bytes) -> list[tuple[int, int, int]]: ...
    def cut(self, text: bytes, actions: bytes, pattern: str | None) -> int: ...

class BpeEncoder:
    """A text with a forbidden special token gives that token's index instead of ids."""

    def __init__(
        self,
        pattern: str,
        ignore_merges: bool,
        token_bytes: bytes,
        token_offsets: NDArray[np.uint64],
        merges: NDArray[np.uint32],
        specials: Sequence[bytes],
        special_ids: Sequence[int],
        max_cache_slots: int,
        outputs: NDArray[np.uint32] | None = None,
        output_offsets: NDArray[np.uint64] | None = None,
    ) -> None: ...
    def encode_to_numpy(self, text: bytes, actions: bytes) -> NDArray[np.uint32] | int: ...
    def encode_to_list(self, text: bytes, actions: bytes) -> list[int] | int: ...
    def encode_batch(
        self, texts: Sequence[bytes], actions: bytes, num_threads: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]] | int: ...
    def encode_pieces(self, text: bytes, ends: NDArray[np.uint64]) -> NDArray[np.uint32]: ...
    def ids_to_list(self, ids: NDArray[np.uint32]) -> list[int]: ...

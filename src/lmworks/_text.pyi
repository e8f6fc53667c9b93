"""Types of the native tokenizer core (csrc/bindings/text_*.cpp)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# ---- pre-tokenization and training (text_train.cpp) ----

PATTERNS: dict[str, str]

def split(text: bytes, pattern: str) -> list[bytes]: ...
def scan_piece_ends(text: bytes, pattern: str) -> list[int]:
    """Ends of the pieces of split(), found as encoding does: for stretches of text at once."""

def count_pieces(text: bytes, pattern: str) -> int: ...
def utf8_error_offset(text: bytes) -> int: ...
def safe_cut(text: bytes, start: int) -> int: ...

class BpeTrainer:
    """Counts pieces, then chooses merges; train_reference.py is the same in plain Python.

    Reports are called as report(done, total): bytes while counting, then merges.
    """

    def __init__(
        self,
        pattern: str | None,
        special_tokens: Sequence[bytes],
        num_threads: int,
        *,
        settings: bytes = b"",
        max_memory_bytes: int = 0,
        spill_folder: bytes = b"",
    ) -> None:
        """`pattern` None: only count_pieces() counts. Special tokens are cut out, not counted.

        `settings`: whatever else pieces depend on (another regular expression, a normalizer), as
        UTF-8; files of counts with other settings are refused. Under `max_memory_bytes` (0: no
        limit; of tables and merging, not of Python) counts spill into nameless files of
        `spill_folder`: OSError names that folder if it cannot be written. MemoryError: too little
        for the threads.
        """
    def count_file(
        self, path: bytes, allow_invalid_utf8: bool, report: Callable[[int, int], None] | None
    ) -> int | None:
        """Offset of the first byte that is not UTF-8, or None.

        OSError if the file cannot be read; with errno ESTALE if it changed while it was read, EFBIG
        if more than 1 GiB of it has no place to cut.
        """
    def count_texts(self, texts: list[bytes]) -> None: ...
    def count_pieces(self, text: bytes, ends: NDArray[np.uint64]) -> None:
        """Count pieces cut by the caller; special tokens are not looked for."""
    def save_counts(self, path: bytes) -> None:
        """Write all counts so far; equal counts give equal files. Not atomic: use atomic_file."""
    def add_counts(self, path: bytes) -> None:
        """Add counts of a file; ValueError (nothing is added) if damaged or of other settings."""
    def train(
        self,
        max_merges: int,
        report: Callable[[int, int], None] | None,
        *,
        ties: str = "bytes",
        min_frequency: int = 1,
        max_token_bytes: int | None = None,
        initial_merges: Sequence[tuple[bytes, bytes]] = (),
        seeds: Sequence[bytes] = (),
        reserved: Sequence[bytes] = (),
        initial_alphabet: bytes | None = None,
        alphabet_limit: int = 256,
    ) -> list[tuple[bytes, bytes]]:
        """New merges in the order of choice, those that make the seeds first; uses up the counts.

        Each of the 256 bytes that is not in `alphabet` afterwards is room for one merge more than
        `max_merges` (which may be negative). `initial_merges` are applied to all pieces first, in
        the order of their ranks, and not returned. No merge makes a `reserved` byte string.
        ValueError: the seeds need more merges than there is room for, or an initial merge joins
        unknown tokens. OverflowError: counts sum up to 2^63. MemoryError: the distinct pieces alone
        exceed the memory limit.
        """
    @property
    def alphabet(self) -> bytes:
        """Bytes that are tokens after train(), in the order of Hugging Face's ids."""
    @property
    def num_pieces(self) -> int: ...

# ---- encoding and decoding (text_encode.cpp) ----

MAX_TOKENS: int
MAX_MERGES: int

def decode_bytes(
    token_bytes: bytes, token_offsets: NDArray[np.uint64], ids: NDArray[np.uint32]
) -> bytes: ...

class SpecialSplitter:
    def __init__(self, tokens: list[bytes], flags: bytes) -> None: ...
    def find(self, text: bytes, actions: bytes) -> list[tuple[int, int, int]] | int:
        """(begin, end, index) of each special token, or the index of a forbidden one."""
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
        specials: SpecialSplitter,
        special_ids: Sequence[int],
        max_cache_slots: int,
        outputs: NDArray[np.uint32] | None = None,
        output_offsets: NDArray[np.uint64] | None = None,
        ranks: NDArray[np.uint32] | None = None,
    ) -> None: ...
    def encode_to_numpy(self, text: bytes, actions: bytes) -> NDArray[np.uint32] | int: ...
    def encode_to_list(self, text: bytes, actions: bytes) -> list[int] | int: ...
    def encode_batch(
        self,
        texts: Sequence[str | bytes],
        actions: bytes,
        num_threads: int,
        to_bytes: Callable[[str | bytes], bytes],
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]] | int: ...
    def encode_pieces(self, text: bytes, ends: NDArray[np.uint64]) -> NDArray[np.uint32]: ...
    def ids_to_list(self, ids: NDArray[np.uint32]) -> list[int]: ...

# ---- vocabularies from files (text_vocabulary.cpp) ----

def find_duplicate_tokens(
    token_bytes: bytes, token_offsets: NDArray[np.uint64]
) -> tuple[int, int] | None: ...
def merge_table(
    token_bytes: bytes, token_offsets: NDArray[np.uint64], pairs: NDArray[np.uint32]
) -> NDArray[np.uint32] | tuple[int, str]: ...
def recover_merges(
    token_bytes: bytes, token_offsets: NDArray[np.uint64]
) -> tuple[NDArray[np.uint32], bool]: ...
def all_splits(
    token_bytes: bytes, token_offsets: NDArray[np.uint64], first: int
) -> NDArray[np.uint32]: ...
def parse_ranks(file: bytes) -> tuple[bytes, NDArray[np.uint64]] | None: ...

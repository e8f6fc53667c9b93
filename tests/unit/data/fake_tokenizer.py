"""A byte tokenizer that can be wrong: no end-of-text token, ids outside its vocabulary, slow.

It lives in a module of its own because other processes import it by name.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


class FakeTokenizer:
    """Ids are bytes; 256 ends a text. The arguments choose what is wrong with it."""

    kind = "byte"

    def __init__(self, *, vocab_size: int = 257, has_eot: bool = True, wide: bool = False) -> None:
        self.vocab_size = 70_000 if wide else vocab_size
        self.eot_id = 256 if has_eot else None
        self.fingerprint = hashlib.sha256(f"fake {self.vocab_size}".encode()).hexdigest()

    def encode_batch_to_numpy(
        self, texts: list[bytes], **_: Any
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        starts = np.cumsum([0, *map(len, texts)]).astype(np.uint64)
        return np.frombuffer(b"".join(texts), dtype=np.uint8).astype(np.uint32), starts

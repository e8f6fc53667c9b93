"""The keys and values of tokens already seen, so that decoding computes each token once.

One contiguous buffer per layer for keys and one for values, allocated up front. A forward pass
appends its tokens layer by layer and `advance`s once at the end: if it fails half-way, the cache
still holds what it held.
Shapes: B batch, K kv heads, T new tokens, S cached and new tokens, D elements of a
key, E of a value.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lmworks.base.errors import ConfigError


class KVCache:
    """Room for `max_seq_len` tokens of `batch_size` sequences of equal length."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        *,
        batch_size: int,
        max_seq_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """`shapes`: per layer (kv heads, elements of a key, elements of a value)."""

        def buffer(num_heads: int, dim: int) -> Tensor:
            shape = (batch_size, num_heads, max_seq_len, dim)
            return torch.empty(shape, dtype=dtype, device=device)

        self.keys = [buffer(num_heads, key_dim) for num_heads, key_dim, _ in shapes]
        self.values = [buffer(num_heads, value_dim) for num_heads, _, value_dim in shapes]
        self.batch_size = batch_size
        self.max_seq_len = max_seq_len
        self.length = 0
        """Tokens held, the same in every layer and sequence."""

    @property
    def size_bytes(self) -> int:
        """Memory of all buffers."""
        return sum(buffer.nbytes for buffer in (*self.keys, *self.values))

    def append(
        self, layer: int, k_BKTD: Float[Tensor, "B K T D"], v_BKTE: Float[Tensor, "B K T E"]
    ) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S E"]]:
        """Store new keys and values of `layer` after the held ones; return all of them as views.

        `length` does not move before `advance`.
        """
        end = self.length + k_BKTD.shape[2]
        self.check_room(k_BKTD.shape[2])
        self.keys[layer][:, :, self.length : end] = k_BKTD
        self.values[layer][:, :, self.length : end] = v_BKTE
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def check_room(self, num_tokens: int) -> None:
        """Raise ConfigError if `num_tokens` more do not fit."""
        if self.length + num_tokens > self.max_seq_len:
            raise ConfigError(
                f"{num_tokens} more tokens after {self.length} cached ones do not fit the cache of "
                f"max_seq_len={self.max_seq_len}; at most {self.max_seq_len - self.length} do"
            )

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` appended to every layer as held."""
        self.check_room(num_tokens)
        self.length += num_tokens

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length} is not between 0 and the cache's {self.length}")
        self.length = length

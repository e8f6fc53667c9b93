"""The keys and values of tokens already seen, so that decoding computes each token once.

One contiguous buffer per layer for keys and one for values, allocated up front. A forward pass
appends its tokens layer by layer and `advance`s once at the end: if it fails half-way, the cache
still holds what it held. A layer that sees a bounded number of tokens holds no more than those and
a few to spare (Mistral 7B, Jiang et al. 2023, arXiv 2310.06825, section 2): the first tokens of its
mask stay where they are, the others move to the front whenever the buffer is full.
Shapes: B batch, K kv heads, T new tokens, S keys returned, D elements of a key, E of a value.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lmworks.base.errors import ConfigError
from lmworks.nn.attention.mask import KeySpan
from lmworks.nn.config import FullMaskConfig, MaskConfig, cache_slots, tokens_after_rolling


class KVCache:
    """Room for `max_seq_len` tokens of `batch_size` sequences of equal length."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        *,
        batch_size: int,
        max_seq_len: int,
        masks: Sequence[MaskConfig] = (),
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """`shapes`: per layer (kv heads, elements of a key, elements of a value); `masks`: what
        each layer's tokens see (empty: everything)."""
        self.masks = list(masks) or [FullMaskConfig() for _ in shapes]
        self.batch_size = batch_size
        self.max_seq_len = max_seq_len
        self.length = 0
        """Tokens seen, the same in every layer and sequence."""
        slots = [cache_slots(mask, max_seq_len) for mask in self.masks]

        def buffers(part: int) -> list[Tensor]:
            return [
                torch.empty(
                    (batch_size, shape[0], num_slots, shape[part]), dtype=dtype, device=device
                )
                for shape, num_slots in zip(shapes, slots, strict=True)
            ]

        self.keys, self.values = buffers(1), buffers(2)
        # Position of the token in the slot after the mask's first tokens. It grows when tokens move
        # to the front; positions before it are forgotten, the first tokens excepted.
        self._origins = [mask.num_first_tokens for mask in self.masks]
        self._too_long: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory of all buffers."""
        return sum(buffer.nbytes for buffer in (*self.keys, *self.values))

    def span(self, layer: int, num_tokens: int) -> KeySpan:
        """Positions of the keys that `append` returns for that many new tokens, after `check_room`
        was asked for them."""
        mask, end = self.masks[layer], self.length + num_tokens
        if mask.reach is None:
            return KeySpan(0, 0, end)
        if mask.num_first_tokens:
            return KeySpan(mask.num_first_tokens, self._origins[layer], end).joined()
        return KeySpan(0, max(0, self.length - mask.reach), end)

    def append(
        self, layer: int, k_BKTD: Float[Tensor, "B K T D"], v_BKTE: Float[Tensor, "B K T E"]
    ) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S E"]]:
        """Store new keys and values of `layer` after the held ones; return those that the new
        tokens may see, as views where they lie side by side.

        `length` does not move before `advance`.
        """
        num_tokens = k_BKTD.shape[2]
        self.check_room(num_tokens)
        span = self.span(layer, num_tokens)
        self._too_long.pop(layer, None)
        end_slot = self._slot(layer, span.end)
        if end_slot > self.keys[layer].shape[2]:
            return self._append_too_long(layer, span, k_BKTD, v_BKTE)
        start_slot = self._slot(layer, self.length)
        self.keys[layer][:, :, start_slot:end_slot] = k_BKTD
        self.values[layer][:, :, start_slot:end_slot] = v_BKTE
        held = slice(0 if span.num_first else self._slot(layer, span.start), end_slot)
        return self.keys[layer][:, :, held], self.values[layer][:, :, held]

    def check_room(self, num_tokens: int) -> None:
        """Make room for `num_tokens` more; raise ConfigError if they do not fit."""
        if self.length + num_tokens > self.max_seq_len:
            raise ConfigError(
                f"{num_tokens} more tokens after {self.length} cached ones do not fit the cache of "
                f"max_seq_len={self.max_seq_len}; at most {self.max_seq_len - self.length} do"
            )
        for layer, buffer in enumerate(self.keys):
            if self._slot(layer, self.length + num_tokens) > buffer.shape[2]:
                self._move_to_front(layer)

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` appended to every layer as held."""
        self.check_room(num_tokens)
        self.length += num_tokens
        for layer, (k, v) in self._too_long.items():
            first = self.masks[layer].num_first_tokens
            self._origins[layer] = self.length - k.shape[2]
            self.keys[layer][:, :, first : first + k.shape[2]] = k
            self.values[layer][:, :, first : first + k.shape[2]] = v
        self._too_long.clear()

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`.

        Raises:
            ConfigError: a layer with a window has forgotten tokens that the next one would see;
                going back by `ROLLBACK_TOKENS` is always possible.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length} is not between 0 and the cache's {self.length}")
        for mask, origin in zip(self.masks, self._origins, strict=True):
            if mask.reach is not None and origin > max(mask.num_first_tokens, length - mask.reach):
                raise ConfigError(
                    f"the cache cannot go back from {self.length} tokens to {length}: layers with "
                    f"{mask.kind} attention hold tokens from {origin} on only, and the next token "
                    f"sees {mask.reach} before it; go back to {origin + mask.reach} at most, or "
                    "compute the text again"
                )
        self.length = length

    def repeated(self, num_sequences: int) -> "KVCache":
        """A cache of `num_sequences` sequences that all hold what the one of this cache does."""
        shapes = [
            (k.shape[1], k.shape[3], v.shape[3])
            for k, v in zip(self.keys, self.values, strict=True)
        ]
        wide = KVCache(
            shapes,
            batch_size=num_sequences,
            max_seq_len=self.max_seq_len,
            masks=self.masks,
            dtype=self.keys[0].dtype,
            device=self.keys[0].device,
        )
        wide.length, wide._origins = self.length, list(self._origins)
        for layer in range(len(shapes)):
            held = slice(0, self._slot(layer, self.length))
            wide.keys[layer][:, :, held] = self.keys[layer][:, :, held]
            wide.values[layer][:, :, held] = self.values[layer][:, :, held]
        return wide

    def _slot(self, layer: int, position: int) -> int:
        """Where a position is held, or would be."""
        first = self.masks[layer].num_first_tokens
        return position if position < first else first + position - self._origins[layer]

    def _move_to_front(self, layer: int) -> None:
        """Forget what is out of sight, so that the slots at the end are free."""
        mask = self.masks[layer]
        kept = tokens_after_rolling(mask)
        assert kept is not None, "an unbounded layer has a slot for every token"
        first = mask.num_first_tokens
        origin = max(self._origins[layer], self.length - kept)
        held = slice(self._slot(layer, origin), self._slot(layer, self.length))
        for buffer in (self.keys[layer], self.values[layer]):
            buffer[:, :, first : first + held.stop - held.start] = buffer[:, :, held].clone()
        self._origins[layer] = origin

    def _append_too_long(
        self, layer: int, span: KeySpan, k_BKTD: Tensor, v_BKTE: Tensor
    ) -> tuple[Tensor, Tensor]:
        """More new tokens than slots: they see themselves and what was held, the last stay."""
        mask = self.masks[layer]
        kept = tokens_after_rolling(mask)
        assert kept is not None, "an unbounded layer has a slot for every token"
        held = slice(
            0 if span.num_first else self._slot(layer, span.start), self._slot(layer, self.length)
        )
        results, last = [], []
        for buffer, new in ((self.keys[layer], k_BKTD), (self.values[layer], v_BKTE)):
            everything = torch.cat((buffer[:, :, held], new), dim=2) if held.stop else new
            if self.length < mask.num_first_tokens:
                firsts = slice(self.length, mask.num_first_tokens)
                buffer[:, :, firsts] = everything[:, :, firsts]
            results.append(everything)
            # Held tokens are needed until all layers are done: `advance` puts these in their place.
            last.append(everything[:, :, -min(kept, span.end - mask.num_first_tokens) :].clone())
        self._too_long[layer] = (last[0], last[1])
        return results[0], results[1]

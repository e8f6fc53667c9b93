"""Which earlier tokens a token may see, as data: every kind is causal, and counts what it saves.

What the kinds mean token by token is `nn.attention.mask.visible`. In packed rows all of it counts
from the start of the token's document. T is the number of tokens of a sequence.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from lmworks.base.config import Config

QUERY_BLOCK = 128
"""Fewer queries than these are never split."""
LONG_REACH = 512
"""From here on blocks are twice as large."""
ROLLBACK_TOKENS = 32
"""Tokens that a bounded cache keeps beyond those that the next token sees, so that as many can be
taken back (a rejected draft)."""


class FullMaskConfig(Config):
    """All tokens up to itself."""

    kind: Literal["full"] = "full"

    @property
    def num_first_tokens(self) -> int:
        """First tokens of a text that all later ones see however far away: none by rule."""
        return 0

    @property
    def reach(self) -> int | None:
        """How far back a token sees beside the first tokens; None is without bound."""
        return None

    def max_visible(self, num_tokens: int) -> int:
        """Most keys that a query of T tokens sees."""
        return num_tokens

    def total_visible(self, num_tokens: int) -> int:
        """Keys seen by the queries of T tokens, summed."""
        return _triangle(num_tokens)


class WindowMaskConfig(Config):
    """The last `size` tokens, itself among them (Mistral 7B, Jiang et al. 2023, arXiv 2310.06825,
    section 2), and the first `num_sink_tokens` (StreamingLLM, Xiao et al. 2023, 2309.17453)."""

    kind: Literal["window"] = "window"
    size: PositiveInt
    """Tokens in the window, the reading one included."""
    num_sink_tokens: NonNegativeInt = 0
    """First tokens that stay visible: attention parks its unused weight there."""

    @property
    def num_first_tokens(self) -> int:
        """The sinks."""
        return self.num_sink_tokens

    @property
    def reach(self) -> int | None:
        """Distance to the furthest token of the window."""
        return self.size - 1

    def max_visible(self, num_tokens: int) -> int:
        """Most keys that a query of T tokens sees."""
        return min(num_tokens, self.size + self.num_sink_tokens)

    def total_visible(self, num_tokens: int) -> int:
        """Keys seen by the queries of T tokens, summed: min(t, size + sinks) of the t-th."""
        full = self.max_visible(num_tokens)
        return _triangle(full) + (num_tokens - full) * full


class StridedMaskConfig(Config):
    """The last `window` tokens and every `stride`-th before the reading one (Sparse Transformer,
    Child et al. 2019, arXiv 1904.10509, section 4.2: the patterns of its two heads in one)."""

    kind: Literal["strided"] = "strided"
    stride: PositiveInt
    """Distances that are multiples of this are visible."""
    window: PositiveInt
    """Tokens before it that are all visible, the reading one included; the paper's is stride."""

    @property
    def num_first_tokens(self) -> int:
        """None by rule."""
        return 0

    @property
    def reach(self) -> int | None:
        """No bound: strides go back to the start."""
        return None

    def max_visible(self, num_tokens: int) -> int:
        """Most keys that a query of T tokens sees: the last one's."""
        return min(num_tokens, self.window) + self._num_strides(num_tokens - 1)

    def total_visible(self, num_tokens: int) -> int:
        """Keys seen by the queries of T tokens, summed."""
        near = min(num_tokens, self.window)
        total = _triangle(near) + (num_tokens - near) * near
        far = max(num_tokens - self.window, 0)
        strides = _sum_of_quotients(num_tokens, self.stride)
        strides -= _sum_of_quotients(num_tokens - far, self.stride)
        return total + strides - far * ((self.window - 1) // self.stride)

    def _num_strides(self, position: int) -> int:
        """Multiples of the stride from `window` to `position`."""
        return max(position // self.stride - (self.window - 1) // self.stride, 0)


class BlockMaskConfig(Config):
    """The own block of tokens, the `num_local_blocks` - 1 before it, and the first
    `num_global_tokens` of the text (BigBird, Zaheer et al. 2020, arXiv 2007.14062, section 2,
    without its random blocks; Longformer, Beltagy et al. 2020, 2004.05150, section 3.1)."""

    kind: Literal["block"] = "block"
    block_size: PositiveInt
    """Tokens of a block."""
    num_local_blocks: PositiveInt = 2
    """Blocks visible, the reading token's own included."""
    num_global_tokens: NonNegativeInt = 0
    """First tokens that all later ones see."""

    @property
    def num_first_tokens(self) -> int:
        """The global tokens."""
        return self.num_global_tokens

    @property
    def reach(self) -> int | None:
        """Distance from the last token of a block to the first one that it sees."""
        return self.num_local_blocks * self.block_size - 1

    def max_visible(self, num_tokens: int) -> int:
        """Most keys that a query of T tokens sees."""
        return min(num_tokens, self.num_local_blocks * self.block_size + self.num_global_tokens)

    def total_visible(self, num_tokens: int) -> int:
        """Keys seen by the queries of T tokens, summed."""
        size, near = self.block_size, min(num_tokens, self.num_local_blocks * self.block_size)
        num_blocks, rest = divmod(num_tokens - near, size)
        before = (self.num_local_blocks - 1) * size
        total = _triangle(near) + num_blocks * (size * before + _triangle(size))
        total += rest * before + _triangle(rest)
        # The i-th of those blocks has i * size tokens before its local ones.
        growing = min(num_blocks, self.num_global_tokens // size)
        outside = size * _triangle(growing) + (num_blocks - growing) * self.num_global_tokens
        return total + size * outside + rest * min(self.num_global_tokens, (num_blocks + 1) * size)


MaskConfig = Annotated[
    FullMaskConfig | WindowMaskConfig | StridedMaskConfig | BlockMaskConfig,
    Field(discriminator="kind"),
]


def query_block_size(mask: MaskConfig) -> int:
    """Queries that are computed together under a mask of bounded reach: with the keys of the window
    and of the block itself, so more of them under a long window, where products should be large."""
    return QUERY_BLOCK if mask.reach is None or mask.reach < LONG_REACH else 2 * QUERY_BLOCK


def key_blocks(mask: MaskConfig, num_tokens: int) -> list[tuple[int, int]]:
    """(queries, keys that they read) of each block that T tokens are computed in; one block where
    nothing would be saved."""
    if mask.reach is None or num_tokens <= max(mask.reach + 1, QUERY_BLOCK):
        return [(num_tokens, num_tokens)]
    size, blocks = query_block_size(mask), []
    for start in range(0, num_tokens, size):
        end = min(start + size, num_tokens)
        first = max(0, start - mask.reach)
        blocks.append((end - start, end - first + min(mask.num_first_tokens, first)))
    return blocks


def tokens_after_rolling(mask: MaskConfig) -> int | None:
    """Tokens beside the first ones that a bounded cache keeps when it is full; None: all."""
    return None if mask.reach is None else mask.reach + ROLLBACK_TOKENS


def cache_slots(mask: MaskConfig, max_seq_len: int) -> int:
    """Tokens that a layer's cache has room for, where the context is `max_seq_len`.

    A quarter of the window is spare, so that tokens move only every so often when it rolls on.
    """
    kept = tokens_after_rolling(mask)
    if kept is None:
        return max_seq_len
    return min(max_seq_len, mask.num_first_tokens + kept + max(ROLLBACK_TOKENS, kept // 4))


def _triangle(number: int) -> int:
    """1 + 2 + ... + number."""
    return number * (number + 1) // 2


def _sum_of_quotients(end: int, divisor: int) -> int:
    """The sum of t // divisor over 0 <= t < end."""
    quotient, rest = divmod(end, divisor)
    return divisor * _triangle(quotient - 1) + rest * quotient

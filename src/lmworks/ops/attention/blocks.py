"""Attention block by block of queries, each reading only the keys that it may see.

Under a window of W tokens, blocks of Q queries read Q + W keys each: time and memory grow with T,
not with its square. How one block is computed is the caller's choice.
Shapes: B batch, H query heads, K kv heads, T queries, S keys, D elements of a key, E of a value.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class QueryBlock(NamedTuple):
    """Some queries and the keys that they read, as places among the queries and keys given."""

    first_query: int
    end_query: int
    num_first_keys: int
    """Keys read from the start, beside those from `first_key` to `end_key`."""
    first_key: int
    end_key: int
    mask: Bool[Tensor, "... T S"] | None
    """True where a query may see a key, the first ones before the others; None is causal."""


def blockwise_attention(
    q_BHTD: Float[Tensor, "B H T D"],
    k_BKSD: Float[Tensor, "B K S D"],
    v_BKSE: Float[Tensor, "B K S E"],
    *,
    blocks: Sequence[QueryBlock],
    bias: Float[Tensor, "... T S"] | None,
    attend: Callable[..., Tensor],
) -> Float[Tensor, "B H T E"]:
    """`attend(q, k, v, mask=, bias=)` of each block, side by side; blocks are in order."""
    keys, values = _keys_of_blocks(k_BKSD, blocks), _keys_of_blocks(v_BKSE, blocks)
    # Split, not sliced: every slice would fill a gradient of the whole length.
    sizes = [block.end_query - block.first_query for block in blocks]
    queries = torch.split(q_BHTD, sizes, dim=2)
    rows = [None] * len(blocks) if bias is None else torch.split(bias, sizes, dim=-2)
    outputs = [
        attend(q, k, v, mask=block.mask, bias=_bias_of_block(row, block))
        for block, q, k, v, row in zip(blocks, queries, keys, values, rows, strict=True)
    ]
    return torch.cat(outputs, dim=2)


def block_masks_as_one(
    blocks: Sequence[QueryBlock], num_keys: int, device: torch.device
) -> Bool[Tensor, "... T S"]:
    """The blocks' masks as one matrix."""
    rows = []
    for block in blocks:
        num_queries, end = block.end_query - block.first_query, block.end_key
        seen = block.mask
        if seen is None:
            ones = torch.ones(num_queries, end - block.first_key, dtype=torch.bool, device=device)
            seen = ones.tril(end - block.first_key - num_queries)
        row = seen.new_zeros((*seen.shape[:-1], num_keys))
        row[..., : block.num_first_keys] = seen[..., : block.num_first_keys]
        row[..., block.first_key : end] = seen[..., block.num_first_keys :]
        rows.append(row)
    return torch.cat(rows, dim=-2)


def causal_blocks(
    num_queries: int, num_keys: int, size: int, mask: Bool[Tensor, "... T S"] | None
) -> list[QueryBlock]:
    """Blocks of `size` queries, the last query at the last key; `mask` may narrow what they see."""
    offset, blocks = num_keys - num_queries, []
    for first in range(0, num_queries, size):
        end = min(first + size, num_queries)
        end_key = offset + end if mask is None else num_keys
        seen = None if mask is None else mask[..., first:end, :]
        blocks.append(QueryBlock(first, end, 0, 0, end_key, seen))
    return blocks


def _keys_of_blocks(x_BKSD: Tensor, blocks: Sequence[QueryBlock]) -> list[Tensor]:
    ranges = [(block.first_key, block.end_key) for block in blocks]
    take: Callable[..., tuple[Tensor, ...]] = _OverlappingRanges.apply
    num_first = max(block.num_first_keys for block in blocks)
    if num_first == 0:
        return list(take(x_BKSD, ranges))
    first, *parts = take(x_BKSD, [(0, num_first), *ranges])
    return [
        torch.cat((first[:, :, : block.num_first_keys], part), dim=2)
        if block.num_first_keys
        else part
        for block, part in zip(blocks, parts, strict=True)
    ]


def _bias_of_block(rows: Tensor | None, block: QueryBlock) -> Tensor | None:
    if rows is None:
        return None
    part = rows[..., block.first_key : block.end_key]
    if block.num_first_keys == 0:
        return part
    return torch.cat((rows[..., : block.num_first_keys], part), dim=-1)


class _OverlappingRanges(torch.autograd.Function):
    """Views of ranges of dim 2. Slices would each fill a gradient of the whole length; here the
    overlapping parts are added into one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        ctx.shape, ctx.ranges = x.shape, ranges
        return tuple(x[:, :, start:end] for start, end in ranges)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].new_zeros(ctx.shape)
        for (start, end), gradient in zip(ctx.ranges, gradients, strict=True):
            total[:, :, start:end] += gradient
        return total, None

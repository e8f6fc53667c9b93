"""Which keys a query may see.

`visible` is the rule itself, token by token; `layer_mask` brings it into the form in which
`ops.attention` is quickest: nothing where plain causal order is all, blocks of queries that read
only the keys they need where a mask has a bounded reach, and a matrix elsewhere.
Shapes: B batch, T queries, S keys (cached ones first).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmworks.nn.config import MaskConfig
from lmworks.nn.config.mask import QUERY_BLOCK, query_block_size
from lmworks.ops.attention import Mask, QueryBlock


class KeySpan(NamedTuple):
    """Positions of the keys that a layer reads: the first few, then all from `start` to `end`.

    `start` is 0 or more than `num_first`.
    """

    num_first: int
    start: int
    end: int

    @property
    def num_keys(self) -> int:
        """All of them."""
        return self.num_first + self.end - self.start

    def joined(self) -> "KeySpan":
        """The same keys; first ones that the others go on from are told as one."""
        return KeySpan(0, 0, self.end) if self.start <= self.num_first else self

    def positions(self, device: torch.device) -> Int[Tensor, " S"]:
        """Position of each key."""
        first = torch.arange(self.num_first, device=device)
        return torch.cat((first, torch.arange(self.start, self.end, device=device)))


def visible(
    mask: MaskConfig,
    query_positions: Int[Tensor, "*batch T"],
    key_positions: Int[Tensor, "*batch S"],
) -> Bool[Tensor, "*batch T S"]:
    """True where the query may see the key; positions count from the start of the text."""
    query, key = query_positions[..., :, None], key_positions[..., None, :]
    is_past = key <= query
    if mask.kind == "full":
        return is_past
    if mask.kind == "window":
        return is_past & ((query - key < mask.size) | (key < mask.num_sink_tokens))
    if mask.kind == "strided":
        is_stride = (query - key) % mask.stride == 0
        return is_past & ((query - key < mask.window) | is_stride)
    num_blocks_back = query // mask.block_size - key // mask.block_size
    is_near = num_blocks_back < mask.num_local_blocks
    return is_past & (is_near | (key < mask.num_global_tokens))


def layer_mask(mask: MaskConfig, num_queries: int, keys: KeySpan, device: torch.device) -> Mask:
    """The mask of the last `num_queries` tokens before `keys.end`, for `ops.attention`.

    None stands for plain causal order, the last query at the last key.
    """
    first_query = keys.end - num_queries
    if _is_causal(mask, num_queries, keys):
        return None
    if mask.reach is None or num_queries <= QUERY_BLOCK:
        queries = torch.arange(first_query, keys.end, device=device)
        return visible(mask, queries, keys.positions(device))
    blocks = []
    for start in range(first_query, keys.end, query_block_size(mask)):
        end = min(start + query_block_size(mask), keys.end)
        part = _keys_of_block(mask, start, end, keys)
        queries = torch.arange(start, end, device=device)
        seen = visible(mask, queries, part.positions(device))
        blocks.append(_query_block(start - first_query, end - first_query, part, keys, seen))
    return tuple(blocks)


def packed_layer_mask(
    mask: MaskConfig, document_ids_BT: Int[Tensor, "B T"], positions_BT: Int[Tensor, "B T"]
) -> Mask:
    """The mask of whole packed rows; `positions_BT` count from the start of each document."""

    def rows(queries: slice, keys: slice) -> Bool[Tensor, "B 1 T S"]:
        ids_BT, ids_BS = document_ids_BT[:, queries], document_ids_BT[:, keys]
        seen_BTS = visible(mask, positions_BT[:, queries], positions_BT[:, keys])
        return (seen_BTS & (ids_BT[:, :, None] == ids_BS[:, None, :])).unsqueeze(1)

    num_tokens, everything = document_ids_BT.shape[1], slice(None)
    # The first tokens of every document would have to be gathered from all over the row.
    if mask.reach is None or mask.num_first_tokens or num_tokens <= QUERY_BLOCK:
        return rows(everything, everything)
    blocks, keys = [], KeySpan(0, 0, num_tokens)
    for start in range(0, num_tokens, query_block_size(mask)):
        end = min(start + query_block_size(mask), num_tokens)
        part = _keys_of_block(mask, start, end, keys)
        seen = rows(slice(start, end), slice(part.start, part.end))
        blocks.append(_query_block(start, end, part, keys, seen))
    return tuple(blocks)


def bias_of_keys(
    bias: Float[Tensor, "... T A"] | None, keys: KeySpan
) -> Float[Tensor, "... T S"] | None:
    """The columns of the keys that a layer reads, of a bias for all A positions so far."""
    if bias is None or keys.start == 0:
        return bias
    return torch.cat((bias[..., : keys.num_first], bias[..., keys.start :]), dim=-1)


def _is_causal(mask: MaskConfig, num_queries: int, keys: KeySpan) -> bool:
    """Whether every query sees all keys up to itself."""
    if mask.kind == "full":
        return True
    if mask.reach is None:
        return False
    if keys.start == 0 and keys.end - 1 <= mask.reach:
        return True
    is_one_window = mask.kind == "window" and keys.start >= keys.end - 1 - mask.reach
    return num_queries == 1 and is_one_window and mask.num_first_tokens == 0


def _keys_of_block(mask: MaskConfig, first_query: int, end_query: int, keys: KeySpan) -> KeySpan:
    """The keys that queries at positions `first_query` to `end_query` may see, of those held."""
    assert mask.reach is not None, "callers leave unbounded masks alone"
    start = max(keys.start, first_query - mask.reach)
    num_first = min(mask.num_first_tokens, keys.num_first if keys.num_first else start)
    return KeySpan(num_first, start, end_query).joined()


def _query_block(first: int, end: int, part: KeySpan, keys: KeySpan, seen: Tensor) -> QueryBlock:
    """Positions turned into places among the keys held."""
    before = keys.num_first - keys.start
    first_key = part.start + before if part.start else 0
    return QueryBlock(first, end, part.num_first, first_key, part.end + before, seen)

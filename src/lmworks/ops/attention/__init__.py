"""Scaled dot-product attention with grouped key-value heads.

    out_BHTE = attention(q_BHTD, k_BKSD, v_BKSE)          # causal

What is computed is in `reference`, which LMWORKS_KERNELS=reference picks always. Else torch's fused
kernels (`fused`) do it, or written-out scores that are not kept (`recomputed`) where there is a
soft-cap; both block by block (`blocks`) where queries see a part of the keys only.
Sources: Vaswani et al. 2017 (arXiv 1706.03762, 3.2.1); grouping: Ainslie et al. 2023 (2305.13245);
soft-cap: Gemma 2 (2408.00118, section 2); sinks: Xiao et al. 2023 (2309.17453, 3.3).
Shapes: B batch, H query heads, K kv heads (a divisor of H), T queries, S keys, D elements of a key,
E of a value.
"""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lmworks.ops.attention.blocks import (
    QueryBlock,
    block_masks_as_one,
    blockwise_attention,
    causal_blocks,
)
from lmworks.ops.attention.fused import fused_attention, with_one_head_dim
from lmworks.ops.attention.recomputed import Terms, recomputed_attention
from lmworks.ops.attention.reference import reference_attention
from lmworks.ops.attention.sinks import blocks_with_sink_key, with_sink_key
from lmworks.ops.dispatch import is_reference_forced

__all__ = ["Mask", "QueryBlock", "attention"]

Mask = Bool[Tensor, "... T S"] | Sequence[QueryBlock] | None
"""True where a query may see a key; or blocks of queries with their keys, in order; None is causal,
the last query at the last key."""

_QUERY_BLOCK = 128
"""Queries whose scores are written out at a time."""
_FEW_QUERIES = 16
"""So few, when decoding, that writing their scores out costs less than copying keys and values."""


def attention(
    q_BHTD: Float[Tensor, "B H T D"],
    k_BKSD: Float[Tensor, "B K S D"],
    v_BKSE: Float[Tensor, "B K S E"],
    *,
    mask: Mask = None,
    bias: Float[Tensor, "... T S"] | None = None,
    scale: float | None = None,
    sinks: Float[Tensor, " H"] | None = None,
    logit_softcap: float = 0.0,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """softmax(scale q k^T + bias) v per head. A query must see at least one key.

    Args:
        mask: see `Mask`.
        bias: added to the scores after the soft-cap, broadcast to B x H x T x S; gets a gradient.
        scale: factor of the scores; None is 1 / sqrt(D).
        sinks: one more score per head in the softmax, whose weight goes to no value.
        logit_softcap: scores become cap * tanh(score / cap); 0 leaves them as they are.
        dropout: probability of dropping an attention weight; 0 outside training.
    """
    scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
    num_queries, num_keys = q_BHTD.shape[2], k_BKSD.shape[2]
    if is_reference_forced() or (logit_softcap and dropout):
        if not (mask is None or isinstance(mask, Tensor)):
            mask = block_masks_as_one(mask, num_keys, q_BHTD.device)
        return reference_attention(
            q_BHTD,
            k_BKSD,
            v_BKSE,
            mask=mask,
            bias=bias,
            scale=scale,
            sinks=sinks,
            logit_softcap=logit_softcap,
            dropout=dropout,
        )
    is_decoding_with_sinks = sinks is not None and num_queries <= _FEW_QUERIES and not dropout
    if logit_softcap or is_decoding_with_sinks:
        attend = partial(recomputed_attention, sinks=sinks, terms=Terms(scale, logit_softcap))
        if (mask is None or isinstance(mask, Tensor)) and num_queries > _QUERY_BLOCK:
            mask = causal_blocks(num_queries, num_keys, _QUERY_BLOCK, mask)
        return _by_blocks_or_whole(attend, (q_BHTD, k_BKSD, v_BKSE), mask, bias)
    attend = partial(fused_attention, scale=scale, dropout=dropout)
    qkv = q_BHTD, k_BKSD, v_BKSE
    if sinks is not None:
        is_square = mask is None and bias is None and num_queries == num_keys
        qkv = with_sink_key(*qkv, sinks, scale)
        if is_square:
            # One more query in front keeps it so, which needs no mask; its output is left out.
            q, k, v = qkv
            return attend(F.pad(q, (0, 0, 1, 0)), k, v, mask=None, bias=None)[:, :, 1:]
        bias = None if bias is None else F.pad(bias, (1, 0))
        if isinstance(mask, Tensor):
            mask = F.pad(mask, (1, 0), value=True)
        elif mask is not None:
            mask = blocks_with_sink_key(mask)
    if not (mask is None or isinstance(mask, Tensor)):
        qkv = with_one_head_dim(*qkv)  # here, for all blocks at once
    return _by_blocks_or_whole(attend, qkv, mask, bias)[..., : v_BKSE.shape[-1]]


def _by_blocks_or_whole(
    attend: partial[Tensor],
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Mask,
    bias: Tensor | None,
) -> Tensor:
    if mask is None or isinstance(mask, Tensor):
        return attend(*qkv, mask=mask, bias=bias)
    return blockwise_attention(*qkv, blocks=mask, bias=bias, attend=attend)

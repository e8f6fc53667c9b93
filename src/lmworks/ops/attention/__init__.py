"""Scaled dot-product attention with grouped key-value heads.

    out_BHTD = attention(q_BHTD, k_BKSD, v_BKSD)          # causal

Picks the quickest of torch's fused kernel and two written-out forms; what they compute is in
`reference`, which LMWORKS_KERNELS=reference picks always. Vaswani et al. 2017 (arXiv 1706.03762,
3.2.1); grouping: Ainslie et al. 2023 (arXiv 2305.13245); soft-cap: Gemma 2 (arXiv 2408.00118,
section 2).
Shapes: B batch, H query heads, K kv heads (a divisor of H), T queries, S keys, D head_dim.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lmworks.ops.attention.materialized import MAX_KEYS, materialized_attention
from lmworks.ops.attention.reference import reference_attention
from lmworks.ops.dispatch import is_reference_forced

__all__ = ["attention"]


def attention(
    q_BHTD: Float[Tensor, "B H T D"],
    k_BKSD: Float[Tensor, "B K S D"],
    v_BKSD: Float[Tensor, "B K S D"],
    *,
    mask: Bool[Tensor, "... T S"] | None = None,
    bias: Float[Tensor, "... T S"] | None = None,
    scale: float | None = None,
    logit_softcap: float = 0.0,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T D"]:
    """softmax(scale q k^T + bias) v per head.

    Args:
        mask: True where a query may see a key; None is causal, the last query at the last key.
        bias: added to the scores after the soft-cap, broadcast to B x H x T x S; gets a gradient.
        scale: factor of the scores; None is 1 / sqrt(D).
        logit_softcap: scores become cap * tanh(score / cap); 0 leaves them as they are.
        dropout: probability of dropping an attention weight; 0 outside training.
    """
    if logit_softcap or is_reference_forced():
        return reference_attention(
            q_BHTD,
            k_BKSD,
            v_BKSD,
            mask=mask,
            bias=bias,
            scale=scale,
            logit_softcap=logit_softcap,
            dropout=dropout,
        )
    num_queries, num_keys = q_BHTD.shape[2], k_BKSD.shape[2]
    if (
        q_BHTD.device.type == "cpu"
        and q_BHTD.dtype == torch.bfloat16
        and mask is None
        and bias is None
        and scale is None
        and not dropout
        and 1 < num_queries == num_keys <= MAX_KEYS
    ):
        return materialized_attention(q_BHTD, k_BKSD, v_BKSD)
    if mask is None and num_queries > 1 and (num_queries != num_keys or bias is not None):
        # torch's is_causal would put the first query at the first key, and allows no bias.
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_BHTD.device)
        mask = mask.tril(num_keys - num_queries)
    # A single query is the newest token: it sees every key, which needs no mask.
    added: Tensor | None = mask
    if bias is not None:
        added = bias.to(q_BHTD.dtype)
        added = added if mask is None else torch.where(mask, added, -torch.inf)
    return F.scaled_dot_product_attention(
        q_BHTD,
        k_BKSD,
        v_BKSD,
        attn_mask=added,
        dropout_p=dropout,
        is_causal=added is None and num_queries > 1,
        scale=scale,
        enable_gqa=q_BHTD.shape[1] != k_BKSD.shape[1],
    )

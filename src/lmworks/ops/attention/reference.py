"""Attention written out plainly: scores and weights in at least float32.

Shapes: B batch, H query heads, K kv heads, T queries, S keys, D elements of a key, E of a
value.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def reference_attention(
    q_BHTD: Float[Tensor, "B H T D"],
    k_BKSD: Float[Tensor, "B K S D"],
    v_BKSE: Float[Tensor, "B K S E"],
    *,
    mask: Bool[Tensor, "... T S"] | None = None,
    bias: Float[Tensor, "... T S"] | None = None,
    scale: float | None = None,
    sinks: Float[Tensor, " H"] | None = None,
    logit_softcap: float = 0.0,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """Holds the B x H x T x S scores; see the public function for the arguments."""
    num_groups = q_BHTD.shape[1] // k_BKSD.shape[1]
    k_BHSD = k_BKSD.repeat_interleave(num_groups, dim=1)
    v_BHSE = v_BKSE.repeat_interleave(num_groups, dim=1)
    scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
    scores_BHTS = q_BHTD @ k_BHSD.transpose(-1, -2) * scale
    if scores_BHTS.dtype != torch.float64:
        scores_BHTS = scores_BHTS.float()
    if logit_softcap:
        scores_BHTS = logit_softcap * torch.tanh(scores_BHTS / logit_softcap)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if mask is None:
        mask = torch.ones(scores_BHTS.shape[-2:], dtype=torch.bool, device=q_BHTD.device)
        mask = mask.tril(scores_BHTS.shape[-1] - scores_BHTS.shape[-2])
    scores_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        sink_BHT1 = sinks.to(scores_BHTS.dtype)[:, None, None].expand(*scores_BHTS.shape[:-1], 1)
        scores_BHTS = torch.cat((scores_BHTS, sink_BHT1), dim=-1)
    weights_BHTS = scores_BHTS.softmax(dim=-1)[..., : k_BHSD.shape[2]]
    weights_BHTS = F.dropout(weights_BHTS.to(v_BHSE.dtype), dropout, training=dropout > 0)
    return weights_BHTS @ v_BHSE

"""Learned sinks for kernels that know none: one more key, before all others.

A sink takes part in the softmax and gives nothing: a key whose score is the sink's logit and whose
value is zero (gpt-oss; Xiao et al. 2023, arXiv 2309.17453, section 3.3). Keys are shared by heads
and sinks are not, so the logit stands in an extra element of each query and the key is 1 there.
Shapes: B batch, H query heads, K kv heads, T queries, S keys, D elements of a key, E of a value.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lmworks.ops.attention.blocks import QueryBlock

EXTRA_DIMS = 8
"""Elements that a head grows by; fused kernels want multiples of 8."""


def with_sink_key(
    q_BHTD: Float[Tensor, "B H T D"],
    k_BKSD: Float[Tensor, "B K S D"],
    v_BKSE: Float[Tensor, "B K S E"],
    sinks_H: Float[Tensor, " H"],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of D + EXTRA_DIMS elements, keys and values of one more token in front."""
    logit_H11 = (sinks_H / scale).to(q_BHTD.dtype)[:, None, None]
    extra = F.pad(logit_H11, (0, EXTRA_DIMS - 1)).expand(*q_BHTD.shape[:3], -1)
    sink_key = F.pad(torch.ones_like(k_BKSD[:, :, :1, :1]), (k_BKSD.shape[-1], EXTRA_DIMS - 1))
    k = torch.cat((sink_key, F.pad(k_BKSD, (0, EXTRA_DIMS))), dim=2)
    return torch.cat((q_BHTD, extra), dim=-1), k, F.pad(v_BKSE, (0, 0, 1, 0))


def blocks_with_sink_key(blocks: Sequence[QueryBlock]) -> list[QueryBlock]:
    """The blocks where that key is in front."""
    return [
        block._replace(
            num_first_keys=block.num_first_keys + 1,
            first_key=block.first_key + 1,
            end_key=block.end_key + 1,
            mask=None if block.mask is None else F.pad(block.mask, (1, 0), value=True),
        )
        for block in blocks
    ]

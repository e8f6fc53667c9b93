"""Hash routing: the token id alone says which expert (Roller et al. 2021, "Hash Layers For Large
Sparse Models", arXiv 2106.04426, section 3.1, random hash).

Nothing is learned and nothing can collapse. Each layer hashes differently. How even the loads are
depends on how often the tokens of each expert occur.
Shapes: N tokens, E experts.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.moe.choice import Choice, pairs

# Wellons 2018, "Prospecting for Hash Functions" (nullprogram.com/blog/2018/07/31), lowbias32. The
# second multiplier is 0x846CA68B - 2^32: the same modulo 2^32, and no product leaves int64.
_MULTIPLIERS = (0x7FEB352D, 0x846CA68B - (1 << 32))
_SHIFTS = (16, 15)
_MASK = 0xFFFFFFFF
# 2^32 / golden ratio: far apart for neighbouring layers (Knuth, TAOCP volume 3, section 6.4).
_LAYER_STEP = 0x9E3779B9


class HashRouter(nn.Module):
    """One expert per token, weight 1; has no parameters."""

    def __init__(self, *, num_experts: int, layer: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.layer = layer

    def forward(self, x_NC: Float[Tensor, "N C"], token_ids_N: Int[Tensor, " N"]) -> Choice:
        """Look at the ids only."""
        expert_N = mixed(token_ids_N.long() + (self.layer + 1) * _LAYER_STEP) % self.num_experts
        dtype = torch.promote_types(x_NC.dtype, torch.float32)
        weight_N1 = torch.ones(len(expert_N), 1, dtype=dtype, device=x_NC.device)
        return pairs(expert_N.unsqueeze(1), weight_N1, None, None)


def mixed(ids: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """32 well-mixed bits of each id: shifts and odd multipliers, each step reversible mod 2^32."""
    ids = ids & _MASK
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=True):
        ids = ids ^ (ids >> shift)
        ids = (ids * multiplier) & _MASK
    return ids ^ (ids >> 16)

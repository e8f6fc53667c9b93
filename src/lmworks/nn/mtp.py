"""Modules that predict further ahead than the next token; see `nn.config.mtp`.

They take a built block, for what a block is belongs to the model.
Shapes: B batch, T tokens, C residual channels.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmworks.nn.config import NormConfig
from lmworks.nn.linear import Linear
from lmworks.nn.moe.balance import Routing
from lmworks.nn.norm import make_norm


class SequentialModule(nn.Module):
    """One link of the chain (DeepSeek-V3, arXiv 2412.19437, equations 21 to 23)."""

    def __init__(
        self,
        block: nn.Module,
        *,
        d_model: int,
        norm: NormConfig,
        has_final_norm: bool,
        use_bias: bool,
    ) -> None:
        super().__init__()
        self.hidden_norm = make_norm(norm, d_model, use_bias=use_bias)
        self.embed_norm = make_norm(norm, d_model, use_bias=use_bias)
        self.proj = Linear(2 * d_model, d_model, bias=use_bias)
        self.block = block
        self.norm = make_norm(norm, d_model, use_bias=use_bias) if has_final_norm else nn.Identity()

    def forward(
        self,
        hidden_BTC: Float[Tensor, "B T C"],
        next_embed_BTC: Float[Tensor, "B T C"],
        **block_inputs: Any,
    ) -> tuple[Float[Tensor, "B T C"], Routing | None]:
        """What the head reads at this depth, from what it read one depth before and the embedding
        of the token that was predicted there; and what the block's router did."""
        joined = torch.cat((self.hidden_norm(hidden_BTC), self.embed_norm(next_embed_BTC)), dim=-1)
        x_BTC, routing = self.block(self.proj(joined), **block_inputs)
        return self.norm(x_BTC), routing


class ParallelModule(nn.Module):
    """One head of several on the same trunk (Gloeckle et al. 2024, arXiv 2404.19737)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(
        self, trunk_BTC: Float[Tensor, "B T C"], **block_inputs: Any
    ) -> tuple[Float[Tensor, "B T C"], Routing | None]:
        """What the final norm and the head read, and what the block's router did."""
        return self.block(trunk_BTC, **block_inputs)

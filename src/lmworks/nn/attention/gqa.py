"""Causal self-attention with shared key-value heads: MHA, MQA and GQA in one.

Vaswani et al. 2017 (arXiv 1706.03762, 3.2), multi-query: Shazeer 2019 (1911.02150), grouped:
Ainslie et al. 2023 (2305.13245). Options: query-key norm (Henry et al. 2020, 2010.04245, with the
learned norm of Qwen3, or over all heads together as in OLMo 2, 2501.00656, section 2), soft-capped
scores (Gemma 2, 2408.00118, section 2), a learned sink per head (gpt-oss; Xiao et al. 2023,
2309.17453, 3.3). What a token sees is `mask.layer_mask`.
Shapes: B batch, T new tokens, S keys (cached and new), C residual channels, H query heads,
K kv heads, D head_dim, Q all heads of a kind side by side.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmworks.nn.attention.cache import KVCache
from lmworks.nn.config import AttentionConfig, NormConfig
from lmworks.nn.linear import Linear
from lmworks.nn.norm import make_norm
from lmworks.nn.position import Rotation, rotate
from lmworks.ops.attention import Mask, attention


class GroupedQueryAttention(nn.Module):
    """softmax(q k^T / sqrt(D)) v per head, heads joined by `o`."""

    def __init__(
        self,
        config: AttentionConfig,
        *,
        d_model: int,
        norm: NormConfig,
        use_bias: bool,
        dropout: float,
        layer: int,
    ) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.scale = config.scale or None
        self.logit_softcap = config.logit_softcap
        self.dropout = dropout
        self.layer = layer
        has_qkv_bias = use_bias or config.qkv_bias
        self.q = Linear(d_model, config.d_query, bias=has_qkv_bias)
        self.k = Linear(d_model, config.d_kv, bias=has_qkv_bias)
        self.v = Linear(d_model, config.d_kv, bias=has_qkv_bias)
        self.o = Linear(config.d_query, d_model, bias=use_bias)
        self.sinks = nn.Parameter(torch.empty(config.num_heads)) if config.sinks else None
        self.norms_heads = config.qk_norm and config.qk_norm_scope == "head"
        self.norms_all = config.qk_norm and config.qk_norm_scope == "full"
        if config.qk_norm:
            q_dim, k_dim = config.qk_norm_dims
            self.q_norm = make_norm(norm, q_dim, use_bias=use_bias)
            self.k_norm = make_norm(norm, k_dim, use_bias=use_bias)

    def forward(
        self,
        x_BTC: Float[Tensor, "B T C"],
        *,
        rotation: Rotation | None = None,
        mask: Mask = None,
        bias: Float[Tensor, "... T S"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T C"]:
        """`mask` and `bias` are those of `ops.attention`, for the keys that the cache returns."""
        q_BTQ, k_BTQ = self.q(x_BTC), self.k(x_BTC)
        if self.norms_all:
            q_BTQ, k_BTQ = self.q_norm(q_BTQ), self.k_norm(k_BTQ)
        q_BHTD = self._heads(q_BTQ, self.num_heads)
        k_BKTD = self._heads(k_BTQ, self.num_kv_heads)
        v_BKTD = self._heads(self.v(x_BTC), self.num_kv_heads)
        if self.norms_heads:
            q_BHTD, k_BKTD = self.q_norm(q_BHTD), self.k_norm(k_BKTD)
        if rotation is not None:
            q_BHTD, k_BKTD = rotate(q_BHTD, rotation), rotate(k_BKTD, rotation)
        if cache is not None:
            k_BKTD, v_BKTD = cache.append(self.layer, k_BKTD, v_BKTD)
        out_BHTD = attention(
            q_BHTD,
            k_BKTD,
            v_BKTD,
            mask=mask,
            bias=bias,
            scale=self.scale,
            sinks=self.sinks,
            logit_softcap=self.logit_softcap,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.o(out_BHTD.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, num_heads: int) -> Tensor:
        return x.view(*x.shape[:-1], num_heads, self.head_dim).transpose(1, 2)

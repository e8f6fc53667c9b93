"""Multi-head latent attention: many heads, one small cached vector per token.

    c = norm(W_down x),  r = rope(W_r x)                     one of each for all heads
    k = [W_uk c; r],  v = W_uv c,  q = [q_nope; rope(q_rope)]
    out = W_o [softmax(scale q k^T) v of each head]

DeepSeek-V2 (arXiv 2405.04434, section 2.1; V3: 2412.19437, section 2.1.1). The cache holds c and r
only. Prefill and training make k and v of every token (expanded); decoding moves W_uk to the query
and W_uv behind the weighted sum, since q (W_uk c) = (W_uk^T q) c, and reads the latents as they
are: one key head of size L + R for all query heads (absorbed, section 2.1.2).
Shapes: B batch, T new tokens, S keys, C residual channels, H heads, D elements of a query or key
(N without and R with position), L kv_rank, V elements of a value.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmworks.nn.attention.cache import KVCache
from lmworks.nn.config import MLAConfig, NormConfig
from lmworks.nn.linear import Linear
from lmworks.nn.norm import make_norm
from lmworks.nn.position import Rotation, rotate
from lmworks.ops.attention import Mask, attention


class LatentAttention(nn.Module):
    """Keys and values of all heads from one latent per token."""

    def __init__(
        self,
        config: MLAConfig,
        *,
        d_model: int,
        norm: NormConfig,
        use_bias: bool,
        dropout: float,
        layer: int,
    ) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.kv_rank = config.kv_rank
        self.nope_dim, self.rope_dim, self.v_dim = config.nope_dim, config.rope_dim, config.v_dim
        self.scale = config.scale or config.head_dim**-0.5
        self.most_absorbed_tokens = config.most_absorbed_tokens
        self.dropout = dropout
        self.layer = layer
        self.has_q_latent = config.q_rank > 0
        if self.has_q_latent:
            self.q_down = Linear(d_model, config.q_rank, bias=use_bias)
            self.q_norm = make_norm(norm, config.q_rank, use_bias=use_bias)
            self.q_up = Linear(config.q_rank, config.d_query, bias=False)
        else:
            self.q = Linear(d_model, config.d_query, bias=False)
        self.kv_down = Linear(d_model, config.kv_rank + config.rope_dim, bias=use_bias)
        self.kv_norm = make_norm(norm, config.kv_rank, use_bias=use_bias)
        self.kv_up = Linear(
            config.kv_rank, config.num_heads * (config.nope_dim + config.v_dim), bias=False
        )
        self.o = Linear(config.d_value, d_model, bias=use_bias)

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
        q_BTQ = self.q_up(self.q_norm(self.q_down(x_BTC))) if self.has_q_latent else self.q(x_BTC)
        q_nope_BHTN, q_rope_BHTR = self._split_heads(q_BTQ, self.nope_dim)
        latent_BTL, k_rope_BTR = self.kv_down(x_BTC).split((self.kv_rank, self.rope_dim), dim=-1)
        latent_B1SL, k_rope_B1SR = self.kv_norm(latent_BTL).unsqueeze(1), k_rope_BTR.unsqueeze(1)
        if rotation is not None:
            q_rope_BHTR, k_rope_B1SR = rotate(q_rope_BHTR, rotation), rotate(k_rope_B1SR, rotation)
        is_absorbed = False
        if cache is not None:
            is_absorbed = cache.length > 0 and x_BTC.shape[1] <= self.most_absorbed_tokens
            latent_B1SL, k_rope_B1SR = cache.append(self.layer, latent_B1SL, k_rope_B1SR)
        make_qkv = self._absorbed_qkv if is_absorbed else self._expanded_qkv
        out_BHTX = attention(
            *make_qkv(q_nope_BHTN, q_rope_BHTR, latent_B1SL, k_rope_B1SR),
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        if is_absorbed:
            out_BHTX = out_BHTX @ self._up_weights()[1].transpose(-1, -2)
        return self.o(out_BHTX.transpose(1, 2).flatten(2))

    def _expanded_qkv(
        self, q_nope_BHTN: Tensor, q_rope_BHTR: Tensor, latent_B1SL: Tensor, k_rope_B1SR: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every head's own keys and values."""
        k_nope_BHSN, v_BHSV = self._split_heads(self.kv_up(latent_B1SL.squeeze(1)), self.nope_dim)
        k_rope_BHSR = k_rope_B1SR.expand(-1, self.num_heads, -1, -1)
        q_BHTD = torch.cat((q_nope_BHTN, q_rope_BHTR), dim=-1)
        return q_BHTD, torch.cat((k_nope_BHSN, k_rope_BHSR), dim=-1), v_BHSV

    def _absorbed_qkv(
        self, q_nope_BHTN: Tensor, q_rope_BHTR: Tensor, latent_B1SL: Tensor, k_rope_B1SR: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The latents are the keys and values of all heads."""
        q_BHTX = torch.cat((q_nope_BHTN @ self._up_weights()[0], q_rope_BHTR), dim=-1)
        return q_BHTX, torch.cat((latent_B1SL, k_rope_B1SR), dim=-1), latent_B1SL

    def _up_weights(self) -> tuple[Float[Tensor, "H N L"], Float[Tensor, "H V L"]]:
        """W_uk and W_uv of each head, which are the rows of `kv_up`."""
        up_HXL = self.kv_up.weight.view(self.num_heads, -1, self.kv_rank)
        return up_HXL[:, : self.nope_dim], up_HXL[:, self.nope_dim :]

    def _split_heads(self, x_BTX: Tensor, first_dim: int) -> tuple[Tensor, Tensor]:
        """The first elements of each head and the others."""
        x_BHTX = x_BTX.view(*x_BTX.shape[:2], self.num_heads, -1).transpose(1, 2)
        return x_BHTX[..., :first_dim], x_BHTX[..., first_dim:]

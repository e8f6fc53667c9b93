"""Multi-head latent attention as data: ranks, weight shapes, FLOPs and cache size."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from lmworks.base.config import Config
from lmworks.nn.config.attention import AttentionConfig
from lmworks.nn.config.mask import FullMaskConfig, MaskConfig
from lmworks.nn.config.norm import NormConfig
from lmworks.nn.config.number import NonNegativeFloat
from lmworks.nn.config.shapes import Shapes, linear_shapes


class MLAConfig(Config):
    """Keys and values come from one small latent vector per token, and only that is cached
    (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    kind: Literal["mla"] = "mla"
    num_heads: PositiveInt
    """Heads; each has its own keys and values, made from the shared latent."""
    q_rank: NonNegativeInt = 0
    """Size of the latent that queries are made from; 0: from the residual stream itself."""
    kv_rank: PositiveInt
    """Size of the latent that keys and values are made from."""
    nope_dim: PositiveInt
    """Elements of a query or key head that know no position."""
    rope_dim: PositiveInt
    """Elements of a query head that turn with the position; their key is one for all heads."""
    v_dim: PositiveInt
    """Elements of a value head."""
    scale: NonNegativeFloat = 0.0
    """Factor of the scores; 0 is 1 / sqrt(nope_dim + rope_dim). YaRN multiplies by mscale^2."""
    mask: MaskConfig = FullMaskConfig()
    """Which earlier tokens a token sees."""

    @property
    def head_dim(self) -> int:
        """Elements of a query or key head."""
        return self.nope_dim + self.rope_dim

    @property
    def d_query(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def d_value(self) -> int:
        """Width of all value heads together."""
        return self.num_heads * self.v_dim

    @property
    def rotary_dim(self) -> int:
        """Elements that rotary positions may turn."""
        return self.rope_dim

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Per token one head: the latent after its norm, and the turned key of all heads."""
        return 1, self.kv_rank, self.rope_dim

    @property
    def most_absorbed_tokens(self) -> int:
        """New tokens up to which reading the cached latents as they are takes fewer FLOPs than
        making keys and values of all of them again, where those are many.

        Per cached token and head, making them takes kv_rank (nope_dim + v_dim) multiply-adds, and
        each query then 2 kv_rank + rope_dim instead of nope_dim + rope_dim + v_dim.
        """
        extra = 2 * self.kv_rank - self.nope_dim - self.v_dim
        expansion = self.kv_rank * (self.nope_dim + self.v_dim)
        return expansion // extra if extra > 0 else 2**62

    def weight_shapes(self, d_model: int, *, norm: NormConfig, use_bias: bool) -> Shapes:
        """Of the layer's own weights; what reads a latent has no bias, as in DeepSeek."""
        shapes: Shapes = {}
        if self.q_rank:
            shapes |= linear_shapes("q_down", d_model, self.q_rank, bias=use_bias)
            shapes |= norm.weight_shapes("q_norm", self.q_rank, use_bias=use_bias)
            shapes |= linear_shapes("q_up", self.q_rank, self.d_query, bias=False)
        else:
            shapes |= linear_shapes("q", d_model, self.d_query, bias=False)
        shapes |= linear_shapes("kv_down", d_model, self.kv_rank + self.rope_dim, bias=use_bias)
        shapes |= norm.weight_shapes("kv_norm", self.kv_rank, use_bias=use_bias)
        d_up = self.num_heads * (self.nope_dim + self.v_dim)
        shapes |= linear_shapes("kv_up", self.kv_rank, d_up, bias=False)
        return shapes | linear_shapes("o", self.d_value, d_model, bias=use_bias)

    def projection_flops_per_token(self, d_model: int) -> int:
        """Forward matmul FLOPs of everything but scores and values; a multiply-add is 2.

        The same in both forms: what makes keys and values of a latent, or takes queries into the
        latent space and outputs back, has the weights of `kv_up`.
        """
        per_head = self.num_heads * (self.nope_dim + self.v_dim)
        queries = self.q_rank * (d_model + self.d_query) if self.q_rank else d_model * self.d_query
        latents = d_model * (self.kv_rank + self.rope_dim) + self.kv_rank * per_head
        return 2 * (queries + latents + self.d_value * d_model)

    def score_flops_per_token(
        self, context_length: int, *, causal: bool, is_absorbed: bool = False
    ) -> int:
        """Forward FLOPs of scores and weighted values, for sequences of `context_length` tokens.

        `causal`: see `AttentionConfig`. `is_absorbed`: in the form of decoding, in which queries
        meet the latents themselves: kv_rank + rope_dim elements per score, kv_rank per value.
        """
        expanded = self.nope_dim + self.rope_dim + self.v_dim
        dims = 2 * self.kv_rank + self.rope_dim if is_absorbed else expanded
        flops_per_key = 2 * self.num_heads * dims
        if causal:
            return flops_per_key * self.mask.total_visible(context_length) // context_length
        return flops_per_key * self.mask.max_visible(context_length)


AnyAttentionConfig = Annotated[AttentionConfig | MLAConfig, Field(discriminator="kind")]
"""The attention of a block, chosen by `kind`."""

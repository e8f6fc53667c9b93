"""Attention as data: heads, weight shapes, FLOPs and cache size of each kind."""

from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from lmworks.base.config import Config
from lmworks.nn.config.mask import FullMaskConfig, MaskConfig
from lmworks.nn.config.norm import NormConfig
from lmworks.nn.config.number import NonNegativeFloat
from lmworks.nn.config.shapes import Shapes, linear_shapes


class AttentionConfig(Config):
    """Multi-head, multi-query and grouped-query attention, told apart by `num_kv_heads`."""

    kind: Literal["gqa"] = "gqa"
    num_heads: PositiveInt
    """Query heads."""
    num_kv_heads: PositiveInt
    """Key and value heads: num_heads is MHA (the value when left out), 1 is MQA, between is GQA."""
    head_dim: PositiveInt
    """Size of one head. Left out in a model config: d_model / num_heads."""
    qk_norm: bool = False
    """Normalise queries and keys before the rotation, with the model's kind of norm."""
    qk_norm_scope: Literal["head", "full"] = "head"
    """head: each head by itself, one weight for all (Qwen3); full: all heads together (OLMo 2)."""
    qkv_bias: bool = False
    """Biases of q, k and v even where the model has none (Qwen2)."""
    scale: NonNegativeFloat = 0.0
    """Factor of the scores; 0 is 1 / sqrt(head_dim). Gemma 2 has query_pre_attn_scalar^-0.5."""
    logit_softcap: NonNegativeFloat = 0.0
    """Bound scores softly to (-c, c) by c * tanh(score / c), as Gemma 2; 0 leaves them alone."""

    sinks: bool = False
    """A learned logit per head that takes weight in the softmax and gives no value (gpt-oss)."""
    mask: MaskConfig = FullMaskConfig()
    """Which earlier tokens a token sees."""

    @model_validator(mode="before")
    @classmethod
    def _one_kv_head_per_query_head(cls, values: Any) -> Any:
        if isinstance(values, dict) and "num_kv_heads" not in values:
            return {**values, "num_kv_heads": values.get("num_heads", 1)}
        return values

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> "AttentionConfig":
        if self.num_heads % self.num_kv_heads:
            divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - self.num_kv_heads))
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}; nearest num_kv_heads: {nearest}"
            )
        return self

    @property
    def d_query(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def d_kv(self) -> int:
        """Width of all key heads together (and of all value heads)."""
        return self.num_kv_heads * self.head_dim

    @property
    def qk_norm_dims(self) -> tuple[int, int]:
        """Channels that the query-key norm takes together: of queries and of keys."""
        if self.qk_norm_scope == "full":
            return self.d_query, self.d_kv
        return self.head_dim, self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that rotary positions may turn."""
        return self.head_dim

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """What the cache holds per token: (heads, elements of a key, elements of a value)."""
        return self.num_kv_heads, self.head_dim, self.head_dim

    def weight_shapes(self, d_model: int, *, norm: NormConfig, use_bias: bool) -> Shapes:
        """Of the layer's own weights."""
        shapes: Shapes = {}
        for name, d_out in (("q", self.d_query), ("k", self.d_kv), ("v", self.d_kv)):
            shapes |= linear_shapes(name, d_model, d_out, bias=use_bias or self.qkv_bias)
        shapes |= linear_shapes("o", self.d_query, d_model, bias=use_bias)
        if self.sinks:
            shapes["sinks"] = (self.num_heads,)
        if self.qk_norm:
            for name, dim in zip(("q_norm", "k_norm"), self.qk_norm_dims, strict=True):
                shapes |= norm.weight_shapes(name, dim, use_bias=use_bias)
        return shapes

    def projection_flops_per_token(self, d_model: int) -> int:
        """Forward matmul FLOPs of everything but scores and values; a multiply-add is 2."""
        return 2 * 2 * d_model * (self.d_query + self.d_kv)

    def score_flops_per_token(self, context_length: int, *, causal: bool) -> int:
        """Forward FLOPs of scores and weighted values, for sequences of `context_length` tokens.

        `causal=False` counts as many keys for every query as the last one sees, `causal=True` those
        that an average query sees (for a full mask T and (T + 1) / 2).
        """
        flops_per_key = 2 * 2 * self.d_query
        if causal:
            return flops_per_key * self.mask.total_visible(context_length) // context_length
        return flops_per_key * self.mask.max_visible(context_length)

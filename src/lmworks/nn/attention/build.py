"""The attention layer that a config names."""

from lmworks.nn.attention.gqa import GroupedQueryAttention
from lmworks.nn.attention.mla import LatentAttention
from lmworks.nn.config import AnyAttentionConfig, NormConfig


def make_attention(
    config: AnyAttentionConfig,
    *,
    d_model: int,
    norm: NormConfig,
    use_bias: bool,
    dropout: float,
    layer: int,
) -> GroupedQueryAttention | LatentAttention:
    """`layer` is the layer's number in the cache."""
    if config.kind == "mla":
        return LatentAttention(
            config, d_model=d_model, norm=norm, use_bias=use_bias, dropout=dropout, layer=layer
        )
    return GroupedQueryAttention(
        config, d_model=d_model, norm=norm, use_bias=use_bias, dropout=dropout, layer=layer
    )

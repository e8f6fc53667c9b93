"""What attention costs when a model runs: cache bytes, and arithmetic done per byte moved.

A chip can do some hundred operations in the time of moving one byte (an H100: 989 TFLOP/s of bf16
over 3.35 TB/s = 295, NVIDIA's data sheet). Work with fewer operations per byte waits for memory.
Only scores and weighted values count here, for one sequence of T tokens, with scores kept on the
chip (Dao et al. 2022, FlashAttention, arXiv 2205.14135, section 3):

    prefill   FLOPs of all T queries over the bytes of queries, keys, values and outputs
    decode    FLOPs of the last query over its own bytes and those that it reads of the cache

With H query heads and K key-value heads of D elements, all bf16 and T long, that is nearly
T H / (2 (H + K)) and H / K: a cached byte serves one operation under MHA however long the text is,
H / K of them under GQA (Ainslie et al. 2023, 2305.13245) and about 2 H under MLA, whose one latent
serves all heads twice (DeepSeek-V2, 2405.04434, section 2.1). A window leaves both ratios and
bounds how much there is to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lmworks.models.config import ModelConfig
from lmworks.nn.config import (
    AnyAttentionConfig,
    AttentionConfig,
    MaskConfig,
    MLAConfig,
    WindowMaskConfig,
    cache_slots,
)

Layers = Sequence[tuple[AnyAttentionConfig, int]]
"""Kinds of attention and how many layers have each."""


@dataclass(frozen=True)
class AttentionCost:
    """Of all layers of a model, or of the same model with other attention."""

    name: str
    shape: str
    """What is cached per token and layer, for the reader."""
    cache_bytes_per_token: int
    """Before any window is full."""
    cache_bytes: int
    """Of one sequence of full length; layers with a window hold that and a few tokens to spare."""
    prefill_flops_per_byte: float
    decode_flops_per_byte: float


def attention_costs(
    config: ModelConfig, *, context_length: int, element_bytes: int = 2
) -> list[AttentionCost]:
    """The model's own attention first, then the same model with what others have."""
    own: Layers = [(layer.attention, count) for layer, count in config.layer_counts()]
    variants = {"this model": own}
    for name, attention in _variants(config.attention, context_length).items():
        variants[name] = [(attention, config.num_layers)]
    return [_cost(name, layers, context_length, element_bytes) for name, layers in variants.items()]


def _variants(own: AnyAttentionConfig, context_length: int) -> dict[str, AnyAttentionConfig]:
    """Of as many query heads and about as large ones, seeing everything but in the last."""
    num_heads = own.num_heads
    head_dim = own.nope_dim if isinstance(own, MLAConfig) else own.head_dim

    def heads(num_kv_heads: int, mask: MaskConfig | None = None) -> AttentionConfig:
        plain = AttentionConfig(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        return plain if mask is None else plain.model_copy(update={"mask": mask})

    groups = max(n for n in (1, 2, 3, 4) if num_heads % n == 0)
    window = WindowMaskConfig(size=max(context_length // 4, 1))
    # DeepSeek-V2's ratios (section 3.1.2): a latent of 4 heads, half a head that turns.
    latent = MLAConfig(
        num_heads=num_heads,
        kv_rank=4 * head_dim,
        nope_dim=head_dim,
        rope_dim=max(head_dim // 2, 1),
        v_dim=head_dim,
    )
    return {
        "MHA": heads(num_heads),
        f"GQA, {groups} per key": heads(num_heads // groups),
        "MQA": heads(1),
        "MLA": latent,
        f"MHA, window {window.size:,}": heads(num_heads, window),
    }


def _cost(name: str, layers: Layers, context_length: int, element_bytes: int) -> AttentionCost:
    per_token = full = prefill_flops = prefill = decode_flops = decode = 0
    for attention, count in layers:
        heads, key_dim, value_dim = attention.cache_shape
        cached = heads * (key_dim + value_dim)
        num_keys = attention.mask.max_visible(context_length)
        per_token += count * cached
        full += count * cached * cache_slots(attention.mask, context_length)
        causal = attention.score_flops_per_token(context_length, causal=True)
        prefill_flops += count * context_length * causal
        prefill += count * context_length * _prefill_elements(attention)
        decode_flops += count * _decode_flops(attention, context_length)
        decode += count * (num_keys * cached + _query_and_output_elements(attention))
    return AttentionCost(
        name=name,
        shape=" + ".join(dict.fromkeys(_shape(attention) for attention, _ in layers)),
        cache_bytes_per_token=per_token * element_bytes,
        cache_bytes=full * element_bytes,
        prefill_flops_per_byte=prefill_flops / (prefill * element_bytes),
        decode_flops_per_byte=decode_flops / (decode * element_bytes),
    )


def _prefill_elements(attention: AnyAttentionConfig) -> int:
    """Of a token's queries, keys, values and outputs in all heads; latents are expanded first."""
    if isinstance(attention, MLAConfig):
        return 2 * (attention.d_query + attention.d_value)
    return 2 * (attention.d_query + attention.d_kv)


def _decode_flops(attention: AnyAttentionConfig, context_length: int) -> int:
    if isinstance(attention, MLAConfig):
        return attention.score_flops_per_token(context_length, causal=False, is_absorbed=True)
    return attention.score_flops_per_token(context_length, causal=False)


def _query_and_output_elements(attention: AnyAttentionConfig) -> int:
    """Of one token in the form of decoding."""
    if isinstance(attention, MLAConfig):
        return attention.num_heads * (2 * attention.kv_rank + attention.rope_dim)
    return 2 * attention.d_query


def _shape(attention: AnyAttentionConfig) -> str:
    heads, key_dim, value_dim = attention.cache_shape
    sizes = f"2 x {heads} x {key_dim}" if key_dim == value_dim else f"{key_dim} + {value_dim}"
    reach = attention.mask.reach
    if reach is None:
        return sizes
    return f"{sizes}, {reach + 1 + attention.mask.num_first_tokens:,} tokens"

"""Bytes that norms and attention keep for the backward pass, per layer.

What is kept follows from how `ops.attention` computes: a fused kernel keeps queries, keys, values,
its output and one number per query; written-out bfloat16 attention the weights instead; soft-capped
scores are computed again from queries, keys and values. A mask that is not causal order alone is
kept as numbers, once for all sequences.
"""

from lmworks.models.config import LayerConfig
from lmworks.nn.config import AnyAttentionConfig, AttentionConfig, MLAConfig, NormConfig
from lmworks.nn.config.mask import key_blocks
from lmworks.plan.hardware import ELEMENT_BYTES, Precision

MAX_WRITTEN_OUT_KEYS = 512
"""Up to this context ops.attention on a CPU writes bf16 attention out and keeps its weights."""
SINK_DIMS = 8
"""Elements that a head grows by where there are learned sinks."""

_FP32_BYTES = 4


def norm_bytes(norm: NormConfig, dim: int, precision: Precision) -> int:
    """Per token. LayerNorm keeps its input; RMSNorm its fp32 input and the normalised input, which
    is in fp32 too with `unit_offset`. The outputs are the input of the next product, which keeps
    it."""
    element_bytes = ELEMENT_BYTES[precision]
    if norm.kind == "layernorm":
        return dim * 2 * element_bytes
    if norm.unit_offset:
        return dim * (2 * _FP32_BYTES + element_bytes)
    return dim * (_FP32_BYTES + 2 * element_bytes)


def attention_bytes(
    norm: NormConfig,
    layer: LayerConfig,
    *,
    num_tokens: int,
    context_length: int,
    precision: Precision,
) -> int:
    """Of one layer's attention, for `num_tokens` tokens in sequences of `context_length`."""
    attention, element_bytes = layer.attention, ELEMENT_BYTES[precision]
    if isinstance(attention, MLAConfig):
        before = _latent_bytes(norm, attention, precision)
    else:
        before = _head_norm_bytes(norm, attention, precision)
    blocks = key_blocks(attention.mask, context_length)
    scores = sum(num_queries * num_keys for num_queries, num_keys in blocks)
    sees_all = attention.mask.max_visible(context_length) == context_length
    is_masked = not (sees_all and attention.mask.kind != "strided")
    heads, is_recomputed = attention.num_heads, _softcap(attention) > 0
    joined = heads * _value_dim(attention) * element_bytes
    if is_recomputed:
        core = _operand_bytes(attention, blocks, precision, fills_values=False) + joined
        shared = 0
    elif layer.position.kind == "t5":
        # No fused kernel gives a bias its gradient: queries, keys and values of every head and the
        # weights are kept, in fp32.
        core = 3 * attention.d_query * _FP32_BYTES + joined
        core += heads * scores * _FP32_BYTES // context_length
        shared = 0
    elif (
        precision == "bf16"
        and context_length <= MAX_WRITTEN_OUT_KEYS
        and not is_masked
        and layer.position.kind != "alibi"
    ):
        core = _operand_bytes(attention, blocks, precision, fills_values=False) + joined
        core += heads * context_length * element_bytes
        shared = 0
    else:  # fused: the output is kept as it is and as the heads joined
        core = _operand_bytes(attention, blocks, precision, fills_values=True) + joined
        core += heads * (_kernel_dim(attention) * element_bytes + _FP32_BYTES)
        shared = scores * element_bytes * (heads if layer.position.kind == "alibi" else is_masked)
    return num_tokens * (before + core) + shared


def _operand_bytes(
    attention: AnyAttentionConfig,
    blocks: list[tuple[int, int]],
    precision: Precision,
    *,
    fills_values: bool,
) -> int:
    """Queries, keys and values per token; blocks that read first tokens, too, copy their keys."""
    has_sink_key = _has_sinks(attention) and not _softcap(attention)
    key_dim = attention.head_dim + SINK_DIMS * has_sink_key
    value_dim = _kernel_dim(attention) if fills_values else _value_dim(attention)
    if isinstance(attention, MLAConfig):
        kv_heads = attention.num_heads
        if value_dim == attention.v_dim and fills_values:
            value_dim += attention.nope_dim  # values are a part of what kv_up gave
    else:
        kv_heads = attention.num_kv_heads
    copies = 1.0
    if len(blocks) > 1 and (attention.mask.num_first_tokens or has_sink_key):
        copies = sum(keys for _, keys in blocks) / sum(queries for queries, _ in blocks)
    elements = attention.num_heads * key_dim + copies * kv_heads * (key_dim + value_dim)
    return round(elements * ELEMENT_BYTES[precision])


def _head_norm_bytes(norm: NormConfig, attention: AttentionConfig, precision: Precision) -> int:
    """Of the query-key norm, whose outputs are rotated, which keeps the angles only, or used as
    they are."""
    if not attention.qk_norm:
        return 0
    width = attention.d_query + attention.d_kv
    return norm_bytes(norm, width, precision) - width * ELEMENT_BYTES[precision]


def _latent_bytes(norm: NormConfig, attention: MLAConfig, precision: Precision) -> int:
    """Of the latents' norms; the turned key lies in the storage of the latent that is kept."""
    size = norm_bytes(norm, attention.q_rank + attention.kv_rank, precision)
    return size + attention.rope_dim * ELEMENT_BYTES[precision]


def _kernel_dim(attention: AnyAttentionConfig) -> int:
    """Elements of a head inside a fused kernel."""
    has_sink_key = _has_sinks(attention) and not _softcap(attention)
    return max(attention.head_dim + SINK_DIMS * has_sink_key, _value_dim(attention))


def _value_dim(attention: AnyAttentionConfig) -> int:
    return attention.v_dim if isinstance(attention, MLAConfig) else attention.head_dim


def _softcap(attention: AnyAttentionConfig) -> float:
    return 0.0 if isinstance(attention, MLAConfig) else attention.logit_softcap


def _has_sinks(attention: AnyAttentionConfig) -> bool:
    return isinstance(attention, AttentionConfig) and attention.sinks

"""Bytes that training one model takes, by part.

Weights, gradients and optimizer state are exact: mixed precision with Adam takes 2 + 2 + 12 bytes
per parameter (Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, section 3.1), fp32 4 + 4 + 8.
Activations count the tensors that the backward pass of our decoder keeps when run layer by layer
(the approach of Korthikanti et al. 2022, arXiv 2205.05198, section 4, for our blocks); a compiled
model keeps fewer. The loss never holds all logits, so they are not here.
"""

import math
from typing import Literal

from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.nn.config import MLPConfig, NormConfig
from lmworks.plan.hardware import ELEMENT_BYTES, Precision

OptimizerKind = Literal["adamw", "muon", "sgd"]

MAX_WRITTEN_OUT_KEYS = 512
"""Up to this context ops.attention on a CPU writes bf16 attention out and keeps its weights."""

_FP32_BYTES = 4


def training_bytes(
    config: ModelConfig,
    *,
    precision: Precision,
    optimizer: OptimizerKind,
    micro_batch_size: int,
    context_length: int,
    accumulates: bool = False,
    recomputes: bool = False,
) -> dict[str, int]:
    """Bytes by part while training; the sum is the peak.

    `accumulates`: gradients of several micro-batches are added up, in fp32.
    `recomputes`: activation checkpointing, one tensor kept per block.
    """
    num_params, element_bytes = config.num_params(), ELEMENT_BYTES[precision]
    num_masters = 1 if precision == "bf16" else 0
    return {
        "weights": num_params * element_bytes,
        "gradients": num_params * (_FP32_BYTES if accumulates else element_bytes),
        "master weights": num_params * _FP32_BYTES * num_masters,
        "optimizer moments": num_moments(config, optimizer) * _FP32_BYTES,
        "activations": activation_bytes(
            config,
            num_tokens=micro_batch_size * context_length,
            context_length=context_length,
            precision=precision,
            recomputes=recomputes,
        ),
    }


def num_moments(config: ModelConfig, optimizer: OptimizerKind) -> int:
    """fp32 numbers that an optimizer keeps: AdamW 2 per parameter, SGD with momentum 1, Muon 1 for
    the matrices of the blocks (stacked ones too) and 2 for everything else, which it leaves to
    AdamW."""
    num_params = config.num_params()
    if optimizer == "sgd":
        return num_params
    if optimizer == "adamw":
        return 2 * num_params
    shapes = config.weight_shapes().items()
    inside = ("layers.", "mtp.")
    matrices = sum(math.prod(s) for name, s in shapes if name.startswith(inside) and len(s) > 1)
    return 2 * num_params - matrices


def activation_bytes(
    config: ModelConfig,
    *,
    num_tokens: int,
    context_length: int,
    precision: Precision,
    recomputes: bool = False,
) -> int:
    """Bytes kept for the backward pass of `num_tokens` tokens in sequences of `context_length`.

    With `recomputes` one residual row per block, and all of the one block that is being redone.
    """
    layers = [*config.layer_counts(), (config.last_layer, config.mtp.depth)]
    blocks = [
        (
            num_tokens * _block_bytes_per_token(config, layer, context_length, precision)
            + _bias_bytes(layer, context_length, precision),
            count,
        )
        for layer, count in layers
    ]
    final_norm = _norm_bytes(config.norm, config.d_model, precision) if config.has_final_norm else 0
    residual = config.d_model * ELEMENT_BYTES[precision]
    outside = final_norm + config.mtp.depth * (final_norm + _mtp_bytes(config, precision))
    if recomputes:
        num_blocks = config.num_layers + config.mtp.depth
        kept = num_tokens * num_blocks * residual + max(size for size, _ in blocks)
    else:
        kept = sum(size * count for size, count in blocks)
    return kept + num_tokens * outside


def readable_bytes(size_bytes: float) -> str:
    """Bytes in the unit that fits: 12 B, 3.4 KiB, 5.6 MiB, 7.8 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} GiB"


def _block_bytes_per_token(
    config: ModelConfig, layer: LayerConfig, context_length: int, precision: Precision
) -> int:
    num_sublayers = 1 if config.block == "parallel" else 2
    # A norm whose output is added to the residual stream keeps that much less; with "reordered" the
    # next product keeps the residual stream instead, with "double" it reads another norm.
    norms = _norm_bytes(config.norm, config.d_model, precision)
    if config.norm_position == "double":
        norms += norms - config.d_model * ELEMENT_BYTES[precision]
    attention = _attention_bytes(config.norm, layer, context_length, precision)
    return num_sublayers * norms + attention + _mlp_bytes(layer.mlp, precision)


def _mtp_bytes(config: ModelConfig, precision: Precision) -> int:
    """Of one depth beside its block and final norm: a sequential module's two norms, whose outputs
    are joined into what its projection keeps."""
    if config.mtp.kind != "sequential":
        return 0
    return 2 * _norm_bytes(config.norm, config.d_model, precision)


def _norm_bytes(norm: NormConfig, dim: int, precision: Precision) -> int:
    """LayerNorm keeps its input; RMSNorm its fp32 input and the normalised input, which is in fp32
    too with `unit_offset`. The outputs are the input of the next product, which keeps it."""
    element_bytes = ELEMENT_BYTES[precision]
    if norm.kind == "layernorm":
        return dim * 2 * element_bytes
    if norm.unit_offset:
        return dim * (2 * _FP32_BYTES + element_bytes)
    return dim * (_FP32_BYTES + 2 * element_bytes)


def _bias_bytes(layer: LayerConfig, context_length: int, precision: Precision) -> int:
    """ALiBi's bias, masked, which each layer keeps once for all sequences that are not packed."""
    if layer.position.kind != "alibi":
        return 0
    return layer.attention.num_heads * context_length**2 * ELEMENT_BYTES[precision]


def _attention_bytes(
    norm: NormConfig, layer: LayerConfig, context_length: int, precision: Precision
) -> int:
    """Queries, keys, values and output; the attention weights where a kernel holds them."""
    attention, element_bytes = layer.attention, ELEMENT_BYTES[precision]
    weights_per_query = attention.num_heads * context_length
    if attention.logit_softcap:
        # The scores are computed again; the output is kept as the heads joined.
        size = (2 * attention.d_query + 2 * attention.d_kv) * element_bytes
    elif layer.position.kind == "t5":
        # No fused kernel gives a bias its gradient: queries, keys and values of every head and the
        # weights are kept, in fp32.
        size = attention.d_query * (3 * _FP32_BYTES + element_bytes)
        size += weights_per_query * _FP32_BYTES
    elif (
        precision == "bf16"
        and context_length <= MAX_WRITTEN_OUT_KEYS
        and layer.position.kind != "alibi"
    ):
        size = (2 * attention.d_query + 2 * attention.d_kv + weights_per_query) * element_bytes
    else:  # fused kernel: its output is kept as it is and as the heads joined
        size = (3 * attention.d_query + 2 * attention.d_kv) * element_bytes
        size += attention.num_heads * _FP32_BYTES
    if attention.qk_norm:
        num_heads = attention.num_heads + attention.num_kv_heads
        size += num_heads * _norm_bytes(norm, attention.head_dim, precision)
        # The norms' outputs are rotated, which keeps the angles only, or used as they are.
        size -= (attention.d_query + attention.d_kv) * element_bytes
    return size


def _mlp_bytes(mlp: MLPConfig, precision: Precision) -> int:
    """Gated: both inputs of the product, what the activation read, and the product. Plain: two."""
    return mlp.d_ff * (4 if mlp.is_gated else 2) * ELEMENT_BYTES[precision]

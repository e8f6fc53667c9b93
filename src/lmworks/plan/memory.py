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
from lmworks.nn.config import MLPConfig, MoEConfig
from lmworks.plan.hardware import ELEMENT_BYTES, Precision
from lmworks.plan.layer_memory import attention_bytes, norm_bytes

OptimizerKind = Literal["adamw", "muon", "sgd"]

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
            num_tokens * _block_bytes_per_token(config, layer, precision)
            + attention_bytes(
                config.norm,
                layer,
                num_tokens=num_tokens,
                context_length=context_length,
                precision=precision,
            ),
            count,
        )
        for layer, count in layers
    ]
    final_norm = norm_bytes(config.norm, config.d_model, precision) if config.has_final_norm else 0
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


def _block_bytes_per_token(config: ModelConfig, layer: LayerConfig, precision: Precision) -> int:
    """All but attention."""
    num_sublayers = 1 if config.block == "parallel" else 2
    # A norm whose output is added to the residual stream keeps that much less; with "reordered" the
    # next product keeps the residual stream instead, with "double" it reads another norm.
    norms = norm_bytes(config.norm, config.d_model, precision)
    if config.norm_position == "double":
        norms += norms - config.d_model * ELEMENT_BYTES[precision]
    if layer.mlp.kind == "moe":
        return num_sublayers * norms + _moe_bytes(layer.mlp, config.d_model, precision)
    return num_sublayers * norms + _mlp_bytes(layer.mlp, precision)


def _mtp_bytes(config: ModelConfig, precision: Precision) -> int:
    """Of one depth beside its block and final norm: a sequential module's two norms, whose outputs
    are joined into what its projection keeps."""
    if config.mtp.kind != "sequential":
        return 0
    return 2 * norm_bytes(config.norm, config.d_model, precision)


def _moe_bytes(moe: MoEConfig, d_model: int, precision: Precision) -> int:
    """What gate and up of the chosen experts gave, with room for an eighth more rows; the router's
    fp32 input, its scores, and their logits with a z-loss; the weights of the chosen experts."""
    element_bytes, router = ELEMENT_BYTES[precision], moe.router
    per_row = moe.d_ff * (2 if moe.is_gated else 1) * element_bytes * 9 // 8 + 4 * _FP32_BYTES
    size = round(router.experts_per_token * per_row)
    if router.has_logits:
        size += (2 if moe.balance.z_weight else 1) * moe.num_experts * _FP32_BYTES
        size += d_model * _FP32_BYTES if precision == "bf16" else 0
    return size if moe.shared_mlp is None else size + _mlp_bytes(moe.shared_mlp, precision)


def _mlp_bytes(mlp: MLPConfig, precision: Precision) -> int:
    """Gated: both inputs of the product, what the activation read, and the product. Plain: two."""
    return mlp.d_ff * (4 if mlp.is_gated else 2) * ELEMENT_BYTES[precision]

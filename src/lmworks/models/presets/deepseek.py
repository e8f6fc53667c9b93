"""DeepSeekMoE 16B (Dai et al. 2024, arXiv 2401.06066), DeepSeek-V2 and V2-Lite (2405.04434) and
DeepSeek-V3 (2412.19437), from deepseek-ai/*/config.json.

The first layers are dense, the others have fine-grained and shared experts; from V2 on attention
is MLA. V3's multi-token prediction, which its 671 B do not count, is `mtp: {kind: sequential}`.
"""

import math
from typing import Any

from lmworks.models.presets.llama import llama_like


def _with_moe(
    values: dict[str, Any], moe: dict[str, Any], *, num_layers: int, num_dense: int
) -> dict[str, Any]:
    """Experts in all layers but the first `num_dense`, which keep the model's own MLP."""
    return values | {
        "layer_kinds": {"dense": {}, "moe": {"mlp": {"kind": "moe", **moe}}},
        "layer_pattern": [f"dense*{num_dense}", f"moe*{num_layers - num_dense}"],
    }


def _mla(values: dict[str, Any], *, num_heads: int, q_rank: int, mscale: float) -> dict[str, Any]:
    """Latent attention, and YaRN by 40 from 4096 tokens on.

    DeepSeek leaves rotated vectors unscaled and multiplies all scores by YaRN's factor squared
    (modeling_deepseek.py, `mscale_all_dim`).
    """
    factor, nope_dim, rope_dim = 40.0, 128, 64
    yarn_scale = 0.1 * mscale * math.log(factor) + 1.0
    return values | {
        "max_seq_len": 163840,
        "attention": {
            "kind": "mla",
            "num_heads": num_heads,
            "q_rank": q_rank,
            "kv_rank": 512,
            "nope_dim": nope_dim,
            "rope_dim": rope_dim,
            "v_dim": 128,
            "scale": yarn_scale**2 / math.sqrt(nope_dim + rope_dim),
        },
        "position": {
            "kind": "rope",
            "pairing": "interleaved",
            "scaling": {
                "kind": "yarn",
                "factor": factor,
                "original_max_seq_len": 4096,
                "attention_factor": 1.0,
            },
        },
    }


def _dense(d_model: int, num_layers: int, *, vocab_size: int, num_heads: int, d_ff: int) -> Any:
    return llama_like(
        d_model,
        num_layers,
        vocab_size=vocab_size,
        max_seq_len=4096,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        d_ff=d_ff,
        eps=1e-6,
    )


_FINE_GRAINED = {
    "d_ff": 1408,
    "num_experts": 64,
    "num_shared_experts": 2,
    "router": {"kind": "topk", "top_k": 6, "score": "softmax", "normalize": False},
}

DEEPSEEK: dict[str, dict[str, Any]] = {
    "deepseek-moe-16b": _with_moe(
        _dense(2048, 28, vocab_size=102400, num_heads=16, d_ff=10944),
        _FINE_GRAINED,
        num_layers=28,
        num_dense=1,
    ),
    "deepseek-v2-lite": _with_moe(
        _mla(
            _dense(2048, 27, vocab_size=102400, num_heads=16, d_ff=10944),
            num_heads=16,
            q_rank=0,
            mscale=0.707,
        ),
        _FINE_GRAINED,
        num_layers=27,
        num_dense=1,
    ),
    "deepseek-v2": _with_moe(
        _mla(
            _dense(5120, 60, vocab_size=102400, num_heads=128, d_ff=12288),
            num_heads=128,
            q_rank=1536,
            mscale=0.707,
        ),
        {
            "d_ff": 1536,
            "num_experts": 160,
            "num_shared_experts": 2,
            "router": {
                "kind": "topk",
                "top_k": 6,
                "score": "softmax",
                "normalize": False,
                "scale": 16.0,
                "num_groups": 8,
                "top_groups": 3,
            },
        },
        num_layers=60,
        num_dense=1,
    ),
    "deepseek-v3": _with_moe(
        _mla(
            _dense(7168, 61, vocab_size=129280, num_heads=128, d_ff=18432),
            num_heads=128,
            q_rank=1536,
            mscale=1.0,
        ),
        {
            "d_ff": 2048,
            "num_experts": 256,
            "num_shared_experts": 1,
            "router": {
                "kind": "topk",
                "top_k": 8,
                "score": "sigmoid",
                "normalize": True,
                "scale": 2.5,
                "selection_bias": True,
                "num_groups": 8,
                "top_groups": 4,
                "group_score": "top2_sum",
            },
            # Section 4.2: the bias moves by 0.001 per step, beside a loss within each sequence.
            "balance": {"switch_weight": 0.0, "sequence_weight": 0.0001, "bias_rate": 0.001},
        },
        num_layers=61,
        num_dense=3,
    ),
}

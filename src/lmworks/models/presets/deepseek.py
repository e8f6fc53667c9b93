"""DeepSeekMoE 16B (Dai et al. 2024, arXiv 2401.06066), from deepseek-ai/*/config.json.

The first layers are dense, the others have fine-grained and shared experts.
"""

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
}

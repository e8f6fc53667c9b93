"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825) and Mixtral 8x7B (Jiang et al. 2024,
2401.04088), from mistralai/*/config.json."""

from typing import Any

from lmworks.models.presets.llama import llama_like


def _mistral(*, vocab_size: int, theta: float) -> dict[str, Any]:
    return llama_like(
        4096,
        32,
        vocab_size=vocab_size,
        max_seq_len=32768,
        num_heads=32,
        num_kv_heads=8,
        d_ff=14336,
        theta=theta,
    )


_V1 = _mistral(vocab_size=32000, theta=10000.0)
_MIXTRAL = _mistral(vocab_size=32000, theta=1000000.0)

MISTRAL: dict[str, dict[str, Any]] = {
    # Version 0.1: every layer sees the last 4096 tokens only.
    "mistral-7b": _V1
    | {"attention": _V1["attention"] | {"mask": {"kind": "window", "size": 4096}}},
    "mistral-7b-v0.3": _mistral(vocab_size=32768, theta=1000000.0),
    "mixtral-8x7b": _MIXTRAL
    | {
        "mlp": {
            "kind": "moe",
            "d_ff": 14336,
            "num_experts": 8,
            "router": {"kind": "topk", "top_k": 2, "score": "softmax", "normalize": True},
        }
    },
}
